// Intrinsics of arithmetic. The fast variants are the exact functions here: tests compare within tolerances anyway.
#pragma once

using cuda_on_cpu::bits;

CUDA_INLINE int __float_as_int(float f) { return bits<int>(f); }
CUDA_INLINE unsigned __float_as_uint(float f) { return bits<unsigned>(f); }
CUDA_INLINE float __int_as_float(int i) { return bits<float>(i); }
CUDA_INLINE float __uint_as_float(unsigned u) { return bits<float>(u); }

CUDA_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
CUDA_INLINE float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
CUDA_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
CUDA_INLINE float __frcp_rn(float x) { return 1.0f / x; }
CUDA_INLINE float __fdividef(float x, float y) { return x / y; }
CUDA_INLINE float __fdiv_rn(float x, float y) { return x / y; }
CUDA_INLINE float __fmul_rn(float x, float y) { return x * y; }
CUDA_INLINE float __fadd_rn(float x, float y) { return x + y; }
CUDA_INLINE float __fsub_rn(float x, float y) { return x - y; }
CUDA_INLINE float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }

// glibc declares functions of these names for itself, hence macros
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __sincosf sincosf

CUDA_INLINE float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

CUDA_INLINE int __float2int_rn(float x) { return int(rintf(x)); }
CUDA_INLINE int __float2int_rz(float x) { return int(x); }
CUDA_INLINE int __float2int_rd(float x) { return int(floorf(x)); }
CUDA_INLINE int __float2int_ru(float x) { return int(ceilf(x)); }
CUDA_INLINE float __int2float_rn(int i) { return float(i); }
CUDA_INLINE float __uint2float_rn(unsigned u) { return float(u); }

template <class A, class B>
CUDA_INLINE std::common_type_t<A, B> min(A a, B b) {
    return a < b ? a : b;
}
template <class A, class B>
CUDA_INLINE std::common_type_t<A, B> max(A a, B b) {
    return a > b ? a : b;
}

CUDA_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
CUDA_INLINE int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
CUDA_INLINE int __ffs(int x) { return __builtin_ffs(x); }
CUDA_INLINE unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
CUDA_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return unsigned((uint64_t(high) << 32 | low) >> (n & 31));
}
CUDA_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    return unsigned((uint64_t(high) << 32 | low) << (n & 31) >> 32);
}

// Each nibble of `selector` picks one of the 8 bytes of b:a; its top bit asks for the sign instead of the byte.
CUDA_INLINE unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned pick = selector >> 4 * i & 15, byte = bytes >> 8 * (pick & 7) & 255;
        result |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return result;
}

namespace cuda_on_cpu {
// Applies `f` to the four bytes of a and b, as numbers of type Byte.
template <class Byte, class F>
CUDA_INLINE unsigned each_byte(unsigned a, unsigned b, F f) {
    unsigned result = 0;
    for (int i = 0; i < 32; i += 8) result |= unsigned(uint8_t(f(Byte(a >> i), Byte(b >> i)))) << i;
    return result;
}
// Like the device, sums wrap.
template <class Byte>
CUDA_INLINE int dot4(unsigned a, unsigned b, int sum) {
    for (int i = 0; i < 32; i += 8) sum = int(unsigned(sum) + unsigned(Byte(a >> i) * Byte(b >> i)));
    return sum;
}
}  // namespace cuda_on_cpu

CUDA_INLINE int __dp4a(int a, int b, int c) { return cuda_on_cpu::dot4<int8_t>(unsigned(a), unsigned(b), c); }
CUDA_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    return unsigned(cuda_on_cpu::dot4<uint8_t>(a, b, int(c)));
}
CUDA_INLINE unsigned __vadd4(unsigned a, unsigned b) {
    return cuda_on_cpu::each_byte<uint8_t>(a, b, [](int x, int y) { return x + y; });
}
CUDA_INLINE unsigned __vsub4(unsigned a, unsigned b) {
    return cuda_on_cpu::each_byte<uint8_t>(a, b, [](int x, int y) { return x - y; });
}
CUDA_INLINE unsigned __vsubss4(unsigned a, unsigned b) {
    return cuda_on_cpu::each_byte<int8_t>(a, b, [](int x, int y) { return max(-128, min(127, x - y)); });
}
CUDA_INLINE unsigned __vcmpeq4(unsigned a, unsigned b) {
    return cuda_on_cpu::each_byte<uint8_t>(a, b, [](int x, int y) { return x == y ? 255 : 0; });
}
CUDA_INLINE unsigned __vcmpne4(unsigned a, unsigned b) { return ~__vcmpeq4(a, b); }
