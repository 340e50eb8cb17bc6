// Shared memory by its own 32-bit addresses, and copies into it that run while the thread goes on: groups of them,
// waited for in order. A generic pointer would cost its conversion at every access of a loop.
#include "common.cuh"

#ifdef CUDA_ON_CPU
typedef u8* Shared;
BODY Shared shared_address(void* p) { return static_cast<u8*>(p); }
BODY uint4 shared_load16(Shared p) { return *reinterpret_cast<const uint4*>(p); }
BODY uint2 shared_load8(Shared p) { return *reinterpret_cast<const uint2*>(p); }
BODY u32 shared_load4(Shared p) { return load_u32(p); }
BODY u16 shared_load2(Shared p) { return *reinterpret_cast<const u16*>(p); }
#else
typedef u32 Shared;
BODY Shared shared_address(void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
BODY uint4 shared_load16(Shared p) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(p));
    return v;
}
BODY uint2 shared_load8(Shared p) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(p));
    return v;
}
BODY u32 shared_load4(Shared p) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(p));
    return v;
}
BODY u16 shared_load2(Shared p) {
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(p));
    return v;
}
#endif

// N bytes, 4, 8 or 16, both sides aligned to N; past L1 where the hardware can
template <int N> BODY void copy_async(Shared to, const void* source) {
#ifdef CUDA_ON_CPU
    __pipeline_memcpy_async(to, source, N);
#else
    if constexpr (N == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(source) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(source), "n"(N) : "memory");
#endif
}

// What this thread has copied since the last call becomes one group.
BODY void close_group() {
#ifdef CUDA_ON_CPU
    __pipeline_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until at most N of this thread's groups, the latest, are still under way.
template <int N> BODY void wait_for_groups() {
#ifdef CUDA_ON_CPU
    __pipeline_wait_prior(N);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
