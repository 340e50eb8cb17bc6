"""What would it save to go on to the next matrix within one grid, instead of by a dependent launch?

    python benchmarks/grid_barrier.py [--layers 28] [--json]

A layer of the 7B is four matrices (q k v, o, gate+up, down); its decode step waits four times until every block has
finished the one before (attention, a fifth kernel, is left out). Both forms read the same bytes through the rings of
`stream.cuh` (one block a multiprocessor, sixteen warps, three items of 2,304 bytes each under way), and every block
reads as many bytes of activations, which all blocks have written, before each matrix:

  launch   a dependent launch a matrix; its rings are filled before the wait: the engine's form
  plain    the same without dependent launch
  grid     one launch for all: a counter instead of the wait, and rings that go on into the next matrix without a pause

Work 0 only adds words up; work 2 does some 150 integer instructions an item, as unpacking Q4_K does. The sum of every
timed run is checked against numpy's. Times: graphs, median of seven, the forms in turn.

Predicted (2026-11-30, from the engine's own clocks): at work 2 a layer takes 5 to 8 µs beyond its bytes by launches,
and 1.5 to 3 by one grid. Measured on an H200 the same day: 15.9 and 18.6, so launches stayed (analysis/log.md).
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from minfer.cuda import cupy_module
from minfer.cuda.kernels import OPTIONS, source

ITEM, WARPS, RING = 2304, 16, 3 * 2304  # bytes, as in grid_barrier.cu
SHARED = WARPS * RING
FLOOR = 4300.0  # GB/s
ROUNDS = 7
# name -> (bytes of weights, bytes of activations): the 7B in Q4_K_M, down half Q4_K and half Q6_K
LAYER = {
    "qkv": (9_290_000, 14_336), "o": (7_225_000, 7_168), "gate+up": (76_400_000, 14_336), "down": (47_000_000, 34_048),
}  # fmt: skip
MATRIX = np.dtype([("at", "i8"), ("items", "i4"), ("activations", "i4")])
ROOM = 16_384  # words of activations


@cache
def code() -> str:
    """The program: our copies into shared memory, and what stands in grid_barrier.cu."""
    return source("async.cuh") + (Path(__file__).parent / "grid_barrier.cu").read_text()


def matrices(kinds: list[tuple[int, int]]) -> np.ndarray:
    """The kernels' rows of matrices of about so many bytes, one behind the other."""
    rows = np.zeros(len(kinds), MATRIX)
    rows["items"], rows["activations"] = [w // ITEM for w, _ in kinds], [a for _, a in kinds]
    rows["at"] = ITEM * np.cumsum([0, *rows["items"][:-1]])
    return rows


def expected(words: np.ndarray, sizes: list[int], blocks: int, work: int) -> int:
    """The sum that the last matrix leaves: A = sum of the weights + blocks · A of the matrix before, in 32 bits."""
    total, at = 0, 0
    for nbytes in sizes:
        part = words[at // 4 : (at + nbytes) // 4]
        if work:
            nibbles = part.view(np.uint8)
            mine = int((nibbles & 15).sum(dtype=np.uint64) + (nibbles >> 4).sum(dtype=np.uint64)) * sum(range(work + 1))
        else:
            mine = int(part.sum(dtype=np.uint64))
        total = (mine + blocks * total) % (1 << 32)
        at += nbytes
    return total


class Chain:
    """The matrices of some layers on the GPU, and each form of reading them as a graph."""

    def __init__(self, cp: Any, layers: int) -> None:
        self.cp, self.blocks = cp, cupy_module.gpu(cp).multiprocessors
        rows = matrices([LAYER[name] for _ in range(layers) for name in LAYER])
        self.sizes = [ITEM * int(n) for n in rows["items"]]
        self.words = cp.random.randint(0, 1 << 32, sum(self.sizes) // 4, dtype=cp.uint32)
        self.matrices = cp.asarray(rows.view(np.uint8))
        self.activations, self.arrived = cp.zeros((2, ROOM), cp.uint32), cp.zeros(1, cp.uint32)

    def graph(self, form: str, work: int) -> Any:
        """A graph of all matrices, captured after a first run."""
        cp, calls = self.cp, self._calls(form, work)
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            self._run(calls)
            stream.synchronize()
            stream.begin_capture()
            self._run(calls)
            graph = stream.end_capture()
        return SimpleNamespace(launch=lambda: graph.launch(stream), stream=stream)

    def _run(self, calls: list[Callable[[], None]]) -> None:
        self.activations.fill(0)
        self.arrived.fill(0)
        for call in calls:
            call()

    def _calls(self, form: str, work: int) -> list[Callable[[], None]]:
        words, rows, count = self.words.data.ptr, self.matrices.data.ptr, len(self.sizes)
        acts = [self.activations[i].data.ptr for i in range(2)]
        if form == "grid":
            pointers = map(np.uint64, (words, rows, acts[0], self.arrived.data.ptr))
            return [self._call(f"grid_{work}", (*pointers, np.int32(count), np.int32(ROOM)), False)]
        each = [(words, rows + MATRIX.itemsize * m, acts[m % 2], acts[(m + 1) % 2]) for m in range(count)]
        named = f"launch_{work}"
        return [self._call(named, tuple(map(np.uint64, a)), form == "launch" and m > 0) for m, a in enumerate(each)]

    def _call(self, name: str, args: tuple[np.generic, ...], dependent: bool) -> Callable[[], None]:
        function = cupy_module.function(self.cp, code(), OPTIONS, name)
        shape = {"grid": (self.blocks, 1, 1), "block": (32 * WARPS, 1, 1)}
        launch = SimpleNamespace(kernel=name, args=SimpleNamespace(params={"shared": SHARED}), **shape)
        return cupy_module.call(self.cp, function, launch, args, dependent)  # type: ignore[arg-type]

    def total(self) -> int:
        """The sum that the last matrix has left."""
        return int(self.activations[len(self.sizes) % 2, : self.blocks].sum(dtype=self.cp.uint64)) % (1 << 32)


def measure(layers: int) -> list[dict[str, Any]]:
    """A row per form and work: µs per layer, and what of it is beyond the bytes at FLOOR."""
    cp = cupy_module.load()
    chain = Chain(cp, layers)
    words, rows = cp.asnumpy(chain.words), []
    for work in (0, 2):
        graphs = {form: chain.graph(form, work) for form in ("launch", "plain", "grid")}
        want, times = expected(words, chain.sizes, chain.blocks, work), {form: [] for form in graphs}
        for _ in range(ROUNDS):
            for form, graph in graphs.items():
                begin, end = cp.cuda.Event(), cp.cuda.Event()
                begin.record(graph.stream)
                graph.launch()
                end.record(graph.stream)
                end.synchronize()
                times[form].append(1e3 * cp.cuda.get_elapsed_time(begin, end))
                if chain.total() != want:
                    raise AssertionError(f"{form}, work {work}: the sum is {chain.total()}, numpy's is {want}")
        floor = sum(chain.sizes) / FLOOR / 1e3 / layers
        for form, us in times.items():
            layer = statistics.median(us) / layers
            rows.append({"work": work, "form": form, "us_per_layer": layer, "beyond_bytes_us": layer - floor,
                         "gbs": sum(chain.sizes) / statistics.median(us) / 1e3})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = measure(args.layers)
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    for r in rows:
        beyond = f"{r['beyond_bytes_us']:6.2f} beyond its bytes at {FLOOR:,.0f} GB/s"
        print(f"work {r['work']}  {r['form']:<7} {r['us_per_layer']:8.2f} µs a layer, {beyond}; {r['gbs']:,.0f} GB/s")


if __name__ == "__main__":
    main()
