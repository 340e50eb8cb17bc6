// Every weight type's unpacking, in one place. A matrix is its rows one after another; a row's weights come in blocks.
// In most types a block has its bytes to itself, padded at the end to a multiple of 4 when uploaded (kernels.py:
// PADDED), so every block is 4-byte aligned. Q6_K keeps the parts of its blocks in planes of the row.
//
// A type is a struct:
//   ELEMENTS                   weights in a block
//   bytes(rows, id)            of so many rows of id weights in device memory, padding included
//   block(row, i, count)       where block i of the row's `count` is, as a Block
//   PAIR                       a *unit* is 8 weights: four consecutive ones at e = unit_first(u) and four at e + PAIR,
//                              which is how one 32-bit word of nibbles holds them
//   unit(block, u)             the 8 weights as f32
// Integer types derive it from what their q8 dot product uses too:
//   quants(block, u)           the unit as signed bytes q
//   scales(block, p)           weight = d·q + b for the 32 weights of part p, that is units 4p to 4p+3
//   OFFSET                     whether b is ever other than zero; then one b holds for a whole run of 32 weights
// d·q is exact in f32 for every type (f16 times at most 13 bits), so a weight is rounded once, as in ggml.
//
// Adding a type: its struct, its row in QUANT_TYPES, its row in kernels.py's PADDED.
#include "common.cuh"

struct Unit {
    float4 lo, hi;  // weights e..e+3 and e+PAIR..e+PAIR+3
};

struct Packed {
    u32 lo, hi;  // the same as four signed bytes each
};

struct Scales {
    float d_lo, b_lo, d_hi, b_hi;
};

inline constexpr int UNIT = 8;  // weights
inline constexpr int PART = 32;  // weights that share their scales pairwise: four units

template <class Q> BODY int unit_first(int u) {
    constexpr int words = Q::PAIR / 4;
    return u / words * 2 * Q::PAIR + u % words * 4;
}

BODY float half_at(const u8* p) { return __half2float(*reinterpret_cast<const __half*>(p)); }
BODY u32 load_2x16(const u8* p) {  // a word that is only 2-byte aligned
    const u16* h = reinterpret_cast<const u16*>(p);
    return h[0] | static_cast<u32>(h[1]) << 16;
}

BODY float scaled_byte(u32 q, int i, float d, float b) { return fmaf(d, static_cast<i8>(q >> 8 * i), b); }
BODY float4 scaled(u32 q, float d, float b) {
    return make_float4(scaled_byte(q, 0, d, b), scaled_byte(q, 1, d, b), scaled_byte(q, 2, d, b),
                       scaled_byte(q, 3, d, b));
}

// A row whose blocks of N weights lie one after another, SIZE bytes each.
template <int N, int SIZE> struct Blocks {
    static constexpr int ELEMENTS = N;
    using Block = const u8*;
    static BODY size_t bytes(int rows, int id) { return static_cast<size_t>(rows) * (id / N) * SIZE; }
    static BODY Block block(const u8* row, int i, int) { return row + static_cast<size_t>(i) * SIZE; }
};

template <class Q, class Row> struct Integer : Row {
    static BODY Unit unit(typename Row::Block block, int u) {
        const Packed q = Q::quants(block, u);
        const Scales s = Q::scales(block, u / 4);
        return {scaled(q.lo, s.d_lo, s.b_lo), scaled(q.hi, s.d_hi, s.b_hi)};
    }
};

BODY Packed nibbles(u32 w) { return {w & 0x0f0f0f0fu, w >> 4 & 0x0f0f0f0fu}; }
// bits 0..3 of x become bit 4 of the four bytes
BODY u32 fifth_bits(u32 x) {
    return (x << 4 & 0x10u) | (x << 11 & 0x1000u) | (x << 18 & 0x100000u) | (x << 25 & 0x10000000u);
}

struct F32 : Blocks<8, 32> {
    static constexpr int PAIR = 4;
    static BODY Unit unit(const u8* block, int) {
        const float* w = reinterpret_cast<const float*>(block);
        return {load4(w), load4(w + 4)};
    }
};

struct F16 : Blocks<8, 16> {
    static constexpr int PAIR = 4;
    static BODY Unit unit(const u8* block, int) { return {four(block), four(block + 8)}; }
    static BODY float4 four(const u8* p) {
        return make_float4(half_at(p), half_at(p + 2), half_at(p + 4), half_at(p + 6));
    }
};

struct BF16 : Blocks<8, 16> {
    static constexpr int PAIR = 4;
    static BODY Unit unit(const u8* block, int) { return {four(block), four(block + 8)}; }
    static BODY float4 four(const u8* p) {  // the upper half of an f32
        const u32 a = load_u32(p), b = load_u32(p + 4);
        return make_float4(__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000u), __uint_as_float(b << 16),
                           __uint_as_float(b & 0xffff0000u));
    }
};

// f16 d | 16 bytes of nibbles: byte j holds weights j and j+16 | 2 pad
struct Q4_0 : Integer<Q4_0, Blocks<32, 20>> {
    static constexpr int PAIR = 16;
    static constexpr bool OFFSET = true;
    static BODY Packed quants(const u8* block, int u) { return nibbles(load_2x16(block + 2 + 4 * u)); }
    static BODY Scales scales(const u8* block, int) {
        const float d = half_at(block), b = -8.0f * d;
        return {d, b, d, b};
    }
};

// f16 d | f16 m | nibbles as in Q4_0
struct Q4_1 : Integer<Q4_1, Blocks<32, 20>> {
    static constexpr int PAIR = 16;
    static constexpr bool OFFSET = true;
    static BODY Packed quants(const u8* block, int u) { return nibbles(load_u32(block + 4 + 4 * u)); }
    static BODY Scales scales(const u8* block, int) {
        const float d = half_at(block), b = half_at(block + 2);
        return {d, b, d, b};
    }
};

// f16 d | u32 fifth bits: bit j of weight j | nibbles as in Q4_0 | 2 pad
struct Q5_0 : Integer<Q5_0, Blocks<32, 24>> {
    static constexpr int PAIR = 16;
    static constexpr bool OFFSET = true;
    static BODY Packed quants(const u8* block, int u) {
        const u32 high = load_2x16(block + 2) >> 4 * u;
        const Packed q = nibbles(load_2x16(block + 6 + 4 * u));
        return {q.lo | fifth_bits(high), q.hi | fifth_bits(high >> 16)};
    }
    static BODY Scales scales(const u8* block, int) {
        const float d = half_at(block), b = -16.0f * d;
        return {d, b, d, b};
    }
};

// f16 d | f16 m | u32 fifth bits | nibbles
struct Q5_1 : Integer<Q5_1, Blocks<32, 24>> {
    static constexpr int PAIR = 16;
    static constexpr bool OFFSET = true;
    static BODY Packed quants(const u8* block, int u) {
        const u32 high = load_u32(block + 4) >> 4 * u;
        const Packed q = nibbles(load_u32(block + 8 + 4 * u));
        return {q.lo | fifth_bits(high), q.hi | fifth_bits(high >> 16)};
    }
    static BODY Scales scales(const u8* block, int) {
        const float d = half_at(block), b = half_at(block + 2);
        return {d, b, d, b};
    }
};

// f16 d | 32 int8 | 2 pad
struct Q8_0 : Integer<Q8_0, Blocks<32, 36>> {
    static constexpr int PAIR = 16;
    static constexpr bool OFFSET = false;
    static BODY Packed quants(const u8* block, int u) {
        return {load_2x16(block + 2 + 4 * u), load_2x16(block + 18 + 4 * u)};
    }
    static BODY Scales scales(const u8* block, int) {
        const float d = half_at(block);
        return {d, 0.0f, d, 0.0f};
    }
};

// Header of Q4_K and Q5_K: f16 d | f16 dmin | 12 bytes: 6-bit scales and mins of 8 runs of 32 weights. Bytes 0-3 and
// 4-7 hold the low 6 bits of scales and mins of runs 0-3; runs 4-7 have nibbles in bytes 8-11 and their upper two
// bits on top of bytes 0-7. j: runs 2j and 2j+1, the two halves of 64 weights.
BODY Scales k_scales(const u8* block, int j) {
    const int shift = (j & 1) * 16;
    const u32 a = load_u32(block + 4) >> shift, b = load_u32(block + 8) >> shift, c = load_u32(block + 12) >> shift;
    const u32 sc = j < 2 ? a & 0x3f3fu : (c & 0x0f0fu) | (a & 0xc0c0u) >> 2;
    const u32 mn = j < 2 ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b & 0xc0c0u) >> 2;
    const float d = half_at(block), m = -half_at(block + 2);
    return {d * (sc & 0xffu), m * (mn & 0xffu), d * (sc >> 8), m * (mn >> 8)};
}

// header | 4 x 32 bytes of nibbles: byte i of group j holds weights 64j+i and 64j+32+i
struct Q4_K : Integer<Q4_K, Blocks<256, 144>> {
    static constexpr int PAIR = 32;
    static constexpr bool OFFSET = true;
    static BODY Packed quants(const u8* block, int u) { return nibbles(load_u32(block + 16 + 4 * u)); }
    static BODY Scales scales(const u8* block, int p) { return k_scales(block, p / 2); }
};

// header | 32 bytes of fifth bits: bit r of byte i is weight 32r+i | nibbles as in Q4_K
struct Q5_K : Integer<Q5_K, Blocks<256, 176>> {
    static constexpr int PAIR = 32;
    static constexpr bool OFFSET = true;
    static BODY Packed quants(const u8* block, int u) {
        const u32 high = load_u32(block + 16 + 4 * (u % 8)) >> 2 * (u / 8);
        const Packed q = nibbles(load_u32(block + 48 + 4 * u));
        return {q.lo | (high & 0x01010101u) << 4, q.hi | (high >> 1 & 0x01010101u) << 4};
    }
    static BODY Scales scales(const u8* block, int p) { return k_scales(block, p / 2); }
};

// Four planes of the row, each a multiple of 16 bytes, with so many bytes a superblock: 128 of low nibbles | 64 of upper
// two bits | 16 int8 scales | 2 of f16 d, zeros behind the last.
struct Q6_K_Planes {
    static constexpr int ELEMENTS = 256;
    struct Block {
        const u8 *low, *high, *scales, *d;
    };
    static BODY size_t bytes(int rows, int id) {
        const int count = id / ELEMENTS;
        return static_cast<size_t>(rows) * (208 * count + (2 * count + 15) / 16 * 16);
    }
    static BODY Block block(const u8* row, int i, int count) {
        return {row + 128 * i, row + (128 * count + 64 * i), row + (192 * count + 16 * i), row + (208 * count + 2 * i)};
    }
};

// A weight is d·scale·(q - 32). Part 2j+h is the 16 weights from 64j+16h on and the 16 from 64j+32+16h on. It has
// 16 bytes of nibbles: byte i holds weight i of both sixteens;
// 8 bytes of upper bits, a word for each sixteen: byte b has those of weights b, b+4, b+8, b+12 from its low bits up;
// 2 scales, one for each sixteen.
struct Q6_K : Integer<Q6_K, Q6_K_Planes> {
    static constexpr int PAIR = 32;
    static constexpr bool OFFSET = false;
    static BODY Packed quants(Block block, int u) {
        const Packed q = nibbles(load_u32(block.low + 4 * u));
        const u8* high = block.high + u / 4 * 8;
        const int k = 2 * (u % 4);
        return {with_high(q.lo, load_u32(high) >> k), with_high(q.hi, load_u32(high + 4) >> k)};
    }
    static BODY Scales scales(Block block, int p) {
        const float d = half_at(block.d);
        const i8* s = reinterpret_cast<const i8*>(block.scales) + 2 * p;
        return {d * s[0], 0.0f, d * s[1], 0.0f};
    }
    static BODY u32 with_high(u32 low, u32 high) { return minus_32(low | (high & 0x03030303u) << 4); }
    // four bytes 0..63 at once: adding 96 carries nowhere, and flipping bit 7 adds the other 128 of 224 = -32
    static BODY u32 minus_32(u32 q) { return (q + 0x60606060u) ^ 0x80808080u; }
};

#define QUANT_TYPES(X) \
    X(f32, F32) X(f16, F16) X(bf16, BF16) X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q5_1, Q5_1) X(q8_0, Q8_0) \
    X(q4_k, Q4_K) X(q5_k, Q5_K) X(q6_k, Q6_K)
// the types that have the q8-activation form
#define Q8_FORM_TYPES(X) X(q8_0, Q8_0) X(q4_k, Q4_K) X(q5_k, Q5_K) X(q6_k, Q6_K)

// A unit of a row of id weights: u counts from the start of the row.
template <class Q> BODY Unit row_unit(const u8* row, int u, int id) {
    constexpr int units = Q::ELEMENTS / UNIT;
    return Q::unit(Q::block(row, u / units, id / Q::ELEMENTS), u % units);
}

template <class Q> BODY const u8* weight_row(const u8* w, int row, int id) {
    return w + Q::bytes(row, id);
}
