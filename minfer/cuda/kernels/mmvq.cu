// Matrix times one token's q8 plane, in integers (dp4a): the sum over runs of d_w·d_x·(q_w·q_x) + b_w·d_x·(sum of q_x).
// One block a row and nothing shared between rows, so a matrix of concatenated rows gives the rows' own bits.
#include "q8.cuh"
#include "quants.cuh"

// The 32 weights of part p (counted from the start of a row of id): two runs of 16, at e and e + PAIR.
template <class Q> BODY float dot_part(const u8* row, const u8* plane, int p, int id) {
    constexpr int parts = Q::ELEMENTS / PART;
    const auto block = Q::block(row, p / parts, id / Q::ELEMENTS);
    const int e = unit_first<Q>(4 * p), word = e % Q8_VALUES / 4;
    const u8* x_lo = plane + static_cast<size_t>(e / Q8_VALUES) * Q8_BYTES;
    const u8* x_hi = plane + static_cast<size_t>((e + Q::PAIR) / Q8_VALUES) * Q8_BYTES;
    const int word_hi = (e + Q::PAIR) % Q8_VALUES / 4;
    int lo = 0, hi = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Packed q = Q::quants(block, p % parts * 4 + i);
        lo = __dp4a(static_cast<int>(q.lo), q8_word(x_lo, word + i), lo);
        hi = __dp4a(static_cast<int>(q.hi), q8_word(x_hi, word_hi + i), hi);
    }
    const Scales s = Q::scales(block, p % parts);
    const float d_lo = q8_d(x_lo), d_hi = q8_d(x_hi);
    float sum = fmaf(s.d_lo * d_lo, static_cast<float>(lo), s.d_hi * d_hi * static_cast<float>(hi));
    // b holds for a run of 32, whose q8 sum must count once: even parts add the low run's, odd parts the high run's
    if constexpr (Q::OFFSET)
        sum += p % 2 == 0 ? s.b_lo * d_lo * q8_sum(x_lo) : s.b_hi * d_hi * q8_sum(x_hi);
    return sum;
}

template <class Q> BODY void mmvq_row(const u8* __restrict__ w, const u8* __restrict__ plane, float* out, int id) {
    __shared__ float s_sum[THREADS / WARP];
    const u8* row = weight_row<Q>(w, blockIdx.x, id);
    float sum = 0.0f;
    for (int p = threadIdx.x; p < id / PART; p += THREADS) sum += dot_part<Q>(row, plane, p, id);
    sum = block_sum(sum, s_sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

#define MMVQ(t, Q) \
    KERNEL(256) mmvq_##t(const u8* w, const u8* q8, float* out, int id, int) { mmvq_row<Q>(w, q8, out, id); }
Q8_FORM_TYPES(MMVQ)
