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

// A glu's blocks share its rows by fours. The runs of 32 at their borders, which two or more blocks have rows of, are left
// to the next kernel, in f32 at the rows' places behind the plane: so no block has more rows than another by a run.
inline constexpr int BORDER = 4;
BODY int border(int rows, int block) { return rows / BORDER * block / static_cast<int>(gridDim.x) * BORDER; }
BODY float* shared_runs(u8* quads, int rows) {
    return reinterpret_cast<float*>(quads + quads_of(rows) * Plane::BYTES);
}

// Of the run at the end of a block: its first row; -1 if the block ends with a run, or ends in the run of the one before.
BODY int shared_run(int rows, int block) {
    const int end = border(rows, block + 1), begin = border(rows, block);
    return end % Q8_VALUES == 0 || (begin % Q8_VALUES != 0 && begin / Q8_VALUES == end / Q8_VALUES)
               ? -1
               : end / Q8_VALUES * Q8_VALUES;
}

// A block's values, the first of them value `first` of the row: whole runs into the plane, the others as they are.
BODY void write_shared_plane(u8* quads, const float* values, int first, int last, int rows) {
    const int from = min(last, (first + Q8_VALUES - 1) / Q8_VALUES * Q8_VALUES), to = max(from, last / Q8_VALUES * Q8_VALUES);
    write_plane(quads, values + (from - first), from, to - from);
    float* left = shared_runs(quads, rows);
    for (int row = first + threadIdx.x; row < last; row += STREAM_THREADS)
        if (row < from || row >= to) left[row] = values[row - first];
}

BODY void copy_quads(const Plane& plane, const u8* quads, int id) {
    const uint4* from = reinterpret_cast<const uint4*>(quads);
    uint4* to = reinterpret_cast<uint4*>(plane.quads);
    const int chunks = quads_of(id) * (Plane::BYTES / 16);
#pragma unroll 5
    for (int i = threadIdx.x; i < chunks; i += STREAM_THREADS) to[i] = __ldcg(from + i);
}

// The plane of a glu whose grid was this kernel's. What two blocks shared is asked for first: it has further to go.
BODY void copy_shared_quads(const Plane& plane, u8* quads, int id) {
    const float* left = shared_runs(quads, id);
    const int words = (gridDim.x - 1) * (Q8_VALUES / 4);
    for (int begin = 0; begin == 0 || begin < words; begin += HELD * STREAM_THREADS) {
        int row[HELD];
        float4 v[HELD];
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int i = begin + k * STREAM_THREADS + threadIdx.x, run = i < words ? shared_run(id, i / 8) : -1;
            row[k] = run < 0 ? -1 : run + 4 * (i % 8);
            v[k] = row[k] < 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : load4_fresh(left + row[k]);
        }
        if (begin == 0) copy_quads(plane, quads, id);
        __syncthreads();  // these runs' places have been copied as well
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (begin + k * STREAM_THREADS < words) quantize_word(plane, max(row[k], 0) / 4, v[k], row[k] >= 0);
    }
}
