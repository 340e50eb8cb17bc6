// Loads and stores with cache hints, fences, asynchronous copies, atomics.
#pragma once

#define CUDA_LOAD(name)                     \
    template <class T>                      \
    CUDA_INLINE T name(const T* pointer) {  \
        return *pointer;                    \
    }
CUDA_LOAD(__ldg)
CUDA_LOAD(__ldcs)
CUDA_LOAD(__ldca)
CUDA_LOAD(__ldcg)
CUDA_LOAD(__ldlu)
CUDA_LOAD(__ldcv)

#define CUDA_STORE(name)                          \
    template <class T>                            \
    CUDA_INLINE void name(T* pointer, T value) {  \
        *pointer = value;                         \
    }
CUDA_STORE(__stcs)
CUDA_STORE(__stcg)
CUDA_STORE(__stwb)
CUDA_STORE(__stwt)

CUDA_INLINE void __threadfence() {}
CUDA_INLINE void __threadfence_block() {}
CUDA_INLINE void __threadfence_system() {}

extern "C" {
void cuda_on_cpu_copy_later(void* to, const void* from, unsigned size, const char* file, int line);
void cuda_on_cpu_close_group();
unsigned cuda_on_cpu_next_copy(unsigned left, void** to, const void** from);
}

namespace cuda_on_cpu {
CUDA_INLINE void copy_now(void* to, const void* from, size_t size) {
    if (size == 16)
        *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
    else if (size == 8)
        *static_cast<uint2*>(to) = *static_cast<const uint2*>(from);
    else
        *static_cast<unsigned*>(to) = *static_cast<const unsigned*>(from);
}
}  // namespace cuda_on_cpu

// As in cuda_pipeline.h, of 4, 8 or 16 bytes. Threads of odd number copy at once, which shows what is not read yet; those
// of even number where they wait for it, which shows what is read too early.
CUDA_INLINE void __pipeline_memcpy_async(void* to, const void* from, size_t size, CUDA_SITE) {
    if (threadIdx.x % 2)
        cuda_on_cpu::copy_now(to, from, size);
    else
        cuda_on_cpu_copy_later(to, from, unsigned(size), file, line);
}
CUDA_INLINE void __pipeline_commit() { cuda_on_cpu_close_group(); }
CUDA_INLINE void __pipeline_wait_prior(size_t left) {
    void* to;
    const void* from;
    while (const unsigned size = cuda_on_cpu_next_copy(unsigned(left), &to, &from))
        cuda_on_cpu::copy_now(to, from, size);
}

extern "C" void cuda_on_cpu_atomic(void* pointer, unsigned size, void* pc);

namespace cuda_on_cpu {
// One thread runs at a time, so a plain update is atomic; the runtime is told that it was meant to be.
template <class T, class F>
__attribute__((noinline, no_sanitize("thread"))) T atomic(T* pointer, F update) {
    cuda_on_cpu_atomic(pointer, sizeof(T), __builtin_return_address(0));
    const T old = *pointer;
    *pointer = update(old);
    return old;
}
}  // namespace cuda_on_cpu

#define CUDA_ATOMIC(name, expression)                                                             \
    template <class T>                                                                            \
    CUDA_INLINE T name(T* pointer, std::common_type_t<T> value) {                                 \
        return cuda_on_cpu::atomic(pointer, [=](T old) { return T(expression); });                \
    }
CUDA_ATOMIC(atomicAdd, old + value)
CUDA_ATOMIC(atomicSub, old - value)
CUDA_ATOMIC(atomicMax, old > value ? old : value)
CUDA_ATOMIC(atomicMin, old < value ? old : value)
CUDA_ATOMIC(atomicExch, value)
CUDA_ATOMIC(atomicAnd, old& value)
CUDA_ATOMIC(atomicOr, old | value)
CUDA_ATOMIC(atomicXor, old ^ value)
CUDA_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
CUDA_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)

template <class T>
CUDA_INLINE T atomicCAS(T* pointer, std::common_type_t<T> compare, std::common_type_t<T> value) {
    return cuda_on_cpu::atomic(pointer, [=](T old) { return old == compare ? value : old; });
}
