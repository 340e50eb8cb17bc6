// Loads and stores with cache hints, fences, atomics.
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
