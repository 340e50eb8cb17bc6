// The q8 plane ("pad40"): activations as int8 with one scale per 32 values. 40 bytes a block:
//   0 f16 d | 2 pad, zero | 4 32 x int8 | 36 i32 sum of the int8 values
// One body quantizes everywhere, so the bytes do not depend on which kernel wrote them: max is exact in any order, and
// rounding and clamping are per value.
#include "common.cuh"

inline constexpr int Q8_VALUES = 32;
inline constexpr int Q8_BYTES = 40;

BODY float q8_d(const u8* block) { return __half2float(*reinterpret_cast<const __half*>(block)); }
BODY int q8_word(const u8* block, int i) { return static_cast<int>(load_u32(block + 4 + 4 * i)); }  // 4 values
BODY int q8_sum(const u8* block) { return static_cast<int>(load_u32(block + 36)); }

// four values as int8, low byte first; adds them to sum
BODY u32 quantize4(float4 v, float inverse, int& sum) {
    const float e[4] = {v.x, v.y, v.z, v.w};
    u32 packed = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int q = max(-128, min(127, static_cast<int>(rintf(e[i] * inverse))));
        packed |= static_cast<u32>(q & 0xff) << 8 * i;
        sum += q;
    }
    return packed;
}

BODY float abs_max4(float4 v) { return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))); }

// 32 floats at src (16-byte aligned) into the block at dst (4-byte aligned).
BODY void quantize_pad40_block(const float* src, u8* dst) {
    float4 v[8];
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = load4(src + 4 * i);
        most = fmaxf(most, abs_max4(v[i]));
    }
    const float d = most / 127.0f;
    const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
    u32* words = reinterpret_cast<u32*>(dst);
    words[0] = __half_as_ushort(__float2half(d));
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) words[1 + i] = quantize4(v[i], inverse, sum);
    words[9] = static_cast<u32>(sum);
}
