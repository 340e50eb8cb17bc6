// The types of weight that stream: how an item of two rows comes into shared memory, and its products with the plane.
#include "stream_plane.cuh"

// Bytes of a warp's ring (kernels.py: stream_ring): items of either type, as many as fit.
#ifndef STREAM_RING
#define STREAM_RING 9216
#endif
inline constexpr int RING = STREAM_RING;

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
//   copy           a unit's item, both its rows, by a warp
//   dot            a lane's part of both rows' products; x: the item's first quad of the plane
struct StreamQ4K {  // 144 bytes a superblock, as stored: 16 bytes of scales, 128 of nibbles
    static constexpr int SPAN = 8, BLOCK = 144, ROW = SPAN * BLOCK, STAGE = 2 * ROW, STAGES = RING / STAGE;
    static BODY size_t row_bytes(int superblocks) { return static_cast<size_t>(superblocks) * BLOCK; }

    static BODY void copy(Shared to, const u8* row, size_t delta, int item, int superblocks, int lane) {
        row += item * ROW + 16 * lane, to += 16 * lane;
        const int chunks = (superblocks - item * SPAN) * (BLOCK / 16) - lane;  // of the row, from this lane's first on
#pragma unroll
        for (int r = 0; r < 2; r++, row += delta, to += ROW) {
            if (chunks > 0) copy_async<16>(to, row);
            if (chunks > 32) copy_async<16>(to + 512, row + 512);
            if (chunks > 64 && lane < ROW / 16 - 64) copy_async<16>(to + 1024, row + 1024);
        }
    }

    // Four lanes a superblock, both rows.
    static BODY float2 dot(Shared stage, Shared x, int lane, int superblocks_left) {
        if (lane / 4 >= superblocks_left) return {0.0f, 0.0f};
        x += lane / Plane::LANES * Plane::BYTES + 16 * (lane % Plane::LANES);
        uint4 v[4];
#pragma unroll
        for (int t = 0; t < 4; t++) v[t] = shared_load16(x + t * Plane::CHUNKS);
        const float4 scale = as_floats(shared_load16(x + Plane::SCALES));
        const Shared block = stage + lane / 4 * BLOCK;
        return {dot_row(block, v, scale, lane % 4), dot_row(block + ROW, v, scale, lane % 4)};
    }

    static BODY float dot_row(Shared block, const uint4 (&x)[4], float4 scale, int j) {
        const Shared q = block + 16 + 32 * j;
        const uint4 head = shared_load16(block), q0 = shared_load16(q), q1 = shared_load16(q + 16);
        const int low = dot16(masked(q1, 0x0f0f0f0fu), x[1], dot16(masked(q0, 0x0f0f0f0fu), x[0], 0));
        const int high = dot16_us(masked(q1, 0xf0f0f0f0u), x[3], dot16_us(masked(q0, 0xf0f0f0f0u), x[2], 0));
        // Six bits each of scale and min of runs 2j and 2j + 1 (see k_scales in quants.cuh), as four bytes at once.
        const u32 pick = j % 2 ? 0x7632u : 0x5410u;
        const u32 six = __byte_perm(head.y, head.z, pick), four = __byte_perm(head.w, head.w >> 4, pick);
        const u32 v = j < 2 ? six & 0x3f3f3f3fu : (four & 0x0f0f0f0fu) | (six >> 2 & 0x30303030u);
        const float2 d = halves(head.x);
        // `high` is 16 times too large, scale.y a sixteenth
        const float product = scale.x * static_cast<float>(low * static_cast<int>(v & 0xffu)) +
                              scale.y * static_cast<float>(high * static_cast<int>(v >> 8 & 0xffu));
        const float offset = scale.z * static_cast<float>(v >> 16 & 0xffu) + scale.w * static_cast<float>(v >> 24);
        return d.x * product - d.y * offset;
    }
};

struct StreamQ6K {  // row planes (quants.cuh): nibbles, upper bits, scales, d
    static constexpr int QL = 128, QH = 64, SC = 16, D = 2;  // bytes a superblock
    static constexpr int UPPER = 2 * QUAD * QL, SCALES = UPPER + 2 * QUAD * QH;  // of both rows
    static constexpr int SPAN = QUAD, DS = SCALES + 2 * QUAD * SC, STAGE = DS + 2 * QUAD * D, STAGES = RING / STAGE;
    static BODY size_t row_bytes(int superblocks) {
        return static_cast<size_t>(superblocks) * (QL + QH + SC) + (superblocks * D + 15) / 16 * 16;
    }

    // Nibbles by the whole warp, row after row; the rest half a warp a row.
    static BODY void copy(Shared to, const u8* row, size_t delta, int item, int superblocks, int lane) {
        const int half = lane / Plane::LANES, l = lane % Plane::LANES, sc = superblocks * (QL + QH);
        const int left = superblocks - item * QUAD;  // superblocks of the row, from the item on
        const u8 *nibbles = row + (item * (QUAD * QL) + 16 * lane), *mine = half ? row + delta : row;
        if (lane < left * (QL / 16)) {
            copy_async<16>(to + 16 * lane, nibbles);
            copy_async<16>(to + QUAD * QL + 16 * lane, nibbles + delta);
        }
        if (l < left * (QH / 16))
            copy_async<16>(to + UPPER + 16 * lane, mine + (superblocks * QL + item * (QUAD * QH) + 16 * l));
        if (l < min(left, QUAD))
            copy_async<16>(to + SCALES + half * (QUAD * SC) + 16 * l, mine + (sc + item * (QUAD * SC) + 16 * l));
        if (l == QUAD) copy_async<8>(to + DS + half * (QUAD * D), mine + (sc + superblocks * SC + item * (QUAD * D)));
    }

    // Lane s = 2j + h of a superblock's eight has chunks t = h and 2 + h of the plane's lane 4 * superblock + j.
    static BODY float2 dot(Shared stage, Shared x, int lane, int superblocks_left) {
        float2 sum = {0.0f, 0.0f};
        if (lane / 8 >= superblocks_left) return sum;
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
            const float sc_low = static_cast<i8>(sc), sc_high = static_cast<i8>(sc >> 8);
            const float product = fmaf(sc_low, a, sc_high * b);
            (r ? sum.y : sum.x) = __half2float(__ushort_as_half(dw)) * product;
        }
        return sum;
    }

    static BODY u32 upper(u32 bits, int k) { return (k < 2 ? bits << (4 - 2 * k) : bits >> (2 * k - 4)) & 0x30303030u; }
    static BODY uint4 six(uint4 w, u32 bits) {
        w = masked(w, 0x0f0f0f0fu);
        return make_uint4(w.x | upper(bits, 0), w.y | upper(bits, 1), w.z | upper(bits, 2), w.w | upper(bits, 3));
    }
};
inline constexpr int LEAST_STAGES = StreamQ4K::STAGES < StreamQ6K::STAGES ? StreamQ4K::STAGES : StreamQ6K::STAGES;
static_assert(LEAST_STAGES > 0, "ring");
