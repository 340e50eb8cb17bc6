"""benchmarks/grid_barrier.py: its kernels give numpy's sum on the CPU, and compile for the GPU that it is for."""

import sys
from pathlib import Path

import numpy as np
import pytest

from minfer.emulated import emulate
from nvrtc import compile_text

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import grid_barrier as bench

ROOM = 64
# more items than a warp's ring, fewer than warps, none
KINDS = [(40 * 2304, 128), (3 * 2304, 128), (0, 128), (97 * 2304, 256)]


@pytest.fixture(scope="module")
def module():
    return emulate.load(bench.code())


@pytest.mark.parametrize("work", [0, 2])
@pytest.mark.parametrize("blocks", [1, 3])
def test_launches_leave_the_sum(module, work, blocks):
    rows, words = bench.matrices(KINDS), np.random.default_rng(3).integers(0, 1 << 32, 140 * 576, dtype=np.uint32)
    acts = np.zeros((2, ROOM), np.uint32)
    for m, row in enumerate(rows):
        args = [words.view(np.uint8), np.array([row]).view(np.uint8), acts[m % 2], acts[(m + 1) % 2]]
        module.launch(f"launch_{work}", blocks, 512, args, bench.SHARED)
    got = int(acts[len(rows) % 2, :blocks].sum(dtype=np.uint64)) % (1 << 32)
    assert got == bench.expected(words, [2304 * int(n) for n in rows["items"]], blocks, work)


@pytest.mark.parametrize("work", [0, 2])
def test_one_grid_leaves_the_same(module, work):
    """Of one block: the emulator runs blocks one after the other, and several would wait for each other."""
    rows, words = bench.matrices(KINDS), np.random.default_rng(4).integers(0, 1 << 32, 140 * 576, dtype=np.uint32)
    acts, arrived = np.zeros((2, ROOM), np.uint32), np.zeros(1, np.uint32)
    args = [words.view(np.uint8), rows.view(np.uint8), acts.reshape(-1), arrived, np.int32(len(rows)), np.int32(ROOM)]
    module.launch(f"grid_{work}", 1, 512, args, bench.SHARED)
    assert arrived[0] == len(rows)
    assert int(acts[len(rows) % 2, 0]) == bench.expected(words, [2304 * int(n) for n in rows["items"]], 1, work)


def test_it_compiles_without_a_spill():
    made = compile_text(bench.code(), 90)
    assert made.keys() == {"launch_0", "launch_2", "grid_0", "grid_2"}
    assert all(r.spill == 0 for r in made.values()) and not made["grid_2"].waits and made["launch_2"].waits
