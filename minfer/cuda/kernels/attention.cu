// Decode attention over a KV cache, split over the keys. A fixed grid (kv heads, splits) serves every position: the
// number of keys is read on the device, and a split without keys contributes nothing. One block reads its keys once
// for all query heads that share them.
#include "features.cuh"

constexpr int HEADS = 8;  // query heads that a warp carries at once
constexpr int WARPS = THREADS / WARP;
constexpr int MAX_HEAD_DIM = 256;

template <class T, int N> BODY void read_features(const T* p, bool mine, float (&to)[N]) {
    if (!mine) return;
    const Features<T, N> f = *reinterpret_cast<const Features<T, N>*>(p);
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = as_float(f.v[i]);
}

// Running softmax over the keys seen so far: weights are exp(score - most), acc and sum are scaled alike.
template <int N> struct Online {
    float most, sum, acc[N];
    BODY void add(float score, const float (&value)[N]) {
        const float next = fmaxf(most, score), keep = expf(most - next), p = expf(score - next);
        most = next;
        sum = fmaf(sum, keep, p);
#pragma unroll
        for (int i = 0; i < N; i++) acc[i] = fmaf(acc[i], keep, p * value[i]);
    }
};

BODY float softmax_weight(float most, float overall) { return most == neg_inf() ? 0.0f : expf(most - overall); }

struct Merge {  // in shared memory
    float most[WARPS], sum[WARPS], acc[WARPS][MAX_HEAD_DIM];
};

// What all warps of the block found for one head, as one record: head_dim sums, then most, then the sum of weights.
template <int N> BODY void merge_warps(const Online<N>& mine, Merge& m, float* record, int head_dim) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    __syncthreads();  // the previous head's record has been read
    if (lane == 0) m.most[warp] = mine.most, m.sum[warp] = mine.sum;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane * N < head_dim) m.acc[warp][lane * N + i] = mine.acc[i];
    __syncthreads();
    float most = neg_inf(), sum = 0.0f, acc = 0.0f;
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, m.most[w]);
    for (int w = 0; w < WARPS; w++) {
        const float weight = softmax_weight(m.most[w], most);
        sum = fmaf(m.sum[w], weight, sum);
        if (threadIdx.x < head_dim) acc = fmaf(m.acc[w][threadIdx.x], weight, acc);
    }
    if (threadIdx.x < head_dim) record[threadIdx.x] = acc;
    if (threadIdx.x == 0) record[head_dim] = most, record[head_dim + 1] = sum;
}

struct Shape {
    int n_head, n_head_kv, head_dim, splits;
    BODY float* record(float* partial, int head) const {
        return partial + (static_cast<size_t>(head) * splits + blockIdx.y) * (head_dim + 2);
    }
};

// Query heads `head`..`head + heads - 1`, all of this block's kv head, over keys first..last-1. Lane l holds features
// N·l to N·l+N-1; a warp takes every WARPS-th key.
template <class KV, int N>
BODY void attend(const float* q, const KV* k, const KV* v, Merge& m, float* partial, Shape s, int head, int heads,
                 int first, int last) {
    const int lane = threadIdx.x % WARP, at = lane * N, cols = s.n_head_kv * s.head_dim;
    const bool mine = at < s.head_dim;
    const float scale = 1.0f / sqrtf(static_cast<float>(s.head_dim));
    float query[HEADS][N] = {};
    Online<N> state[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        state[h] = {neg_inf(), 0.0f, {}};
        if (h < heads) read_features<float, N>(q + (head + h) * s.head_dim + at, mine, query[h]);
#pragma unroll
        for (int i = 0; i < N; i++) query[h][i] *= scale;
    }
    for (int j = first + static_cast<int>(threadIdx.x) / WARP; j < last; j += WARPS) {
        const size_t row = static_cast<size_t>(j) * cols + blockIdx.x * s.head_dim + at;
        float key[N] = {}, value[N] = {};
        read_features<KV, N>(k + row, mine, key);
        read_features<KV, N>(v + row, mine, value);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (h >= heads) break;
            float score = 0.0f;
#pragma unroll
            for (int i = 0; i < N; i++) score = fmaf(query[h][i], key[i], score);
            state[h].add(warp_sum(score), value);
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        if (h < heads) merge_warps<N>(state[h], m, s.record(partial, head + h), s.head_dim);
}

template <class KV, int N>
BODY void attend_group(const float* q, const KV* k, const KV* v, int n_kv, Merge& m, float* partial, Shape s) {
    const int group = s.n_head / s.n_head_kv, per_split = (n_kv + s.splits - 1) / s.splits;
    const int first = blockIdx.y * per_split, last = min(n_kv, first + per_split);
    for (int g = 0; g < group; g += HEADS)
        attend<KV, N>(q, k, v, m, partial, s, blockIdx.x * group + g, min(HEADS, group - g), first, last);
}

template <class KV>
BODY void attention_split(const float* q, const KV* k, const KV* v, const int* pos, float* partial, Shape s) {
    __shared__ Merge m;
    const int n_kv = pos[0] + 1;
    if (s.head_dim <= 2 * WARP)
        attend_group<KV, 2>(q, k, v, n_kv, m, partial, s);
    else if (s.head_dim <= 4 * WARP)
        attend_group<KV, 4>(q, k, v, n_kv, m, partial, s);
    else
        attend_group<KV, 8>(q, k, v, n_kv, m, partial, s);
}

#define ATTENTION_SPLIT(t, KV)                                                                                      \
    KERNEL(256) attention_split_##t(const float* q, const KV* k, const KV* v, const int* pos, float* partial,       \
                                    int n_head, int n_head_kv, int head_dim, int splits) {                          \
        attention_split<KV>(q, k, v, pos, partial, {n_head, n_head_kv, head_dim, splits});                          \
    }
ATTENTION_SPLIT(f32, float)
ATTENTION_SPLIT(f16, __half)

// partial: one record per (head, split); one block a head. Split 0 always has the first key, so the sum is not zero.
KERNEL(256) attention_combine_f32(const float* partial, float* out, int n_head, int head_dim, int splits) {
    const float* records = partial + static_cast<size_t>(blockIdx.x) * splits * (head_dim + 2);
    float most = neg_inf();
    for (int s = 0; s < splits; s++) most = fmaxf(most, records[static_cast<size_t>(s) * (head_dim + 2) + head_dim]);
    const int i = threadIdx.x;
    if (i >= head_dim) return;
    float sum = 0.0f, acc = 0.0f;
    for (int s = 0; s < splits; s++) {
        const float* r = records + static_cast<size_t>(s) * (head_dim + 2);
        const float weight = softmax_weight(r[head_dim], most);
        sum = fmaf(r[head_dim + 1], weight, sum);
        acc = fmaf(r[i], weight, acc);
    }
    out[static_cast<size_t>(blockIdx.x) * head_dim + i] = acc / sum;
}
