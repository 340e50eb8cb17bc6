"""The read bandwidth of this machine's memory, measured: the denominator of the CPU's floor."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

STREAM = 1 << 29  # bytes; beyond any cache
ROUNDS = 5


def measure_bandwidth() -> float:
    """GB/s at which all usable cores together read a large array: the best of five rounds after one to warm up."""
    threads = len(os.sched_getaffinity(0))
    parts = np.array_split(np.ones(STREAM // 4, np.float32), threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:  # numpy's sum releases the GIL
        for _ in range(ROUNDS + 1):
            start = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, time.perf_counter() - start)
    return STREAM / best / 1e9
