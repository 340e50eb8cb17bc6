// Rotary embedding, KV store, and the decode epilogue that does bias, rotation and store in one pass. The three share
// their arithmetic, operation by operation and without contraction, so the fused pass equals the chain bit for bit.
#include "math.cuh"

// One thread a pair; grid y is the token. x and out are the same buffer or disjoint ones; features past n_rot are
// copied. factors may be null. Needs an even n_rot.
template <bool INTERLEAVED>
BODY void rope_row(const float* x, const float* factors, float* out, const int* pos, int cols, int head_dim, int n_rot,
                   float base, float scale) {
    const int half = n_rot / 2, pair = flat_index();
    if (pair >= cols / head_dim * half) return;
    const int head = pair / half, j = pair % half;
    const size_t first = static_cast<size_t>(blockIdx.y) * cols + head * head_dim;
    const size_t a = first + (INTERLEAVED ? 2 * j : j), b = INTERLEAVED ? a + 1 : a + half;
    const Angle t = rope_angle(pos[blockIdx.y], j, n_rot, base, scale, factors ? factors[j] : 1.0f);
    rotate(x[a], x[b], t, out[a], out[b]);
    if (out != x)
        for (int i = n_rot + j; i < head_dim; i += half) out[first + i] = x[first + i];
}

#define ROPE(style, interleaved)                                                                                     \
    KERNEL(256) rope_##style##_f32(const float* x, float* out, const int* pos, int cols, int head_dim, int n_rot,    \
                                   float base, float scale) {                                                        \
        rope_row<interleaved>(x, nullptr, out, pos, cols, head_dim, n_rot, base, scale);                             \
    }                                                                                                                \
    KERNEL(256) rope_##style##_f32_factors(const float* x, float* out, const int* pos, const float* factors,         \
                                           int cols, int head_dim, int n_rot, float base, float scale) {             \
        rope_row<interleaved>(x, factors, out, pos, cols, head_dim, n_rot, base, scale);                             \
    }
ROPE(neox, false)
ROPE(interleaved, true)

// Row t of x into row pos[t] of the region (n_ctx, cols).
template <class KV> BODY void kv_store(const float* x, KV* region, const int* pos, int cols) {
    const int j = flat_index();
    const size_t from = static_cast<size_t>(blockIdx.y) * cols, to = static_cast<size_t>(pos[blockIdx.y]) * cols;
    if (j < cols) store_as(region + to + j, x[from + j]);
}

// Decode only (one token). q, k, v: pointers to the three sections, of one concatenated product or of three; q and k
// are biased and rotated in place, v biased in place, k and v stored. Threads: nqt/2 pairs of q, nkt/2 pairs of k, nkt
// elements of v. NEOX pairs over the whole head.
template <class KV>
BODY void bias_rope_store(float* q, float* k, float* v, const float* bias_q, const float* bias_k, const float* bias_v,
                          KV* keys, KV* values, const int* pos, int nqt, int nkt, int hd, float base, float scale) {
    const int half = hd / 2, u = flat_index();
    const size_t row = static_cast<size_t>(pos[0]) * nkt;
    if (u < (nqt + nkt) / 2) {
        const bool is_q = u < nqt / 2;
        float* x = is_q ? q : k;
        const float* bias = is_q ? bias_q : bias_k;
        const int pair = is_q ? u : u - nqt / 2, d = pair % half, a = pair / half * hd + d, b = a + half;
        rotate(x[a] + bias[a], x[b] + bias[b], rope_angle(pos[0], d, hd, base, scale, 1.0f), x[a], x[b]);
        if (is_q) return;
        store_as(keys + row + a, x[a]);
        store_as(keys + row + b, x[b]);
    } else if (u < (nqt + nkt) / 2 + nkt) {
        const int j = u - (nqt + nkt) / 2;
        v[j] = v[j] + bias_v[j];
        store_as(values + row + j, v[j]);
    }
}

#define KV_STORE(t, KV)                                                                                             \
    KERNEL(256) kv_store_##t(const float* x, KV* region, const int* pos, int cols) {                                \
        kv_store(x, region, pos, cols);                                                                             \
    }                                                                                                               \
    KERNEL(256) attn_bias_rope_store_##t(float* q, float* k, float* v, const float* bias_q, const float* bias_k,    \
                                         const float* bias_v, KV* keys, KV* values, const int* pos, int nqt,        \
                                         int nkt, int hd, float base, float scale) {                                \
        bias_rope_store(q, k, v, bias_q, bias_k, bias_v, keys, values, pos, nqt, nkt, hd, base, scale);             \
    }
KV_STORE(f32, float)
KV_STORE(f16, __half)
