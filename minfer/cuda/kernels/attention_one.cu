// Decode attention in one launch: blocks (kv head, split) take a run of keys each, and the last block of a kv head to
// finish adds up the splits. One block reads its keys and values once for all query heads that share them.
//
// Warps do not wait for each other while they walk: each takes STEP keys at a time and keeps a softmax of its own. A
// step has two layouts of the lanes. Scores: LANES lanes share a key, with 16-byte loads. Weighted sum: a row of V lies
// across the warp. Between the two, the weights of STEP keys go through shared memory.
#include "features.cuh"
#include "plane.cuh"

constexpr int HEADS = 8;  // room for the query heads that a block carries at once
constexpr int WARPS = 16, SLOTS = WARPS / 2;  // sums of two warps share a slot of shared memory
constexpr int LANES = 8;       // that share a key; as many as HEADS, so that each ends up with one head's scores
constexpr int MIN_KEYS = 128;  // of a split, a step of the block: fewer are not divided further
constexpr int BATCH = 16;      // records of a head that a lane has in flight when it adds up the splits
constexpr int CARRIED = 1024;  // heads · features that a block carries at once: a float4 a thread
constexpr int MAX_STEP = 8;    // keys that a warp takes at once

template <class T, int N> BODY Features<T, N> read_features(const T* p) {
    return *reinterpret_cast<const Features<T, N>*>(p);
}

struct Shape {
    int n_head, n_head_kv, head_dim, splits;
};

// The keys first..last-1 of this block. Splits from `active` on have none.
struct Run {
    int n_kv, first, last, active;
    BODY Run(int n, int splits) : n_kv(n) {
        const int even = (n_kv + splits - 1) / splits, each = max(MIN_KEYS, (even + LANES - 1) / LANES * LANES);
        active = (n_kv + each - 1) / each;
        first = blockIdx.y * each;
        last = min(n_kv, first + each);
    }
};

// partial: head_dim weighted sums per (head, split); behind all of them, per (head, split), the largest score and the
// sum of the weights. Scores are exponents of two: a key's weight is exp2(score - largest score).
struct Records {
    float* sums;
    float2* scales;
    int head_dim, splits;
    BODY Records(float* partial, Shape s)
        : sums(partial), scales(reinterpret_cast<float2*>(partial + s.n_head * s.splits * s.head_dim)),
          head_dim(s.head_dim), splits(s.splits) {}
    BODY float* sum(int head, int split) const { return sums + (head * splits + split) * head_dim; }
    BODY float2* scale(int head, int split) const { return scales + head * splits + split; }
};

struct Shared {
    float4 query[CARRIED / 4];                 // scaled; in the order of query_place
    float weight[WARPS][MAX_STEP + 1][HEADS];  // of each key of a step; then a row: what the sums so far are scaled by
    float most[WARPS][HEADS], sum[WARPS][HEADS];
    float4 acc[SLOTS][CARRIED / 4];  // of a head head_dim features, the last ones unused if head_dim is not DIM
};

// Sums over the LANES lanes of a key, each lane getting that of one head: lane l the head l % LANES.
BODY float sum_of_own_head(float (&v)[HEADS]) {
#pragma unroll
    for (int half = LANES / 2; half > 0; half /= 2) {
        const bool upper = threadIdx.x & half;
#pragma unroll
        for (int h = 0; h < half; h++) {
            const float mine = upper ? v[h + half] : v[h], other = upper ? v[h] : v[h + half];
            v[h] = mine + __shfl_xor_sync(ALL_LANES, other, half);
        }
    }
    return v[0];
}

// Where four features of the result go, the first of them feature i of the row: into the row, or as q8 into the plane of
// the matmul behind, for which heads are a multiple of 32. All lanes of a warp call, those without features not `real`.
struct ToRow {
    float* row;
    BODY void put(int i, float4 v, bool real) const {
        if (real) store4(row + i, v);
    }
};
struct ToPlane {
    Plane plane;
    BODY void put(int i, float4 v, bool real) const { quantize_word(plane, i / 4, v, real); }
};

// A launch, as one block sees it
template <class KV, class Out> struct Call {
    const float* q;
    const KV *k, *v;
    Out out;
    Shape shape;
    Records records;
    Run run;
};

// One warp's walk over keys for H query heads. DIM: head_dim rounded up to 128 or 256; features past head_dim are read
// from a valid place and meet zeros of the query, or sums that nobody stores.
template <class KV, int DIM, int H> struct Walk {
    static constexpr int VECTOR = 16 / sizeof(KV);        // features of a 16-byte load
    static constexpr int LOADS = DIM / (LANES * VECTOR);  // of a lane for a key
    static constexpr int KEYS = LOADS <= 2 ? 2 : 1;       // a lane's keys of a step, in the scores
    static constexpr int APART = WARP / LANES;            // distance of these keys
    static constexpr int STEP = KEYS * APART;             // keys that a warp takes at once
    static constexpr int OWN = DIM / WARP;                // a lane's features in the weighted sum
    static_assert(STEP <= MAX_STEP && H <= HEADS && H * DIM <= CARRIED);

    const KV *k, *v;  // the first row of this kv head
    int cols, head_dim, last;
    Features<KV, VECTOR> key[KEYS][LOADS];
    Features<KV, OWN> value[STEP];
    float most = neg_inf(), sum = 0.0f;  // of head lane % LANES; sum: of the keys that this lane scored
    float acc[H][OWN] = {};

    template <class C> BODY explicit Walk(const C& c)
        : k(c.k + blockIdx.x * c.shape.head_dim), v(c.v + blockIdx.x * c.shape.head_dim),
          cols(c.shape.n_head_kv * c.shape.head_dim), head_dim(c.shape.head_dim), last(c.run.last) {}

    // Which float4 of Shared::query holds features f to f+3 of a head: what LANES lanes read at once is together.
    static BODY int query_place(int head, int f) {
        const int load = f / (LANES * VECTOR), part = f % VECTOR / 4, lane = f / VECTOR % LANES;
        return ((head * LOADS + load) * (VECTOR / 4) + part) * LANES + lane;
    }

    // Rows past the end are read as the last one; their weight is zero.
    BODY size_t row(int key) const { return static_cast<size_t>(min(key, last - 1)) * cols; }

    BODY void load_keys(int at) {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const KV* from = k + row(at + i * APART + lane / LANES);
#pragma unroll
            for (int j = 0; j < LOADS; j++) {
                const int feature = (j * LANES + lane % LANES) * VECTOR;
                key[i][j] = read_features<KV, VECTOR>(from + min(feature, head_dim - VECTOR));
            }
        }
    }

    BODY void load_values(int at) {
        const int feature = min(static_cast<int>(threadIdx.x) % WARP * OWN, head_dim - OWN);
#pragma unroll
        for (int i = 0; i < STEP; i++) value[i] = read_features<KV, OWN>(v + row(at + i) + feature);
    }

    // Of the keys that this lane has loaded, for head lane % LANES.
    BODY void score(const float4* query, float (&to)[KEYS]) const {
        float dot[KEYS][HEADS] = {};
        const int lane = threadIdx.x % LANES;
#pragma unroll
        for (int c = 0; c < LOADS * VECTOR / 4; c++) {
            const int load = c / (VECTOR / 4), at = c % (VECTOR / 4) * 4;
#pragma unroll
            for (int h = 0; h < H; h++) {
                const float4 q = query[(h * LOADS * (VECTOR / 4) + c) * LANES + lane];
#pragma unroll
                for (int i = 0; i < KEYS; i++) {
                    const KV* f = key[i][load].v + at;
                    dot[i][h] = fmaf(q.x, as_float(f[0]), dot[i][h]);
                    dot[i][h] = fmaf(q.y, as_float(f[1]), dot[i][h]);
                    dot[i][h] = fmaf(q.z, as_float(f[2]), dot[i][h]);
                    dot[i][h] = fmaf(q.w, as_float(f[3]), dot[i][h]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < KEYS; i++) to[i] = sum_of_own_head(dot[i]);
    }

    // Scores to weights relative to the largest score so far; row STEP of `weight`: what becomes of the earlier ones.
    BODY void soften(float (&score)[KEYS], int at, float (*weight)[HEADS]) {
        const int lane = threadIdx.x % WARP, key = lane / LANES, head = lane % LANES;
        float next = most;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            if (at + i * APART + key >= last) score[i] = neg_inf();
            next = fmaxf(next, score[i]);
        }
#pragma unroll
        for (int n = LANES; n < WARP; n *= 2) next = fmaxf(next, __shfl_xor_sync(ALL_LANES, next, n));
        const float keep = exp2f(most - next);
        most = next;
        sum *= keep;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const float p = exp2f(score[i] - next);
            sum += p;
            weight[i * APART + key][head] = p;
        }
        if (key == 0) weight[STEP][head] = keep;
        __syncwarp();
    }

    static BODY void read_weights(const float* from, float (&w)[HEADS]) {
        store4(w, load4(from));
        if (H > 4) store4(w + 4, load4(from + 4));
    }

    BODY void add_values(const float (*weight)[HEADS]) {
        alignas(16) float w[HEADS];
        read_weights(weight[STEP], w);
#pragma unroll
        for (int h = 0; h < H; h++)
#pragma unroll
            for (int f = 0; f < OWN; f++) acc[h][f] *= w[h];
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            read_weights(weight[i], w);
#pragma unroll
            for (int f = 0; f < OWN; f++) {
                const float x = as_float(value[i].v[f]);
#pragma unroll
                for (int h = 0; h < H; h++) acc[h][f] = fmaf(w[h], x, acc[h][f]);
            }
        }
    }
};

// Scaled rows of q, from the first of `heads` on, for the float4 of Shared::query that is this thread's.
template <int DIM> BODY float4 read_query(const float* q, int heads, int head_dim) {
    const int head = threadIdx.x / (DIM / 4), f = threadIdx.x % (DIM / 4) * 4;
    if (head >= heads || f >= head_dim) return {0.0f, 0.0f, 0.0f, 0.0f};
    const float scale = 1.44269504f / sqrtf(static_cast<float>(head_dim));  // log2 e: scores are exponents of two
    const float4 v = load4(q + head * head_dim + f);
    return {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
}

BODY float4 scaled(float4 v, float by) { return {v.x * by, v.y * by, v.z * by, v.w * by}; }
BODY float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// The sums of every warp into Shared, relative to the largest score of all.
template <class W, int DIM, int H> BODY void share_sums(W& walk, Shared& s) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = LANES; n < WARP; n *= 2) walk.sum += __shfl_xor_sync(ALL_LANES, walk.sum, n);
    if (lane < HEADS) s.most[warp][lane] = walk.most;
    __syncthreads();
    float most = s.most[0][lane % HEADS];
#pragma unroll
    for (int w = 1; w < WARPS; w++) most = fmaxf(most, s.most[w][lane % HEADS]);
    const float weight = exp2f(walk.most - most);  // zero if this warp had no keys
    if (lane < HEADS) s.sum[warp][lane] = walk.sum * weight;
#pragma unroll
    for (int half = 1; half >= 0; half--) {  // the upper warps write, the lower ones add theirs
        if (warp / SLOTS == half)
#pragma unroll
            for (int h = 0; h < H; h++) {
                const float own = __shfl_sync(ALL_LANES, weight, h);
#pragma unroll
                for (int f = 0; f < W::OWN; f += 4) {
                    const float* a = walk.acc[h] + f;
                    float4& slot = s.acc[warp % SLOTS][(h * DIM + lane * W::OWN + f) / 4];
                    const float4 mine = scaled({a[0], a[1], a[2], a[3]}, own);
                    slot = half ? mine : plus(mine, slot);
                }
            }
        __syncthreads();
    }
}

// The block's result for `heads` heads: into `out` if no other block has keys, else a record. A float4 a thread.
template <int DIM, class C> BODY void write_sums(const C& c, const Shared& s, int head, int heads) {
    const int h = threadIdx.x / (DIM / 4), f = threadIdx.x % (DIM / 4) * 4;
    if (h >= heads) return;  // whole warps
    const bool real = f < c.shape.head_dim;
    float4 acc = s.acc[0][threadIdx.x];
    float sum = s.sum[0][h], most = s.most[0][h];
#pragma unroll
    for (int w = 1; w < WARPS; w++) {
        if (w < SLOTS) acc = plus(acc, s.acc[w][threadIdx.x]);
        sum += s.sum[w][h];
        most = fmaxf(most, s.most[w][h]);
    }
    if (c.run.active == 1) {
        c.out.put((head + h) * c.shape.head_dim + f, scaled(acc, 1.0f / sum), real);
        return;
    }
    if (!real) return;
    store4(c.records.sum(head + h, blockIdx.y) + f, acc);
    if (f == 0) *c.records.scale(head + h, blockIdx.y) = {most, sum};
}

// Query heads `head`..`head + heads - 1`, all of this block's kv head, over its keys; heads <= H.
template <int DIM, int H, class KV, class Out>
BODY void attend(const Call<KV, Out>& c, Shared& s, int head, int heads) {
    using W = Walk<KV, DIM, H>;
    constexpr int BLOCK_STEP = WARPS * W::STEP;
    const int warp = threadIdx.x / WARP, last = c.run.last;
    W walk(c);
    int at = c.run.first + warp * W::STEP;
    const bool old = at + W::STEP < c.run.n_kv;  // without the newest key: in the cache since earlier steps
    if (at < last && old) walk.load_keys(at);
    wait_for_previous();
    const float4 query = read_query<DIM>(c.q + head * c.shape.head_dim, heads, c.shape.head_dim);
    if (at < last && !old) walk.load_keys(at);
    if (threadIdx.x < CARRIED / 4)
        s.query[W::query_place(threadIdx.x / (DIM / 4), threadIdx.x % (DIM / 4) * 4)] = query;
    __syncthreads();
    for (; at < last; at += BLOCK_STEP) {
        float score[W::KEYS];
        walk.load_values(at);
        __syncwarp();  // the weights of the step before have been read; and the compiler leaves the loads up there
        walk.score(s.query, score);
        if (at + BLOCK_STEP < last) walk.load_keys(at + BLOCK_STEP);
        walk.soften(score, at, s.weight[warp]);
        walk.add_values(s.weight[warp]);
    }
    share_sums<W, DIM, H>(walk, s);
    write_sums<DIM>(c, s, head, heads);
}

// The records of one head, added up by a warp; a lane has a float4 of features. Reads past L1: other blocks wrote them.
template <class Out> BODY void combine(Records records, const Out& out, int head, int active) {
    const int lane = threadIdx.x % WARP;
    for (int first = 0; first < records.head_dim; first += 4 * WARP) {
        const int f = min(first + 4 * lane, records.head_dim - 4);
        float most = neg_inf(), sum = 0.0f;
        float4 acc = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int from = 0; from < active; from += BATCH) {
            float4 part[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++)  // past the end: the last one, with weight zero
                part[i] = __ldcg(reinterpret_cast<float4*>(records.sum(head, min(from + i, active - 1)) + f));
            const bool mine = lane < BATCH && from + lane < active;
            const float2 scale = mine ? __ldcg(records.scale(head, from + lane)) : float2{neg_inf(), 0.0f};
            const float next = fmaxf(most, warp_max(scale.x)), weight = exp2f(scale.x - next);
            const float keep = exp2f(most - next);
            most = next;
            sum = fmaf(sum, keep, warp_sum(scale.y * weight));
            acc = scaled(acc, keep);
#pragma unroll
            for (int i = 0; i < BATCH; i++) acc = plus(acc, scaled(part[i], __shfl_sync(ALL_LANES, weight, i)));
        }
        out.put(head * records.head_dim + f, scaled(acc, 1.0f / sum), first + 4 * lane < records.head_dim);
    }
}

// All query heads of this block's kv head, `each` at a time. With the loop around the choice of H instead of inside
// each, the compiler needs up to 246 registers.
template <int DIM, int H, class KV, class Out>
BODY void attend_group(const Call<KV, Out>& c, Shared& s, int head, int group, int each) {
    for (int g = 0; g < group; g += each) attend<DIM, H>(c, s, head + g, min(each, group - g));
}

template <class KV, class Out> BODY void attention_one(const Call<KV, Out>& c, u32* counters) {
    __shared__ Shared s;
    const int group = c.shape.n_head / c.shape.n_head_kv, head = blockIdx.x * group;
    const bool wide = c.shape.head_dim > 128, few = wide || sizeof(KV) == 4;
    const int most = few ? 4 : 7;  // more spill; a further pass over the block's keys finds them in L2
    const int passes = (group + most - 1) / most, each = (group + passes - 1) / passes;
    if (wide)
        attend_group<256, 4>(c, s, head, group, each);
    else if (each <= 4)
        attend_group<128, 4>(c, s, head, group, each);
    else if constexpr (sizeof(KV) == 2) {
        if (each == 5)
            attend_group<128, 5>(c, s, head, group, each);
        else
            attend_group<128, 7>(c, s, head, group, each);
    }
    if (c.run.active == 1) return;
    __syncthreads();  // every thread has written its part of the records
    if (!is_last_block(counters + blockIdx.x, c.run.active)) return;
    for (int h = threadIdx.x / WARP; h < group; h += WARPS) combine(c.records, c.out, head + h, c.run.active);
}

// in0: q, one token; in1, in2: the KV regions; in3: its position. partial: partial_floats(..), 16-byte aligned;
// counters: one per kv head, zero before and after. quads: the plane of the output (plane.cuh).
#define ATTENTION_ARGS(KV) const float *q, const KV *k, const KV *v, const int *pos, float *partial, u32 *counters
#define SIZES int n_head, int n_head_kv, int head_dim, int splits
template <class KV, class Out> BODY void attention_to(const Out& out, ATTENTION_ARGS(KV), SIZES) {
    const Shape shape = {n_head, n_head_kv, head_dim, splits};
    const Run run(pos[0] + 1, splits);  // the position is older than the previous kernel
    if (run.first >= run.last) return;
    attention_one<KV, Out>({q, k, v, out, shape, Records(partial, shape), run}, counters);
}
#define ATTENTION_ONE(t, KV)                                                                                \
    KERNEL(512) attention_one_##t(ATTENTION_ARGS(KV), float* out, SIZES) {                                  \
        attention_to<KV>(ToRow{out}, q, k, v, pos, partial, counters, n_head, n_head_kv, head_dim, splits); \
    }
ATTENTION_ONE(f32, float)
ATTENTION_ONE(f16, __half)
KERNEL(512) attention_quads_f16(ATTENTION_ARGS(__half), u8* quads, SIZES) {
    attention_to<__half>(ToPlane{{quads}}, q, k, v, pos, partial, counters, n_head, n_head_kv, head_dim, splits);
}
