// The core of decode's matmuls: a persistent block streams its share of a matrix's rows through shared memory and
// multiplies it, in integers (dp4a), with one token's q8 activations, which lie in shared memory as well.
//
// The unit of work is a pair of rows: neighbours, a RoPE pair, or gate and up. A warp takes four superblocks (a *quad*)
// of both rows at once, an *item*, half a warp a row, four lanes a superblock. It has STAGES items under way in a ring
// of its own. Weights depend on no kernel, so the ring is filled before the wait for the previous kernel.
//
// Lane l = 4 * superblock + j of a half owns 64 weights, 64j to 64j + 63, as four chunks of 16: t = 0, 1 are the low
// nibbles of its 32 bytes, t = 2, 3 the high ones.
#include "async.cuh"
#include "q8.cuh"

inline constexpr int STREAM_WARPS = 16, STREAM_THREADS = STREAM_WARPS * WARP;
inline constexpr int SUPER = 256;  // weights of a superblock
inline constexpr int QUAD = 4;  // superblocks
inline constexpr int LANES = 16;  // of a row
// Bytes of a warp's ring, and how many items of each type it holds. STREAM_SMALL: for 99 KB of shared memory a block.
#ifdef STREAM_SMALL
inline constexpr int RING = 3456, Q4_STAGES = 3, Q6_STAGES = 2;
#else
inline constexpr int RING = 5040, Q4_STAGES = 4, Q6_STAGES = 3;
#endif

// The activations in shared memory, quad by quad, ready for the lanes:
//   4 x 320  chunk t of the lanes, 16 bytes each, and 64 unused: so two chunks of four lanes meet in no bank
//   256      per lane: d of chunks 0 and 1, d / 16 of chunks 2 and 3, d * (sum of chunks 0 and 1), of 2 and 3
//   256      per lane: d * sum of each chunk
struct Plane {
    static constexpr int CHUNKS = LANES * 16 + 64, SCALES = 4 * CHUNKS, SUMS = SCALES + LANES * 16;
    static constexpr int BYTES = SUMS + LANES * 16;  // a quad
    u8* quads;

    // Word i of the row, four values with scale d; a warp's lanes hold consecutive words, and all of them call.
    BODY void write(int i, u32 word, float d, bool real = true) const {
        int sum = __dp4a(static_cast<int>(word), 0x01010101, 0);
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        const int both = sum + __shfl_xor_sync(ALL_LANES, sum, 4);
        if (!real) return;
        const int l = i / 16 % LANES, t = i / 4 % 4, k = i % 4;
        u8* quad = quads + i / 256 * BYTES + 16 * l;
        *reinterpret_cast<u32*>(quad + t * CHUNKS + 4 * k) = word;
        if (k == 0) reinterpret_cast<float*>(quad + SUMS)[t] = d * static_cast<float>(sum);
        if (k != 0 || t % 2 != 0) return;
        float* scales = reinterpret_cast<float*>(quad + SCALES);
        scales[t / 2] = t == 0 ? d : d / 16.0f;
        scales[2 + t / 2] = d * static_cast<float>(both);
    }
};

BODY int dot16(uint4 w, uint4 x, int sum) {
    sum = __dp4a(static_cast<int>(w.x), static_cast<int>(x.x), sum);
    sum = __dp4a(static_cast<int>(w.y), static_cast<int>(x.y), sum);
    sum = __dp4a(static_cast<int>(w.z), static_cast<int>(x.z), sum);
    return __dp4a(static_cast<int>(w.w), static_cast<int>(x.w), sum);
}
BODY uint4 masked(uint4 w, u32 mask) { return make_uint4(w.x & mask, w.y & mask, w.z & mask, w.w & mask); }
BODY uint4 shifted(uint4 w, int bits) { return make_uint4(w.x >> bits, w.y >> bits, w.z >> bits, w.w >> bits); }

// four unsigned bytes times four signed ones
BODY int dp4a_us(u32 w, u32 x, int sum) {
#ifdef CUDA_ON_CPU
    return __dp4a(static_cast<int>(w & 0x7f7f7f7fu), static_cast<int>(x), sum) +
           128 * __dp4a(static_cast<int>(w >> 7 & 0x01010101u), static_cast<int>(x), 0);
#else
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(w), "r"(x));
    return sum;
#endif
}
BODY int dot16_us(uint4 w, uint4 x, int sum) {
    return dp4a_us(w.w, x.w, dp4a_us(w.z, x.z, dp4a_us(w.y, x.y, dp4a_us(w.x, x.x, sum))));
}
BODY float4 as_floats(uint4 v) {
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
BODY float2 halves(u32 v) { return __half22float2(*reinterpret_cast<const __half2*>(&v)); }

// A type of weight, as items pass through the ring:
//   STAGE, STAGES  bytes of an item, items in a ring
//   row_bytes      of a row of so many superblocks
//   Source         what a warp copies: `begin` a unit at a quad, `copy` the quad of both rows, `advance` to the next
//   dot            a lane's part of an item's products; x: the quad of the plane
//   total          both products, in every lane
struct StreamQ4K {  // 144 bytes a superblock, as stored: 16 bytes of scales, 128 of nibbles
    static constexpr int BLOCK = 144, ROW = QUAD * BLOCK, STAGE = 2 * ROW, STAGES = Q4_STAGES;
    static BODY size_t row_bytes(int superblocks) { return static_cast<size_t>(superblocks) * BLOCK; }

    // Half a warp a row.
    struct Source {
        const u8* from;  // this lane's first chunk of the quad
        int chunks;  // of the row, from there on
        BODY void begin(const u8* row, size_t delta, int quad, int superblocks, int lane) {
            from = row + (lane / LANES ? delta : 0) + quad * ROW + 16 * (lane % LANES);
            chunks = (superblocks - quad * QUAD) * (BLOCK / 16) - lane % LANES;
        }
        BODY void advance() { from += ROW, chunks -= ROW / 16; }
        BODY void copy(Shared to, int, int lane) const {
            to += lane / LANES * ROW + 16 * (lane % LANES);
            if (chunks > 0) copy_async<16>(to, from);
            if (chunks > 16) copy_async<16>(to + 256, from + 256);
            if (chunks > 32 && lane % LANES < ROW / 16 - 32) copy_async<16>(to + 512, from + 512);
        }
    };

    typedef float Sum;  // of the half's row
    static BODY void dot(Sum& sum, Shared stage, Shared x, int lane, int superblocks_left) {
        const int l = lane % LANES;
        if (l / 4 < superblocks_left) sum += dot_half(stage + lane / LANES * ROW, x + 16 * l, l);
    }
    static BODY float2 total(Sum sum) {
#pragma unroll
        for (int k = LANES / 2; k > 0; k /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, k);
        return make_float2(__shfl_sync(ALL_LANES, sum, 0), __shfl_sync(ALL_LANES, sum, LANES));
    }

    static BODY float dot_half(Shared row, Shared x, int l) {
        const int j = l % 4;
        const Shared block = row + l / 4 * BLOCK, q = block + 16 + 32 * j;
        const uint4 head = shared_load16(block), q0 = shared_load16(q), q1 = shared_load16(q + 16);
        int low = dot16(masked(q0, 0x0f0f0f0fu), shared_load16(x), 0);
        low = dot16(masked(q1, 0x0f0f0f0fu), shared_load16(x + Plane::CHUNKS), low);
        int high = dot16_us(masked(q0, 0xf0f0f0f0u), shared_load16(x + 2 * Plane::CHUNKS), 0);  // 16 times
        high = dot16_us(masked(q1, 0xf0f0f0f0u), shared_load16(x + 3 * Plane::CHUNKS), high);
        const float4 scale = as_floats(shared_load16(x + Plane::SCALES));
        // Six bits each of scale and min of runs 2j and 2j + 1 (see k_scales in quants.cuh), as four bytes at once.
        const u32 pick = j % 2 ? 0x7632u : 0x5410u;
        const u32 six = __byte_perm(head.y, head.z, pick), four = __byte_perm(head.w, head.w >> 4, pick);
        const u32 v = j < 2 ? six & 0x3f3f3f3fu : (four & 0x0f0f0f0fu) | (six >> 2 & 0x30303030u);
        const float2 d = halves(head.x);
        const float product = scale.x * static_cast<float>(low * static_cast<int>(v & 0xffu)) +
                              scale.y * static_cast<float>(high * static_cast<int>(v >> 8 & 0xffu));
        const float offset =
            scale.z * static_cast<float>(v >> 16 & 0xffu) + scale.w * static_cast<float>(v >> 24);
        return d.x * product - d.y * offset;
    }
};

struct StreamQ6K {  // row planes (quants.cuh): nibbles, upper bits, scales, d
    static constexpr int QL = 128, QH = 64, SC = 16, D = 2;  // bytes a superblock
    static constexpr int NIBBLES = 0, UPPER = 2 * QUAD * QL, SCALES = UPPER + 2 * QUAD * QH;  // of both rows
    static constexpr int DS = SCALES + 2 * QUAD * SC, STAGE = DS + 2 * QUAD * D, STAGES = Q6_STAGES;
    static BODY size_t row_bytes(int superblocks) {
        return static_cast<size_t>(superblocks) * (QL + QH + SC) + (superblocks * D + 15) / 16 * 16;
    }

    // Nibbles by the whole warp, row after row; the rest half a warp a row.
    struct Source {
        const u8* row;
        size_t delta;
        int quad, left;  // superblocks of the row, from the quad on
        BODY void begin(const u8* at, size_t to_second, int first, int superblocks, int) {
            row = at, delta = to_second, quad = first, left = superblocks - first * QUAD;
        }
        BODY void advance() { quad++, left -= QUAD; }
        BODY void copy(Shared to, int superblocks, int lane) const {
            const int half = lane / LANES, l = lane % LANES, sc = superblocks * (QL + QH);
            const u8 *nibbles = row + (quad * (QUAD * QL) + 16 * lane), *mine = half ? row + delta : row;
            if (lane < left * (QL / 16)) {
                copy_async<16>(to + 16 * lane, nibbles);
                copy_async<16>(to + QUAD * QL + 16 * lane, nibbles + delta);
            }
            if (l < left * (QH / 16))
                copy_async<16>(to + UPPER + 16 * lane, mine + (superblocks * QL + quad * (QUAD * QH) + 16 * l));
            if (l < min(left, QUAD))
                copy_async<16>(to + SCALES + half * (QUAD * SC) + 16 * l, mine + (sc + quad * (QUAD * SC) + 16 * l));
            if (l == QUAD)
                copy_async<8>(to + DS + half * (QUAD * D), mine + (sc + superblocks * SC + quad * (QUAD * D)));
        }
    };

    typedef float2 Sum;  // of both rows
    // Lane s = 2j + h of a superblock has chunks t = h and 2 + h of the plane's lane 4 * superblock + j.
    static BODY void dot(Sum& sum, Shared stage, Shared x, int lane, int superblocks_left) {
        if (lane / 8 >= superblocks_left) return;
        const int h = lane % 2;
        x += 16 * (lane / 2);
        const uint4 low = shared_load16(x + h * Plane::CHUNKS), high = shared_load16(x + (2 + h) * Plane::CHUNKS);
        const uint2 d = shared_load8(x + Plane::SCALES);
        const float d_low = __uint_as_float(d.x), d_high = 16.0f * __uint_as_float(d.y);
        const float s_low = -32.0f * __uint_as_float(shared_load4(x + Plane::SUMS + 4 * h));
        const float s_high = -32.0f * __uint_as_float(shared_load4(x + Plane::SUMS + 8 + 4 * h));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint4 q = shared_load16(stage + r * (QUAD * QL) + 16 * lane);
            const uint2 bits = shared_load8(stage + UPPER + r * (QUAD * QH) + 8 * lane);
            const u32 sc = shared_load2(stage + SCALES + r * (QUAD * SC) + 2 * lane);
            const u16 dw = shared_load2(stage + DS + r * (QUAD * D) + lane / 8 * D);
            // (q - 32) · x = q · x - 32 · sum of x
            const float a = fmaf(d_low, static_cast<float>(dot16(six(q, bits.x), low, 0)), s_low);
            const float b = fmaf(d_high, static_cast<float>(dot16(six(shifted(q, 4), bits.y), high, 0)), s_high);
            const float product = fmaf(static_cast<float>(static_cast<i8>(sc)), a, static_cast<float>(static_cast<i8>(sc >> 8)) * b);
            (r ? sum.y : sum.x) += __half2float(__ushort_as_half(dw)) * product;
        }
    }
    static BODY float2 total(Sum sum) { return make_float2(warp_sum(sum.x), warp_sum(sum.y)); }

    static BODY u32 upper(u32 bits, int k) { return (k < 2 ? bits << (4 - 2 * k) : bits >> (2 * k - 4)) & 0x30303030u; }
    static BODY uint4 six(uint4 w, u32 bits) {
        w = masked(w, 0x0f0f0f0fu);
        return make_uint4(w.x | upper(bits, 0), w.y | upper(bits, 1), w.z | upper(bits, 2), w.w | upper(bits, 3));
    }
};
static_assert(StreamQ4K::STAGES * StreamQ4K::STAGE <= RING && StreamQ6K::STAGES * StreamQ6K::STAGE <= RING, "ring");

// Some rows of one type. Unit u is row first(u) and the one delta bytes behind it: with half = 1 and step = 2 neighbours,
// with half a head and step a head RoPE pairs, with half = step = 1 and delta to another matrix gate and up.
struct Rows {
    const u8* w;
    size_t delta;  // bytes
    int type, half, step;  // type: 4 or 6
    int from, to;  // units of this block
    BODY int first(int unit) const { return unit / half * step + unit % half; }
};

struct Stream {
    Plane plane;
    Shared ring;  // this warp's
    float (*part)[2][2];  // per warp: sums of the unit at its beginning and at its end, when it has only a part of it
    int superblocks, quads, warp, lane;

    BODY int item(const Rows& rows, int of_warp) const { return (rows.to - rows.from) * quads * of_warp / STREAM_WARPS; }

    // The copying side: unit by unit, quad by quad, STAGES items ahead of the products.
    template <class T> struct Ahead {
        typename T::Source source;
        int unit, quads_left, items_left;
    };

    template <class T> BODY void enter(Ahead<T>& ahead, const Rows& rows, int quad) const {
        const u8* row = rows.w + T::row_bytes(superblocks) * rows.first(ahead.unit);
        ahead.source.begin(row, rows.delta, quad, superblocks, lane);
        ahead.quads_left = quads - quad;
    }

    template <class T> BODY Ahead<T> ahead_at(const Rows& rows, int at, int end) const {
        Ahead<T> ahead;
        ahead.unit = rows.from + at / quads, ahead.items_left = end - at;
        enter(ahead, rows, at % quads);
        return ahead;
    }

    template <class T> BODY void copy(Ahead<T>& ahead, const Rows& rows, Shared stage) const {
        if (ahead.items_left > 0) {
            ahead.source.copy(stage, superblocks, lane);
            ahead.items_left--;
            ahead.source.advance();
            if (--ahead.quads_left == 0) ahead.unit++, enter(ahead, rows, 0);
        }
        close_group();
    }

    template <class T> BODY void prime(const Rows& rows) const {
        Ahead<T> ahead = ahead_at<T>(rows, item(rows, warp), item(rows, warp + 1));
#pragma unroll
        for (int i = 0; i < T::STAGES; i++) copy(ahead, rows, ring + i * T::STAGE);
    }

    // After prime, once the plane is there. `finish(unit, a, b)`: a whole warp is given a unit's two products. The
    // block's threads meet in here.
    template <class T, class Finish> BODY void run(const Rows& rows, const Finish& finish) const {
        const int begin = item(rows, warp), end = item(rows, warp + 1);
        const Shared first = shared_address(plane.quads), last = ring + T::STAGES * T::STAGE;
        Ahead<T> ahead = ahead_at<T>(rows, begin + T::STAGES, end);
        int unit = rows.from + begin / quads, quad = begin % quads;
        Shared stage = ring, x = first + quad * Plane::BYTES;
        bool whole = quad == 0;
        typename T::Sum sum = {};
        for (int left = end - begin; left > 0;) {
            wait_for_groups<T::STAGES - 1>();
            __syncwarp();
            T::dot(sum, stage, x, lane, superblocks - quad * QUAD);
            __syncwarp();
            copy(ahead, rows, stage);
            stage += T::STAGE;
            if (stage == last) stage = ring;
            left--, quad++, x += Plane::BYTES;
            if (quad < quads && left > 0) continue;
            hand_over(T::total(sum), whole, quad == quads, unit, finish);
            if (quad < quads) break;
            unit++, quad = 0, x = first, whole = true, sum = {};
        }
        __syncthreads();
        if (end > begin && whole && quad > 0 && quad < quads) gather(rows, unit, end, finish);
        __syncthreads();
    }

    // The end of a unit, or of the warp's share of it.
    template <class Finish>
    BODY void hand_over(float2 sum, bool begun, bool ended, int unit, const Finish& finish) const {
        if (begun && ended)
            finish(unit, sum.x, sum.y);
        else if (lane == 0)
            part[warp][begun][0] = sum.x, part[warp][begun][1] = sum.y;  // [0]: begun by an earlier warp
    }

    // The unit that this warp began and later ones went on with: their sums in warp order.
    template <class Finish> BODY void gather(const Rows& rows, int unit, int end, const Finish& finish) const {
        const int last = (unit + 1 - rows.from) * quads;
        float a = part[warp][1][0], b = part[warp][1][1];
        for (int w = warp + 1; end < last; w++) {
            const int next = item(rows, w + 1);
            if (next > end) a += part[w][0][0], b += part[w][0][1];
            end = next;
        }
        finish(unit, a, b);
    }

    // Type by number, so that q, k and v may differ.
    BODY void prime(const Rows& rows) const { rows.type == 4 ? prime<StreamQ4K>(rows) : prime<StreamQ6K>(rows); }
    template <class Finish> BODY void run(const Rows& rows, const Finish& finish) const {
        rows.type == 4 ? run<StreamQ4K>(rows, finish) : run<StreamQ6K>(rows, finish);
    }
};

// --- the activations, by a whole block --------------------------------------------------------------------------------

// Word i of the row; eight lanes share a scale.
BODY void quantize_word(const Plane& plane, int i, float4 v, bool real = true) {
    float most = abs_max4(v);
#pragma unroll
    for (int k = 1; k < 8; k *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, k));
    const float d = most / 127.0f;
    int sum = 0;
    const u32 word = quantize4(v, d != 0.0f ? 1.0f / d : 0.0f, sum);
    plane.write(i, word, __half2float(__float2half(d)), real);
}

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

BODY float sum_squares(float4 v, float sum) {
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
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
            if (i < id / 4) quantize_word(plane, i, scaled_by(v[k], scale, g[k]));
        }
        for (int i = threadIdx.x + HELD * STREAM_THREADS; i < id / 4; i += STREAM_THREADS)
            quantize_word(plane, i, scaled_by(load4_fresh(x + 4 * i), scale, load4(w + 4 * i)));
    }
    static BODY float4 scaled_by(float4 v, float scale, float4 g) {
        return make_float4(v.x * scale * g.x, v.y * scale * g.y, v.z * scale * g.z, v.w * scale * g.w);
    }
};

// The plane that another kernel wrote (q8.cuh), in this order of values.
BODY void copy_plane(const Plane& plane, const u8* q8, int id) {
    for (int i = threadIdx.x; i < id / 4; i += STREAM_THREADS) {
        const u8* block = q8 + i / 8 * Q8_BYTES;
        const u32 word = __ldcg(reinterpret_cast<const u32*>(block + 4) + i % 8), d = __ldcg(reinterpret_cast<const u32*>(block));
        plane.write(i, word, __half2float(__ushort_as_half(static_cast<u16>(d))));
    }
}

// --- a plane from one stream kernel to the next -----------------------------------------------------------------------

// Blocks share `n` values as evenly as they can, so some runs of 32, which have one scale, are shared by blocks. Whole
// runs are handed over quantized; the values of a shared one as f32 in `edges`, and whoever reads the plane quantizes it.
struct Handed {
    u8* quads;
    float* edges;
};

BODY int share(int n, int block) { return n * block / gridDim.x; }

// This block's values, from share(n, block) on.
BODY void hand_over_plane(const Handed& to, const float* values, int n) {
    const int first = share(n, blockIdx.x), last = share(n, blockIdx.x + 1);
    const int from = first / Q8_VALUES * 8, end = (last + Q8_VALUES - 1) / Q8_VALUES * 8;  // words of the runs touched
    for (int i = from + threadIdx.x; (i - from) / WARP * WARP < end - from; i += STREAM_THREADS) {
        const int at = i / 8 * Q8_VALUES;
        const bool whole = at >= first && at + Q8_VALUES <= last;
        float v[4] = {};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const bool mine = 4 * i + k >= first && 4 * i + k < last;
            if (mine) v[k] = values[4 * i + k - first];
            if (mine && !whole) to.edges[4 * i + k] = v[k];
        }
        quantize_word({to.quads}, i, make_float4(v[0], v[1], v[2], v[3]), whole);
    }
}

// The run that the boundary before `block` divides, if it is the first to divide it; else -1.
BODY int shared_run(int n, int block) {
    const int at = share(n, block), before = share(n, block - 1);
    const bool seen = before % Q8_VALUES != 0 && before / Q8_VALUES == at / Q8_VALUES;
    return at % Q8_VALUES == 0 || seen ? -1 : at / Q8_VALUES;
}

BODY void take_plane(const Plane& plane, const u8* quads, const float* edges, int n) {
    const Shared to = shared_address(plane.quads);
    for (int i = threadIdx.x; i < (n + QUAD * SUPER - 1) / (QUAD * SUPER) * (Plane::BYTES / 16); i += STREAM_THREADS)
        copy_async<16>(to + 16 * i, quads + 16 * i);
    close_group();
    const int words = (gridDim.x - 1) * 8;  // eight threads a boundary
    float4 v[HELD];
    int word[HELD];
    for (int base = 0; base < words; base += HELD * STREAM_THREADS) {
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int i = base + k * STREAM_THREADS + threadIdx.x, run = i < words ? shared_run(n, 1 + i / 8) : -1;
            word[k] = run < 0 ? -1 : 8 * run + i % 8;
            v[k] = run < 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : load4_fresh(edges + 4 * word[k]);
        }
        wait_for_groups<0>();
        __syncthreads();  // of all threads: the copies lie where these words go
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (base + k * STREAM_THREADS + threadIdx.x / WARP * WARP < words)
                quantize_word(plane, max(word[k], 0), v[k], word[k] >= 0);
    }
    wait_for_groups<0>();
}
