"""The read bandwidth of the GPU's memory, measured: the denominator of the floor."""

from minfer.cuda import cupy_module

STREAM = 4 << 30  # bytes; far beyond the L2
ROUNDS = 7
THREADS, WAVES = 256, 8  # blocks a multiprocessor
# 16-byte loads, four in flight a thread, contiguous across the grid: a pure read (nothing is ever written)
CODE = r"""
extern "C" __global__ void __launch_bounds__(256) read_stream(const uint4* __restrict__ data, long n, unsigned* out) {
    const long step = static_cast<long>(gridDim.x) * blockDim.x;
    unsigned seen = 0;
    for (long i = static_cast<long>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = i + k * step < n ? __ldcs(data + i + k * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < 4; k++) seen |= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (seen == 0x9e3779b9u) *out = seen;  // the data is such that this never holds, and the compiler cannot know
}
"""


def measure_bandwidth() -> float:
    """GB/s at which one kernel reads a large array: the median of seven timed by events, after one to warm up."""
    import numpy as np

    cp = cupy_module.load()
    data, out = cp.full(STREAM // 4, 7, np.uint32), cp.zeros(1, np.uint32)
    kernel = cupy_module.function(cp, CODE, ("--std=c++17",), "read_stream")
    blocks = WAVES * cp.cuda.Device().attributes["MultiProcessorCount"]
    times = []
    for _ in range(ROUNDS + 1):
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        begin.record()
        kernel((blocks, 1, 1), (THREADS, 1, 1), (data, np.int64(STREAM // 16), out))
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end))
    return float(STREAM / np.median(times[1:]) / 1e6)
