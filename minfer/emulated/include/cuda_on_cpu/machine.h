// Where a thread is, and the barriers of its block. The runtime (../../runtime) implements what is declared here.
#pragma once

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

extern "C" {
// `const`: within one thread they never change, so the compiler may call them once.
uint3 cuda_on_cpu_thread() __attribute__((const));
uint3 cuda_on_cpu_block() __attribute__((const));
uint3 cuda_on_cpu_block_size() __attribute__((const));
uint3 cuda_on_cpu_grid_size() __attribute__((const));
void* cuda_on_cpu_dynamic_shared() __attribute__((const));

// Waits for the whole block; returns how many threads passed a true predicate.
int cuda_on_cpu_sync_block(int predicate, const char* file, int line);
// Barrier `id` (1..15) of `count` threads; wait = 0 arrives without waiting.
void cuda_on_cpu_sync_named(int id, int count, int wait, const char* file, int line);
void cuda_on_cpu_trap(const char* file, int line) __attribute__((noreturn));
}

#define threadIdx (cuda_on_cpu_thread())
#define blockIdx (cuda_on_cpu_block())
#define blockDim (cuda_on_cpu_block_size())
#define gridDim (cuda_on_cpu_grid_size())

constexpr int warpSize = 32;

// The default arguments are the caller's file and line: a barrier that the compiler duplicates stays one barrier.
#define CUDA_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

CUDA_INLINE void __syncthreads(CUDA_SITE) { cuda_on_cpu_sync_block(0, file, line); }
CUDA_INLINE int __syncthreads_count(int predicate, CUDA_SITE) { return cuda_on_cpu_sync_block(predicate, file, line); }
CUDA_INLINE int __syncthreads_or(int predicate, CUDA_SITE) {
    return cuda_on_cpu_sync_block(predicate, file, line) != 0;
}
CUDA_INLINE int __syncthreads_and(int predicate, CUDA_SITE) {
    return cuda_on_cpu_sync_block(!predicate, file, line) == 0;
}

// bar.sync and bar.arrive
CUDA_INLINE void cuda_bar_sync(int id, int count, CUDA_SITE) { cuda_on_cpu_sync_named(id, count, 1, file, line); }
CUDA_INLINE void cuda_bar_arrive(int id, int count, CUDA_SITE) { cuda_on_cpu_sync_named(id, count, 0, file, line); }

// griddepcontrol.wait and .launch_dependents: kernels run one after the other here.
CUDA_INLINE void cudaGridDependencySynchronize() {}
CUDA_INLINE void cudaTriggerProgrammaticLaunchCompletion() {}

CUDA_INLINE void __trap(CUDA_SITE) { cuda_on_cpu_trap(file, line); }
CUDA_INLINE void __nanosleep(unsigned) {}

namespace cuda_on_cpu {
// Calls a kernel with arguments given by address, as cuLaunchKernel does.
template <class... T, size_t... I>
__attribute__((no_sanitize("thread"))) void call(void (*kernel)(T...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<T>*>(arguments[I])...);
}
template <class... T>
__attribute__((no_sanitize("thread"))) void call(void (*kernel)(T...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<T...>{});
}

// Per parameter: bytes of a value, or -1 for a pointer, -2 for a pointer to const. Returns how many there are.
template <class T>
constexpr int parameter() {
    if (!std::is_pointer_v<T>) return int(sizeof(T));
    return std::is_const_v<std::remove_pointer_t<T>> ? -2 : -1;
}
template <class... T>
__attribute__((no_sanitize("thread"))) int describe(void (*)(T...), int* out) {
    ((*out++ = parameter<T>()), ...);
    return int(sizeof...(T));
}
}  // namespace cuda_on_cpu
