// Kernels with known answers for test_cuda_on_cpu.py.
#include <cuda_fp16.h>

#define KERNEL extern "C" __global__ void

KERNEL __launch_bounds__(256) indices(int* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = i;
}

KERNEL copy4(const float* x, float* out) {
    reinterpret_cast<float4*>(out)[threadIdx.x] = reinterpret_cast<const float4*>(x)[threadIdx.x];
}

KERNEL geometry(unsigned* out) {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned* row = out + 12 * (block * blockDim.x * blockDim.y * blockDim.z + thread);
    row[0] = threadIdx.x, row[1] = threadIdx.y, row[2] = threadIdx.z;
    row[3] = blockIdx.x, row[4] = blockIdx.y, row[5] = blockIdx.z;
    row[6] = blockDim.x, row[7] = blockDim.y, row[8] = blockDim.z;
    row[9] = gridDim.x, row[10] = gridDim.y, row[11] = gridDim.z;
}

KERNEL block_sum(const float* x, float* out) {
    extern __shared__ __align__(16) float s[];
    s[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int k = blockDim.x / 2; k > 0; k /= 2) {
        __syncthreads();
        if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = s[0];
}

KERNEL shuffles(int* out, int width) {
    const int mine = 100 + threadIdx.x;
    out[threadIdx.x] = __shfl_sync(0xffffffffu, mine, threadIdx.x % 32 + 3, width);
    out[64 + threadIdx.x] = __shfl_up_sync(0xffffffffu, mine, 3, width);
    out[128 + threadIdx.x] = __shfl_down_sync(0xffffffffu, mine, 3, width);
    out[192 + threadIdx.x] = __shfl_xor_sync(0xffffffffu, mine, 2, width);
}

KERNEL votes(const int* x, unsigned* out) {
    const int mine = x[threadIdx.x];
    const unsigned half = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
    out[threadIdx.x] = __ballot_sync(0xffffffffu, mine);
    out[64 + threadIdx.x] = __any_sync(0xffffffffu, mine);
    out[128 + threadIdx.x] = !__all_sync(half, !mine);
    out[192 + threadIdx.x] = __syncthreads_count(mine);
}

KERNEL atomics(const int* x, int* out, float* total) {
    const int v = x[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd(out, v);
    atomicMax(out + 1, v);
    atomicMin(out + 2, v);
    atomicInc(reinterpret_cast<unsigned*>(out + 3), 6);
    atomicOr(out + 4, v);
    atomicAdd(total, 1.0f);
}

KERNEL last_block(const float* x, float* partial, unsigned* counter, float* out) {
    __shared__ bool last;
    float v = x[blockIdx.x * 32 + threadIdx.x];
    for (int k = 16; k > 0; k /= 2) v += __shfl_xor_sync(0xffffffffu, v, k);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = v;
        __threadfence();
        last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x > 0) return;
    float sum = 0.0f;
    for (int b = 0; b < static_cast<int>(gridDim.x); b++) sum += partial[b];
    *out = sum;
}

// The first warp fills a buffer and does not wait; the second waits for it.
KERNEL handover(int* out) {
    __shared__ int buffer[32];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        buffer[lane] = lane + 7;
#ifdef CUDA_ON_CPU
        cuda_bar_arrive(1, 64);
#endif
        out[lane] = lane;
    } else {
#ifdef CUDA_ON_CPU
        cuda_bar_sync(1, 64);
#endif
        out[threadIdx.x] = buffer[lane];
    }
}

KERNEL half_to_float(const __half* x, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = __half2float(x[i]);
}

KERNEL float_to_half(const float* x, __half* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __float2half(x[i]);
}

KERNEL integers(const unsigned* a, const unsigned* b, const unsigned* c, unsigned* out) {
    const int i = threadIdx.x;
    out[i] = __dp4a(static_cast<int>(a[i]), static_cast<int>(b[i]), static_cast<int>(c[i]));
    out[256 + i] = __dp4a(a[i], b[i], c[i]);
    out[512 + i] = __byte_perm(a[i], b[i], c[i] & 0x7777);
    out[768 + i] = __vsub4(a[i], b[i]);
    out[1024 + i] = __vsubss4(a[i], b[i]);
    out[1280 + i] = __popc(a[i]);
}

KERNEL floats(const float* x, float* out) {
    const int i = threadIdx.x;
    const float v = __ldg(x + i);
    out[i] = rsqrtf(v);
    out[256 + i] = __expf(v);
    out[512 + i] = powf(v, 0.3f);
    out[768 + i] = sinf(v);
    out[1024 + i] = rintf(fmaf(v, 1.0f, v));
    out[1280 + i] = __int_as_float(__float_as_int(v) ^ 0x80000000);
}

// Each lane adds its left neighbour's number, n times over.
KERNEL ring(int* out, int n) {
    __shared__ int number[32];
    int mine = 1;
    for (int i = 0; i < n; i++) {
        number[threadIdx.x] = mine;
        __syncwarp();
        mine = 1 + number[(threadIdx.x + 31) % 32];
        __syncwarp();
    }
    out[threadIdx.x] = mine;
}

KERNEL barriers(int* out, int n) {
    for (int i = 0; i < n; i++) __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = n;
}
