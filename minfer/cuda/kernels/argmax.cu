// The greedy token in one launch: blocks reduce their share, the last one to finish reduces the blocks.
#include "common.cuh"

constexpr int NO_INDEX = 0x7fffffff;

struct Best {
    float value;
    int index;
};

// Of equal values the lower index wins; NaN never does.
BODY Best better(Best a, Best b) {
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

BODY Best warp_best(Best mine) {
#pragma unroll
    for (int k = WARP / 2; k > 0; k /= 2)
        mine = better(mine, {__shfl_xor_sync(ALL_LANES, mine.value, k), __shfl_xor_sync(ALL_LANES, mine.index, k)});
    return mine;
}

// The block's best, in thread 0.
BODY Best block_best(Best mine) {
    __shared__ Best s_best[THREADS / WARP];
    mine = warp_best(mine);
    if (threadIdx.x % WARP == 0) s_best[threadIdx.x / WARP] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < THREADS / WARP; w++) mine = better(mine, s_best[w]);
    __syncthreads();
    return mine;
}

// The index of the largest value, 0 when none is a number, in thread 0 of the block that finishes last; -1 elsewhere.
// aux: a counter that is zero before and after, one word of next_token's, then one Best per block of the grid.
BODY int grid_argmax(const float* x, u32* aux, int n) {
    Best* blocks = reinterpret_cast<Best*>(aux + 2);
    Best mine = {neg_inf(), NO_INDEX};
    for (int i = flat_index(); i < n; i += gridDim.x * THREADS) mine = better(mine, {x[i], i});
    mine = block_best(mine);
    if (threadIdx.x == 0) blocks[blockIdx.x] = mine;
    if (!is_last_block(aux, gridDim.x)) return -1;
    mine = {neg_inf(), NO_INDEX};
    for (int b = threadIdx.x; b < static_cast<int>(gridDim.x); b += THREADS) {
        const volatile Best* from = blocks + b;  // written by other blocks of this launch: not from a stale line
        mine = better(mine, {from->value, from->index});
    }
    mine = block_best(mine);
    return threadIdx.x != 0 ? -1 : mine.index == NO_INDEX ? 0 : mine.index;
}

KERNEL(256) argmax_f32(const float* x, int* out, u32* aux, int n) {
    int id = grid_argmax(x, aux, n);
    if (id >= 0) *out = id;
}

// argmax_f32, and what the host would do between two steps: the id becomes the next step's token, at the next position.
// The host reads the ids from its ring while later steps run. The i-th of all ever chosen (aux[1] counts them) is
// ring[i % entries] = (i + 1) << 32 | id: one store, so that the host sees all of an entry or nothing of it.
KERNEL(256) next_token(const float* x, int* out, int* tokens, int* positions, volatile unsigned long long* ring,
                       u32* aux, int n, int entries) {
    wait_for_previous();
    int id = grid_argmax(x, aux, n);
    if (id < 0) return;
    u32 count = aux[1];
    *out = *tokens = id;
    *positions += 1;
    aux[1] = count + 1;
    __threadfence_system();  // who sees the entry sees the rest
    ring[count % entries] = (count + 1ull) << 32 | static_cast<u32>(id);
}
