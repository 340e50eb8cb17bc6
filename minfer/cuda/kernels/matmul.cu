// Matrix times f32 activations, weights unpacked in registers: decode (one token) and small batches (2..16 tokens).
// One warp a row; its lanes take units of 8 weights side by side, so weights and activations are read in whole lines.
#include "quants.cuh"

constexpr int ROWS_PER_BLOCK = THREADS / WARP;

BODY float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// out[t, row] for up to NT tokens; every token's sum is the same whatever NT is. x (nt, id), out (nt, od).
template <class Q, int NT>
BODY void matmul_row(const u8* __restrict__ w, const float* __restrict__ x, float* out, int id, int od, int nt) {
    const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= od) return;
    const u8* weights = weight_row<Q>(w, row, id);
    float sum[NT] = {};
    for (int u = lane; u < id / UNIT; u += WARP) {
        const Unit q = row_unit<Q>(weights, u, id);
        const float* from = x + unit_first<Q>(u);
#pragma unroll
        for (int t = 0; t < NT; t++) {
            if (t >= nt) break;
            const float* xt = from + static_cast<size_t>(t) * id;
            sum[t] = dot4(q.hi, load4(xt + Q::PAIR), dot4(q.lo, load4(xt), sum[t]));
        }
    }
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const float total = warp_sum(sum[t]);
        if (lane == 0 && t < nt) out[static_cast<size_t>(t) * od + row] = total;
    }
}

// Accumulators live in registers, so a batch runs at the smallest size that holds it.
template <class Q> BODY void matmul_batch(const u8* w, const float* x, float* out, int id, int od, int nt) {
    if (nt <= 4)
        matmul_row<Q, 4>(w, x, out, id, od, nt);
    else if (nt <= 8)
        matmul_row<Q, 8>(w, x, out, id, od, nt);
    else
        matmul_row<Q, 16>(w, x, out, id, od, nt);
}

#define MATMUL(t, Q)                                                                                                 \
    KERNEL(256) matmul_##t##_f32(const u8* w, const float* x, float* out, int id, int od) {                          \
        matmul_row<Q, 1>(w, x, out, id, od, 1);                                                                      \
    }                                                                                                                \
    KERNEL(256) matmul_##t##_f32_batch(const u8* w, const float* x, float* out, int id, int od, int nt) {            \
        matmul_batch<Q>(w, x, out, id, od, nt);                                                                      \
    }
QUANT_TYPES(MATMUL)
