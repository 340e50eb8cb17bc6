// __half and __half2: 16 bits of storage; an operation is float's, rounded to nearest even, which is what a device gives.
#pragma once

namespace cuda_on_cpu {
template <class To, class From>
CUDA_INLINE To bits(From value) {
    static_assert(sizeof(To) == sizeof(From));
    return __builtin_bit_cast(To, value);
}

CUDA_INLINE float half_to_float(uint16_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00) return bits<float>(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
    if (magnitude < 0x0400) {  // subnormal: a multiple of 2^-24, exact in float
        const float value = float(magnitude) * 0x1p-24f;
        return sign ? -value : value;
    }
    return bits<float>(sign | ((magnitude << 13) + (112u << 23)));
}

CUDA_INLINE uint16_t float_to_half(float f) {
    const uint32_t x = bits<uint32_t>(f), sign = x >> 16 & 0x8000u, magnitude = x & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7fffu);      // NaN: CUDA gives the canonical one
    if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);     // 65520 and more round to infinity
    if (magnitude < 0x38800000u) {                                     // below 2^-14: count multiples of 2^-24
        const float steps = bits<float>(magnitude) * 0x1p24f;          // exact; then to nearest even
        return uint16_t(sign | uint32_t(__builtin_nearbyintf(steps)));
    }
    const uint32_t odd = magnitude >> 13 & 1;
    return uint16_t(sign | ((magnitude + 0xfffu + odd - (112u << 23)) >> 13));
}
}  // namespace cuda_on_cpu

struct __half {
    unsigned short __x;
    __half() = default;
    __half(float f) : __x(cuda_on_cpu::float_to_half(f)) {}
    __half(double d) : __half(float(d)) {}
    __half(int i) : __half(float(i)) {}
    operator float() const { return cuda_on_cpu::half_to_float(__x); }
};
using half = __half;

struct alignas(4) __half2 {
    __half x, y;
};
using half2 = __half2;

CUDA_INLINE float __half2float(__half h) { return h; }
CUDA_INLINE __half __float2half(float f) { return f; }
CUDA_INLINE __half __float2half_rn(float f) { return f; }
CUDA_INLINE unsigned short __half_as_ushort(__half h) { return h.__x; }
CUDA_INLINE short __half_as_short(__half h) { return short(h.__x); }
CUDA_INLINE __half __ushort_as_half(unsigned short u) { return cuda_on_cpu::bits<__half>(u); }
CUDA_INLINE __half __short_as_half(short s) { return cuda_on_cpu::bits<__half>(s); }
CUDA_INLINE __half __int2half_rn(int i) { return float(i); }

CUDA_INLINE __half2 make_half2(__half x, __half y) { return {x, y}; }
CUDA_INLINE __half2 __halves2half2(__half x, __half y) { return {x, y}; }
CUDA_INLINE __half2 __half2half2(__half h) { return {h, h}; }
CUDA_INLINE __half2 __float2half2_rn(float f) { return {f, f}; }
CUDA_INLINE __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
CUDA_INLINE __half2 __float22half2_rn(float2 f) { return {f.x, f.y}; }
CUDA_INLINE float2 __half22float2(__half2 h) { return {h.x, h.y}; }
CUDA_INLINE float __low2float(__half2 h) { return h.x; }
CUDA_INLINE float __high2float(__half2 h) { return h.y; }
CUDA_INLINE __half __low2half(__half2 h) { return h.x; }
CUDA_INLINE __half __high2half(__half2 h) { return h.y; }

CUDA_INLINE __half __hadd(__half a, __half b) { return float(a) + float(b); }
CUDA_INLINE __half __hsub(__half a, __half b) { return float(a) - float(b); }
CUDA_INLINE __half __hmul(__half a, __half b) { return float(a) * float(b); }
CUDA_INLINE __half __hneg(__half a) { return -float(a); }
CUDA_INLINE __half2 __hadd2(__half2 a, __half2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
CUDA_INLINE __half2 __hmul2(__half2 a, __half2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
