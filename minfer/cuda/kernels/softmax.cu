// Causal softmax of attention scores for many tokens: the step between the two matrix products of a prefill.
#include "common.cuh"

// scores, out: (heads * nt, n_kv); row r belongs to token r % nt, which sees keys 0..pos[token]. One block a row.
// Hidden keys get zero, and their scores are not read.
template <class T> BODY void softmax_causal(const float* scores, const int* pos, T* out, int nt, int n_kv) {
    __shared__ float s_max[THREADS / WARP], s_sum[THREADS / WARP];
    const size_t row = static_cast<size_t>(blockIdx.x) * n_kv;
    const int seen = min(n_kv, pos[blockIdx.x % nt] + 1);
    float most = neg_inf(), sum = 0.0f;
    for (int j = threadIdx.x; j < seen; j += THREADS) most = fmaxf(most, scores[row + j]);
    most = block_max(most, s_max);
    for (int j = threadIdx.x; j < seen; j += THREADS) sum += expf(scores[row + j] - most);
    sum = block_sum(sum, s_sum);
    for (int j = threadIdx.x; j < n_kv; j += THREADS)
        store_as(out + row + j, j < seen ? expf(scores[row + j] - most) / sum : 0.0f);
}

KERNEL(256) softmax_causal_f32(const float* scores, const int* pos, float* out, int nt, int n_kv) {
    softmax_causal(scores, pos, out, nt, n_kv);
}

KERNEL(256) softmax_causal_f16(const float* scores, const int* pos, __half* out, int nt, int n_kv) {
    softmax_causal(scores, pos, out, nt, n_kv);
}
