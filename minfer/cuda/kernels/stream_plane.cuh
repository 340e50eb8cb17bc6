// How a block of a stream kernel makes a token's activations (plane.cuh).
#include "async.cuh"
#include "math.cuh"
#include "plane.cuh"

inline constexpr int STREAM_WARPS = 16, STREAM_THREADS = STREAM_WARPS * WARP;

BODY float4 load4_fresh(const float* p) { return __ldcg(reinterpret_cast<const float4*>(p)); }  // not from a stale line

inline constexpr int HELD = 3;  // float4 of a row that a thread keeps under way

BODY void quantize_row(const Plane& plane, const float* x, int id) {
    for (int first = threadIdx.x; first < id / 4; first += HELD * STREAM_THREADS) {
        float4 v[HELD];
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (first + k * STREAM_THREADS < id / 4) v[k] = load4_fresh(x + 4 * (first + k * STREAM_THREADS));
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (first + k * STREAM_THREADS < id / 4) quantize_word(plane, first + k * STREAM_THREADS, v[k]);
    }
}

// RMSNorm and quantize. The norm's weights, which no kernel writes, are there before the wait for the row. The first
// HELD float4 a thread stay in registers, longer rows are read again.
struct Norm {
    const float *x, *w;
    float eps;
    float4 g[HELD];

    BODY void prepare(int id) {
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int i = threadIdx.x + k * STREAM_THREADS;
            if (i < id / 4) g[k] = load4(w + 4 * i);
        }
    }

    BODY void operator()(const Plane& plane, int id) const {
        __shared__ float s_sum[STREAM_WARPS];
        float4 v[HELD];
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int i = threadIdx.x + k * STREAM_THREADS;
            v[k] = i < id / 4 ? load4_fresh(x + 4 * i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int k = 0; k < HELD; k++) sum = sum_squares(v[k], sum);
        for (int i = threadIdx.x + HELD * STREAM_THREADS; i < id / 4; i += STREAM_THREADS)
            sum = sum_squares(load4_fresh(x + 4 * i), sum);
        sum = warp_sum(sum);
        if (threadIdx.x % WARP == 0) s_sum[threadIdx.x / WARP] = sum;
        __syncthreads();
        sum = 0.0f;
#pragma unroll
        for (int i = 0; i < STREAM_WARPS; i++) sum += s_sum[i];
        const float scale = rsqrtf(sum / static_cast<float>(id) + eps);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int i = threadIdx.x + k * STREAM_THREADS;
            if (i < id / 4) quantize_word(plane, i, normed(v[k], scale, g[k]));
        }
        for (int i = threadIdx.x + HELD * STREAM_THREADS; i < id / 4; i += STREAM_THREADS)
            quantize_word(plane, i, normed(load4_fresh(x + 4 * i), scale, load4(w + 4 * i)));
    }
};

// The plane that another kernel wrote (q8.cuh), in this order of values.
BODY void copy_plane(const Plane& plane, const u8* q8, int id) {
    for (int i = threadIdx.x; i < id / 4; i += STREAM_THREADS) {
        const u8* block = q8 + i / 8 * Q8_BYTES;
        const u32* words = reinterpret_cast<const u32*>(block);
        const u32 word = __ldcg(words + 1 + i % 8), d = __ldcg(words);
        plane.write(i, word, __half2float(__ushort_as_half(static_cast<u16>(d))));
    }
}

// A block's values, a whole number of runs of 32, the first of them value `first` of the row.
BODY void write_plane(u8* quads, const float* values, int first, int count) {
    const int words = count / 4;
    for (int i = threadIdx.x; i / WARP * WARP < words; i += STREAM_THREADS) {
        const bool real = i < words;
        quantize_word({quads}, first / 4 + i, real ? load4(values + 4 * i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f), real);
    }
}

BODY void copy_quads(const Plane& plane, const u8* quads, int id) {
    const uint4* from = reinterpret_cast<const uint4*>(quads);
    uint4* to = reinterpret_cast<uint4*>(plane.quads);
    const int chunks = quads_of(id) * (Plane::BYTES / 16);
#pragma unroll 5
    for (int i = threadIdx.x; i < chunks; i += STREAM_THREADS) to[i] = __ldcg(from + i);
}
