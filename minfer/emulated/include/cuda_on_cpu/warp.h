// Warp-wide operations. Every lane deposits a value; when all lanes of the mask have arrived, each gets its result.
// As in CUDA, only __syncwarp orders memory; shuffles and votes do not.
#pragma once

enum { CUDA_SYNCWARP, CUDA_SHUFFLE, CUDA_BALLOT, CUDA_MATCH };

extern "C" {
// `source`: the lane whose value a shuffle returns. A ballot returns the lanes with a value other than 0, a match the
// lanes with this lane's value.
uint64_t cuda_on_cpu_warp(int operation, unsigned mask, uint64_t value, int source, const char* file, int line);
int cuda_on_cpu_lane() __attribute__((const));
}

CUDA_INLINE void __syncwarp(unsigned mask = 0xffffffffu, CUDA_SITE) {
    cuda_on_cpu_warp(CUDA_SYNCWARP, mask, 0, 0, file, line);
}

namespace cuda_on_cpu {
template <class T>
CUDA_INLINE T shuffle(unsigned mask, T value, int source, const char* file, int line) {
    static_assert(sizeof(T) <= 8, "shuffles move at most 8 bytes");
    uint64_t word = 0;
    __builtin_memcpy(&word, &value, sizeof(T));
    word = cuda_on_cpu_warp(CUDA_SHUFFLE, mask, word, source, file, line);
    __builtin_memcpy(&value, &word, sizeof(T));
    return value;
}
}  // namespace cuda_on_cpu

template <class T>
CUDA_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDA_SITE) {
    const int first = cuda_on_cpu_lane() & -width;
    return cuda_on_cpu::shuffle(mask, value, first | (source & (width - 1)), file, line);
}

// Past the edge of its section of `width` lanes, a lane keeps its own value.
template <class T>
CUDA_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_SITE) {
    const int lane = cuda_on_cpu_lane(), source = lane - int(delta);
    return cuda_on_cpu::shuffle(mask, value, source < (lane & -width) ? lane : source, file, line);
}

template <class T>
CUDA_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_SITE) {
    const int lane = cuda_on_cpu_lane(), source = lane + int(delta);
    return cuda_on_cpu::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, file, line);
}

template <class T>
CUDA_INLINE T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, CUDA_SITE) {
    const int lane = cuda_on_cpu_lane(), source = lane ^ lanes;
    return cuda_on_cpu::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, file, line);
}

CUDA_INLINE unsigned __ballot_sync(unsigned mask, int predicate, CUDA_SITE) {
    return unsigned(cuda_on_cpu_warp(CUDA_BALLOT, mask, predicate != 0, 0, file, line));
}
CUDA_INLINE int __any_sync(unsigned mask, int predicate, CUDA_SITE) {
    return cuda_on_cpu_warp(CUDA_BALLOT, mask, predicate != 0, 0, file, line) != 0;
}
CUDA_INLINE int __all_sync(unsigned mask, int predicate, CUDA_SITE) {
    return cuda_on_cpu_warp(CUDA_BALLOT, mask, predicate == 0, 0, file, line) == 0;
}
template <class T>
CUDA_INLINE unsigned __match_any_sync(unsigned mask, T value, CUDA_SITE) {
    uint64_t word = 0;
    __builtin_memcpy(&word, &value, sizeof(T));
    return unsigned(cuda_on_cpu_warp(CUDA_MATCH, mask, word, 0, file, line));
}
