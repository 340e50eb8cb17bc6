// See grid_barrier.py. Behind async.cuh. A matrix is `items` pieces of 2,304 bytes; blocks share them, warps a block's.
constexpr int WARPS = 16, ITEM = 2304, STAGES = 3, RING = STAGES * ITEM;

struct Matrix {
    long long at;  // its first byte
    int items;
    int activations;  // bytes that every block reads before it can begin: a multiple of 16
};

struct Share {
    const u8* from;
    int items;
};
BODY Share share_of(const u8* w, const Matrix& m) {
    const int warp = threadIdx.x / WARP, blocks = gridDim.x;
    const int begin = static_cast<int>(static_cast<long long>(m.items) * blockIdx.x / blocks);
    const int end = static_cast<int>(static_cast<long long>(m.items) * (blockIdx.x + 1) / blocks);
    const int first = begin + (end - begin) * warp / WARPS, last = begin + (end - begin) * (warp + 1) / WARPS;
    return {w + m.at + static_cast<size_t>(first) * ITEM, last - first};
}

// What a warp copies, matrix after matrix, STAGES items ahead of what it reads.
struct Ahead {
    const u8* w;
    const Matrix* next;
    int matrices;
    Share share;

    BODY void copy(Shared stage) {
        while (share.items == 0 && matrices > 0) share = share_of(w, *next++), matrices--;
        if (share.items > 0) {
            const int lane = threadIdx.x % WARP;
#pragma unroll
            for (int i = 0; i < ITEM; i += 16 * WARP)
                if (i + 16 * lane < ITEM) copy_async<16>(stage + i + 16 * lane, share.from + i + 16 * lane);
            share.from += ITEM, share.items--;
        }
        close_group();
    }
};

BODY u32 nibbles(u32 w, u32 by, u32 sum) {
    sum = __dp4a(w & 0x0f0f0f0fu, by, sum);
    return __dp4a(w >> 4 & 0x0f0f0f0fu, by, sum);
}

// A lane's part of an item: the sum of its words, or of all its nibbles, `WORK` times over, as unpacking would cost.
template <int WORK> BODY u32 read_item(Shared stage, u32 sum) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < ITEM; i += 16 * WARP) {
        if (i + 16 * lane >= ITEM) break;
        const uint4 v = shared_load16(stage + i + 16 * lane);
        if (WORK == 0) sum += v.x + v.y + v.z + v.w;
#pragma unroll
        for (u32 k = 1; k <= WORK; k++) {
            const u32 by = k * 0x01010101u;
            sum = nibbles(v.w, by, nibbles(v.z, by, nibbles(v.y, by, nibbles(v.x, by, sum))));
        }
    }
    return sum;
}

struct Ring {
    Shared base, at;
    BODY Ring() {
        extern __shared__ uint4 s_dynamic[];
        base = at = shared_address(s_dynamic) + threadIdx.x / WARP * RING;
    }
    BODY void prime(Ahead& ahead) {
        for (int i = 0; i < STAGES; i++) ahead.copy(base + i * ITEM);
    }
    template <int WORK> BODY u32 run(Ahead& ahead, int items) {
        u32 sum = 0;
        for (; items > 0; items--) {
            wait_for_groups<STAGES - 1>();
            __syncwarp();
            sum = read_item<WORK>(at, sum);
            __syncwarp();
            ahead.copy(at);
            at += ITEM;
            if (at == base + RING) at = base;
        }
        return sum;
    }
};

BODY u32 block_total(u32 v) {
    __shared__ u32 s_sum[WARPS];
    for (int k = WARP / 2; k > 0; k /= 2) v += __shfl_xor_sync(ALL_LANES, v, k);
    __syncthreads();
    if (threadIdx.x % WARP == 0) s_sum[threadIdx.x / WARP] = v;
    __syncthreads();
    u32 sum = 0;
    for (int w = 0; w < WARPS; w++) sum += s_sum[w];
    return sum;
}

// The sum of the activations, which the matrix before wrote: a word a block, and zeros.
BODY u32 read_activations(const u32* from, int bytes) {
    u32 sum = 0;
    for (int i = threadIdx.x; i < bytes / 16; i += WARPS * WARP) {
        const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from) + i);
        sum += v.x + v.y + v.z + v.w;
    }
    return block_total(sum);
}

template <int WORK> BODY void one_matrix(const u8* w, const Matrix* matrix, const u32* in, u32* out) {
    Ring ring;
    Ahead ahead = {w, matrix, 1, {nullptr, 0}};
    ring.prime(ahead);
    wait_for_previous();
    const u32 before = read_activations(in, matrix->activations);
    const u32 sum = block_total(ring.run<WORK>(ahead, share_of(w, *matrix).items));
    if (threadIdx.x == 0) out[blockIdx.x] = sum + before;
}

BODY u32 load_acquire(const u32* p) {
#ifdef CUDA_ON_CPU
    return *p;
#else
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
#endif
}

// All matrices by one grid, of which every block must be resident. arrived: zero before. activations: two of room words.
template <int WORK>
BODY void all_matrices(const u8* w, const Matrix* matrix, u32* activations, u32* arrived, int count, int room) {
    Ring ring;
    Ahead ahead = {w, matrix, count, {nullptr, 0}};
    ring.prime(ahead);
    for (int m = 0; m < count; m++) {
        if (threadIdx.x == 0)
            while (load_acquire(arrived) < static_cast<u32>(m) * gridDim.x) {
            }
        __syncthreads();
        const u32 before = read_activations(activations + m % 2 * room, matrix[m].activations);
        const u32 sum = block_total(ring.run<WORK>(ahead, share_of(w, matrix[m]).items));
        if (threadIdx.x == 0) {
            activations[(m + 1) % 2 * room + blockIdx.x] = sum + before;
            __threadfence();
            atomicAdd(arrived, 1u);
        }
    }
}

#define CHAIN(n)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(512, 1)                                                           \
        launch_##n(const u8* w, const Matrix* matrix, const u32* in, u32* out) {                                   \
        one_matrix<n>(w, matrix, in, out);                                                                         \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1)                                                           \
        grid_##n(const u8* w, const Matrix* matrix, u32* activations, u32* arrived, int count, int room) {         \
        all_matrices<n>(w, matrix, activations, arrived, count, room);                                             \
    }
CHAIN(0)
CHAIN(2)
