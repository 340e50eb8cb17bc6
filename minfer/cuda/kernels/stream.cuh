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
inline constexpr int RING = 3456, Q4_STAGES = 1, Q6_STAGES = 2;
#else
inline constexpr int RING = 6912, Q4_STAGES = 3, Q6_STAGES = 4;
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
//   SPAN           superblocks of an item's row, a multiple of QUAD
//   STAGE, STAGES  bytes of an item, items in a ring
//   row_bytes      of a row of so many superblocks
//   Source         what a warp copies: `begin` a unit at an item, `copy` both its rows, `advance` to the next
//   dot            adds a lane's part of both rows' products; x: the item's first quad of the plane
struct StreamQ4K {  // 144 bytes a superblock, as stored: 16 bytes of scales, 128 of nibbles
    static constexpr int SPAN = 8, BLOCK = 144, ROW = SPAN * BLOCK, STAGE = 2 * ROW, STAGES = Q4_STAGES;
    static BODY size_t row_bytes(int superblocks) { return static_cast<size_t>(superblocks) * BLOCK; }

    struct Source {
        const u8* from;  // this lane's first chunk of the item
        size_t delta;
        int chunks;  // of the row, from there on
        BODY void begin(const u8* row, size_t to_second, int item, int superblocks, int lane) {
            from = row + item * ROW + 16 * lane, delta = to_second;
            chunks = (superblocks - item * SPAN) * (BLOCK / 16) - lane;
        }
        BODY void advance() { from += ROW, chunks -= ROW / 16; }
        BODY void copy(Shared to, int, int lane) const {
            to += 16 * lane;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u8* row = r ? from + delta : from;
                if (chunks > 0) copy_async<16>(to + r * ROW, row);
                if (chunks > 32) copy_async<16>(to + r * ROW + 512, row + 512);
                if (chunks > 64 && lane < ROW / 16 - 64) copy_async<16>(to + r * ROW + 1024, row + 1024);
            }
        }
    };

    // Four lanes a superblock, both rows.
    static BODY void dot(float2& sum, Shared stage, Shared x, int lane, int superblocks_left) {
        if (lane / 4 >= superblocks_left) return;
        x += lane / LANES * Plane::BYTES + 16 * (lane % LANES);
        uint4 v[4];
#pragma unroll
        for (int t = 0; t < 4; t++) v[t] = shared_load16(x + t * Plane::CHUNKS);
        const float4 scale = as_floats(shared_load16(x + Plane::SCALES));
        const Shared block = stage + lane / 4 * BLOCK;
        sum.x += dot_row(block, v, scale, lane % 4);
        sum.y += dot_row(block + ROW, v, scale, lane % 4);
    }

    static BODY float dot_row(Shared block, const uint4 (&x)[4], float4 scale, int j) {
        const Shared q = block + 16 + 32 * j;
        const uint4 head = shared_load16(block), q0 = shared_load16(q), q1 = shared_load16(q + 16);
        const int low = dot16(masked(q1, 0x0f0f0f0fu), x[1], dot16(masked(q0, 0x0f0f0f0fu), x[0], 0));
        const int high = dot16_us(masked(q1, 0xf0f0f0f0u), x[3], dot16_us(masked(q0, 0xf0f0f0f0u), x[2], 0));  // 16 times
        // Six bits each of scale and min of runs 2j and 2j + 1 (see k_scales in quants.cuh), as four bytes at once.
        const u32 pick = j % 2 ? 0x7632u : 0x5410u;
        const u32 six = __byte_perm(head.y, head.z, pick), four = __byte_perm(head.w, head.w >> 4, pick);
        const u32 v = j < 2 ? six & 0x3f3f3f3fu : (four & 0x0f0f0f0fu) | (six >> 2 & 0x30303030u);
        const float2 d = halves(head.x);
        const float product = scale.x * static_cast<float>(low * static_cast<int>(v & 0xffu)) +
                              scale.y * static_cast<float>(high * static_cast<int>(v >> 8 & 0xffu));
        const float offset = scale.z * static_cast<float>(v >> 16 & 0xffu) + scale.w * static_cast<float>(v >> 24);
        return d.x * product - d.y * offset;
    }
};

struct StreamQ6K {  // row planes (quants.cuh): nibbles, upper bits, scales, d
    static constexpr int QL = 128, QH = 64, SC = 16, D = 2;  // bytes a superblock
    static constexpr int NIBBLES = 0, UPPER = 2 * QUAD * QL, SCALES = UPPER + 2 * QUAD * QH;  // of both rows
    static constexpr int SPAN = QUAD, DS = SCALES + 2 * QUAD * SC, STAGE = DS + 2 * QUAD * D, STAGES = Q6_STAGES;
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

    // Lane s = 2j + h of a superblock, eight of them, has chunks t = h and 2 + h of the plane's lane 4 * superblock + j.
    static BODY void dot(float2& sum, Shared stage, Shared x, int lane, int superblocks_left) {
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
    int superblocks, warp, lane;

    template <class T> BODY int of_unit() const { return (superblocks + T::SPAN - 1) / T::SPAN; }  // items
    template <class T> BODY int item(const Rows& rows, int of_warp) const {
        return (rows.to - rows.from) * of_unit<T>() * of_warp / STREAM_WARPS;
    }

    // The copying side: unit by unit, item by item, STAGES ahead of the products.
    template <class T> struct Ahead {
        typename T::Source source;
        int unit, left_of_unit, left;
    };

    template <class T> BODY void enter(Ahead<T>& ahead, const Rows& rows, int item) const {
        const u8* row = rows.w + T::row_bytes(superblocks) * rows.first(ahead.unit);
        ahead.source.begin(row, rows.delta, item, superblocks, lane);
        ahead.left_of_unit = of_unit<T>() - item;
    }

    template <class T> BODY Ahead<T> ahead_at(const Rows& rows, int at, int end) const {
        Ahead<T> ahead;
        ahead.unit = rows.from + at / of_unit<T>(), ahead.left = end - at;
        enter(ahead, rows, at % of_unit<T>());
        return ahead;
    }

    template <class T> BODY void copy(Ahead<T>& ahead, const Rows& rows, Shared stage) const {
        if (ahead.left > 0) {
            ahead.source.copy(stage, superblocks, lane);
            ahead.left--;
            ahead.source.advance();
            if (--ahead.left_of_unit == 0) ahead.unit++, enter(ahead, rows, 0);
        }
        close_group();
    }

    template <class T> BODY void prime(const Rows& rows) const {
        Ahead<T> ahead = ahead_at<T>(rows, item<T>(rows, warp), item<T>(rows, warp + 1));
#pragma unroll
        for (int i = 0; i < T::STAGES; i++) copy(ahead, rows, ring + i * T::STAGE);
    }

    // After prime, once the plane is there. `finish(unit, a, b)`: a whole warp is given a unit's two products. The
    // block's threads meet in here.
    template <class T, class Finish> BODY void run(const Rows& rows, const Finish& finish) const {
        const int begin = item<T>(rows, warp), end = item<T>(rows, warp + 1), per = of_unit<T>();
        constexpr int step = T::SPAN / QUAD * Plane::BYTES;
        const Shared first = shared_address(plane.quads), last = ring + T::STAGES * T::STAGE;
        Ahead<T> ahead = ahead_at<T>(rows, begin + T::STAGES, end);
        int unit = rows.from + begin / per, at = begin % per;
        Shared stage = ring, x = first + at * step;
        bool whole = at == 0;
        float2 sum = {0.0f, 0.0f};
        for (int left = end - begin; left > 0;) {
            wait_for_groups<T::STAGES - 1>();
            __syncwarp();
            T::dot(sum, stage, x, lane, superblocks - at * T::SPAN);
            __syncwarp();
            copy(ahead, rows, stage);
            stage += T::STAGE;
            if (stage == last) stage = ring;
            left--, at++, x += step;
            if (at < per && left > 0) continue;
            hand_over(sum, whole, at == per, unit, finish);
            if (at < per) break;
            unit++, at = 0, x = first, whole = true, sum = {0.0f, 0.0f};
        }
        __syncthreads();
        if (end > begin && whole && at > 0 && at < per) gather<T>(rows, unit, end, finish);
        __syncthreads();
    }

    // The end of a unit, or of the warp's share of it.
    template <class Finish>
    BODY void hand_over(float2 sum, bool begun, bool ended, int unit, const Finish& finish) const {
        sum = make_float2(warp_sum(sum.x), warp_sum(sum.y));
        if (begun && ended)
            finish(unit, sum.x, sum.y);
        else if (lane == 0)
            part[warp][begun][0] = sum.x, part[warp][begun][1] = sum.y;  // [0]: begun by an earlier warp
    }

    // The unit that this warp began and later ones went on with: their sums in warp order.
    template <class T, class Finish>
    BODY void gather(const Rows& rows, int unit, int end, const Finish& finish) const {
        const int last = (unit + 1 - rows.from) * of_unit<T>();
        float a = part[warp][1][0], b = part[warp][1][1];
        for (int w = warp + 1; end < last; w++) {
            const int next = item<T>(rows, w + 1);
            if (next > end) a += part[w][0][0], b += part[w][0][1];
            end = next;
        }
        finish(unit, a, b);
    }

    // The units that begin among this warp's items, counted from rows.from: x up to y - 1.
    BODY int2 begun(const Rows& rows) const {
        return rows.type == 4 ? begun<StreamQ4K>(rows) : begun<StreamQ6K>(rows);
    }
    template <class T> BODY int2 begun(const Rows& rows) const {
        const int per = of_unit<T>();
        return {(item<T>(rows, warp) + per - 1) / per, (item<T>(rows, warp + 1) + per - 1) / per};
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
    const int chunks = (id + QUAD * SUPER - 1) / (QUAD * SUPER) * (Plane::BYTES / 16);
#pragma unroll 5
    for (int i = threadIdx.x; i < chunks; i += STREAM_THREADS) to[i] = __ldcg(from + i);
}
