// Vector types with CUDA's sizes and alignments. They stay plain structs, so a load or store is one access of the whole
// vector, which the runtime checks for alignment.
#pragma once

#define CUDA_VECTORS(base, type)                                                                                 \
    struct base##1 {                                                                                             \
        type x;                                                                                                  \
    };                                                                                                           \
    struct alignas(2 * sizeof(type)) base##2 {                                                                   \
        type x, y;                                                                                               \
    };                                                                                                           \
    struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) base##4 {                                      \
        type x, y, z, w;                                                                                         \
    };                                                                                                           \
    CUDA_INLINE base##1 make_##base##1(type x) { return {x}; }                                                   \
    CUDA_INLINE base##2 make_##base##2(type x, type y) { return {x, y}; }                                        \
    CUDA_INLINE base##4 make_##base##4(type x, type y, type z, type w) { return {x, y, z, w}; }

#define CUDA_VECTOR3(base, type)                                                                                 \
    struct base##3 {                                                                                             \
        type x, y, z;                                                                                            \
    };                                                                                                           \
    CUDA_INLINE base##3 make_##base##3(type x, type y, type z) { return {x, y, z}; }

CUDA_VECTORS(char, signed char)
CUDA_VECTORS(uchar, unsigned char)
CUDA_VECTORS(short, short)
CUDA_VECTORS(ushort, unsigned short)
CUDA_VECTORS(int, int)
CUDA_VECTORS(uint, unsigned)
CUDA_VECTORS(longlong, long long)
CUDA_VECTORS(ulonglong, unsigned long long)
CUDA_VECTORS(float, float)
CUDA_VECTORS(double, double)
CUDA_VECTOR3(int, int)
CUDA_VECTOR3(float, float)
