// CUDA's device language for g++: force-included in front of every .cu source (see ../emulate.py).
//
// `__global__`, `__shared__` and `__launch_bounds__` are not here: build.py rewrites them in the preprocessed text, because
// dynamic shared memory needs another declaration than static shared memory does.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <type_traits>
#include <utility>

#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__

// A function of this header whose accesses belong to the caller's line.
#define CUDA_INLINE static inline __attribute__((always_inline, unused))

#include "cuda_on_cpu/machine.h"
#include "cuda_on_cpu/vectors.h"
#include "cuda_on_cpu/half.h"
#include "cuda_on_cpu/arithmetic.h"
#include "cuda_on_cpu/memory.h"
#include "cuda_on_cpu/warp.h"
