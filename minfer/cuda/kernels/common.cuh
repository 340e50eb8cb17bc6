// What every kernel file shares: short type names, the qualifiers, vector loads, sums over a warp or a block.
// kernels.py pastes our own includes into one string; cuda_fp16.h comes with the toolkit's headers.
#include <cuda_fp16.h>

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

#define BODY __device__ __forceinline__
// a kernel with a fixed block: KERNEL(256) name(...)
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)

inline constexpr int WARP = 32;
inline constexpr u32 ALL_LANES = 0xffffffffu;
inline constexpr int THREADS = 256;  // the block of every kernel that names no other

BODY float neg_inf() { return __int_as_float(static_cast<int>(0xff800000u)); }  // no INFINITY without <math.h>
BODY int flat_index() { return blockIdx.x * blockDim.x + threadIdx.x; }

#if !defined(CUDA_ON_CPU) && __CUDA_ARCH__ >= 900
inline constexpr bool OVERLAPS = true;  // launches may, so there is something to wait for
#else
inline constexpr bool OVERLAPS = false;
#endif

// Programmatic dependent launch (sm_90 and later; nothing before): a kernel launched so may begin while the one before
// it in the stream still runs. Until it has called this it may read only what no kernel writes: weights. The one after
// it may begin once every block has called, so when a kernel begins, all but the kernel right before it is complete.
BODY void wait_for_previous() {
    if constexpr (OVERLAPS) {
        asm volatile("griddepcontrol.wait;" ::: "memory");
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    }
}

BODY float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }  // p: 16-byte aligned
BODY void store4(float* p, float4 v) { *reinterpret_cast<float4*>(p) = v; }
BODY u32 load_u32(const void* p) { return *reinterpret_cast<const u32*>(p); }  // p: 4-byte aligned

// Every lane gets the same bits: a butterfly adds the same pairs on both sides.
BODY float warp_sum(float v) {
#pragma unroll
    for (int k = WARP / 2; k > 0; k /= 2) v += __shfl_xor_sync(ALL_LANES, v, k);
    return v;
}

BODY float warp_max(float v) {
#pragma unroll
    for (int k = WARP / 2; k > 0; k /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, k));
    return v;
}

// Sum over a block of THREADS; the warps' sums are added in warp order, so the result does not depend on timing.
// `shared` holds THREADS / WARP floats and may be reused after the next barrier.
BODY float block_sum(float v, float* shared) {
    v = warp_sum(v);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = v;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < THREADS / WARP; w++) sum += shared[w];
    return sum;
}

BODY float block_max(float v, float* shared) {
    v = warp_max(v);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = v;
    __syncthreads();
    float most = shared[0];
#pragma unroll
    for (int w = 1; w < THREADS / WARP; w++) most = fmaxf(most, shared[w]);
    return most;
}

// Whether this is the last of `blocks` blocks to come here, which then sees what thread 0 of the others had written, or
// their other threads before a barrier. `counter` is zero before and after; all threads of the block call.
BODY bool is_last_block(u32* counter, u32 blocks) {
    __shared__ bool s_last;
    if (threadIdx.x == 0) {
        __threadfence();
        s_last = atomicInc(counter, blocks - 1) == blocks - 1;  // wraps to zero at the last block
        __threadfence();
    }
    __syncthreads();
    return s_last;
}

// One rounding rule for every f16 the engine stores: to nearest, ties to even.
BODY void store_as(float* p, float v) { *p = v; }
BODY void store_as(__half* p, float v) { *p = __float2half(v); }
