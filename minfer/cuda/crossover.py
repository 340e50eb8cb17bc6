"""Which kernel wins for which matrix: every kernel that a decode matmul could take, timed over shapes.

For each (type, od, id) the kernels that the gate table could choose at one token run on the same random blocks: each is
checked against float64 on the host first, a wrong one gets no time. Then each is captured as a graph of launches that
go round over copies of the matrix, more than three times the L2 in all, and the graphs are replayed in random order.
A launch's time is a graph's by its launches: what a step pays, with the gap to the next launch, without the quantize of
activations (in a step a producer writes the plane). The table is append-only JSON lines: a header for each run, a line
for each shape and kernel; a run goes on where the table ends.
"""

import csv
import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gguf
import numpy as np

from minfer.cuda import dispatch
from minfer.cuda.kernels import KERNELS, ROWS_PER_BLOCK, row_bytes
from minfer.errors import UserError
from minfer.gguf import QUANTS

L2_TIMES = 3  # bytes that go by before a matrix is read again, in sizes of the L2
LEAST_LAUNCHES = 8  # of a graph: large matrices go round several times, the graph's own launch is spread over them
ROUNDS = 9
ROWS_CHECKED = 16
TOLERANCE = 1e-5  # of the sum of |weight · activation|: float32 sums in any order stay within it
TILE_BLOCKS = 1 << 16  # random blocks as stored; whole rows of them are repeated over the weights
ALIGN = 256
CATALOGUED = Path(__file__).with_name("crossover_shapes.csv")
DEFAULT_OD = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768)
DEFAULT_ID = (1024, 1536, 2048, 3072, 4096, 5120, 8192, 14336, 18944)
# type -> where the f16 scales of a stored block are; its other bits may be anything
SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A matrix; `grid`: of the regular grid, not of a model."""

    type: str
    od: int
    id: int
    grid: bool = False

    @property
    def key(self) -> tuple[str, int, int]:
        return self.type, self.od, self.id

    @property
    def nbytes(self) -> int:
        """Bytes on the device: what a launch reads."""
        return self.od * row_bytes(self.type, self.id)

    @property
    def stride(self) -> int:
        """Bytes from a copy to the next: whole rows, aligned."""
        unit = math.lcm(row_bytes(self.type, self.id), ALIGN)
        return -(-self.nbytes // unit) * unit

    def copies(self, l2_bytes: int) -> int:
        """Copies that are more than L2_TIMES of the L2 together."""
        return L2_TIMES * l2_bytes // self.nbytes + 1


@dataclass(frozen=True)
class Call:
    """A kernel on a shape. `source`: f32 activations, or their q8 plane."""

    kernel: str
    shape: Shape
    source: np.ndarray

    @property
    def grid(self) -> tuple[int, int, int]:
        return -(-self.shape.od // ROWS_PER_BLOCK[KERNELS[self.kernel].family]), 1, 1


class Machine(Protocol):
    """What executes: a GPU, or something that stands for one in tests."""

    facts: dict[str, Any]  # device, l2_bytes, bandwidth_gbs, versions

    def load(self, shape: Shape, rows: np.ndarray, nbytes: int) -> None:
        """Weights of the shape's type from now on: these stored rows again and again, as they lie on the device."""

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes of weights have room."""

    def quantize(self, x: np.ndarray) -> np.ndarray:
        """The q8 plane of one row of activations."""

    def run(self, call: Call) -> np.ndarray:
        """The output of one launch on the first copy; elements that it does not write are NaN."""

    def capture(self, call: Call, copies: int, launches: int) -> Callable[[], float]:
        """A graph of launches, going round over the copies; each call replays it and returns µs for all of it."""


def variants(kind: str) -> list[str]:
    """The kernels that the gate table could choose for this type at one token, whatever size and switches are."""
    gates = [g for g in dispatch.GATES if g.type in (None, kind) and g.nt[0] <= 1 <= g.nt[1]]
    names = [dispatch.kernel_name(g, kind) for g in gates]
    return [n for n in dict.fromkeys(names) if n in KERNELS]


def contested() -> list[str]:
    """The types with more than one kernel to choose from."""
    return [t for t in SCALES if len(variants(t)) > 1]


def plan(kinds: Sequence[str], ods: Iterable[int], ids: Iterable[int], real: Iterable[tuple[str, int, int]],
         seed: int) -> list[Shape]:  # fmt: skip
    """What to measure: shapes of models first, then the grid, both in random order. Raises UserError for a type."""
    for kind in kinds:
        if kind not in SCALES:
            raise UserError(f"--types {kind} is not allowed: give some of {', '.join(SCALES)}")
    sizes = [(od, id) for od in ods for id in ids]
    grid = {(t, od, id): Shape(t, od, id, grid=True) for t in kinds for od, id in sizes if id % QUANTS[t].elements == 0}
    models = {key: Shape(*key) for key in real if key[0] in kinds}
    order = random.Random(seed)
    parts = [list(models.values()), [s for key, s in grid.items() if key not in models]]
    for part in parts:
        order.shuffle(part)
    return parts[0] + parts[1]


def tile(kind: str, seed: int) -> np.ndarray:
    """Random stored blocks of a type, their scales small and finite."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (TILE_BLOCKS, QUANTS[kind].nbytes), dtype=np.uint8)
    for at in SCALES[kind]:
        scales = rng.uniform(0.001, 0.01, TILE_BLOCKS).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks


def whole_rows(blocks: np.ndarray, shape: Shape) -> np.ndarray:
    """The blocks as stored rows of a shape (rows, bytes), at least one."""
    per_row = shape.id // QUANTS[shape.type].elements
    return np.resize(blocks, (max(1, len(blocks) // per_row), per_row * QUANTS[shape.type].nbytes))


def rows_of(stored: np.ndarray, shape: Shape, rows: Sequence[int]) -> np.ndarray:
    """The first copy's weights in these rows, as float64."""
    chosen = stored[np.asarray(rows) % len(stored)]
    found = gguf.quants.dequantize(chosen, gguf.GGMLQuantizationType(QUANTS[shape.type].id))
    return np.asarray(found, np.float64)


def plane_values(plane: np.ndarray) -> np.ndarray:
    """What a q8 plane stands for: per 32 values an f16 scale, two pad bytes, 32 int8, their sum."""
    blocks = plane.reshape(-1, 40)
    d = blocks[:, :2].copy().view("<f2").astype(np.float64)
    return np.asarray((d * blocks[:, 4:36].copy().view(np.int8)).reshape(-1))


def measure(machine: Machine, shape: Shape, stored: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """Check, then time, every kernel on one shape: a table line each. A kernel that is wrong has an error, no time."""
    rng = np.random.default_rng([seed, shape.od, shape.id])
    x = rng.standard_normal(shape.id).astype(np.float32)
    rows = sorted({0, shape.od - 1, *map(int, rng.integers(0, shape.od, ROWS_CHECKED))})
    weights = rows_of(stored, shape, rows)
    calls = {k: Call(k, shape, machine.quantize(x) if KERNELS[k].family == "mmvq" else x) for k in variants(shape.type)}
    errors = {k: error(machine.run(call), rows, weights, call.source) for k, call in calls.items()}
    right = {k: call for k, call in calls.items() if errors[k] <= TOLERANCE}
    times = time_calls(machine, right, random.Random(seed))
    return [line(machine, shape, k, errors[k], times.get(k)) for k in calls]


def error(out: np.ndarray, rows: Sequence[int], weights: np.ndarray, source: np.ndarray) -> float:
    """Largest difference from float64, as a share of the sum of magnitudes; infinite where nothing was written."""
    x = plane_values(source) if source.dtype == np.uint8 else source.astype(np.float64)
    if not np.isfinite(out).all():
        return math.inf
    return float(np.max(np.abs(out[list(rows)] - weights @ x) / (np.abs(weights) @ np.abs(x))))


def time_calls(machine: Machine, calls: dict[str, Call], order: random.Random) -> dict[str, list[float]]:
    """µs per launch, ROUNDS of each call, the calls of a round in random order; one round before goes uncounted."""
    counts = {k: launches(call.shape, machine.facts["l2_bytes"]) for k, call in calls.items()}
    graphs = {k: machine.capture(call, *counts[k]) for k, call in calls.items()}
    times: dict[str, list[float]] = {k: [] for k in calls}
    for turn in range(ROUNDS + 1):
        for name in order.sample(list(graphs), len(graphs)):
            us = graphs[name]() / counts[name][1]
            if turn:
                times[name].append(us)
    return times


def launches(shape: Shape, l2_bytes: int) -> tuple[int, int]:
    """Copies of the matrix, and launches of a graph: whole rounds over the copies."""
    copies = shape.copies(l2_bytes)
    return copies, copies * -(-LEAST_LAUNCHES // copies)


def line(machine: Machine, shape: Shape, kernel: str, wrong: float, times: list[float] | None) -> dict[str, Any]:
    """A line of the table; `error` null: infinite."""
    copies, count = launches(shape, machine.facts["l2_bytes"])
    row: dict[str, Any] = {
        "type": shape.type, "od": shape.od, "id": shape.id, "grid": shape.grid, "kernel": kernel,
        "elements": shape.od * shape.id, "bytes": shape.nbytes, "copies": copies, "launches": count,
        "error": float(f"{wrong:.3g}") if math.isfinite(wrong) else None, "checked": wrong <= TOLERANCE,
    }  # fmt: skip
    if times is None:
        return row | dict.fromkeys(("us", "us_min", "us_max", "rounds", "gbs", "share"))
    us, bandwidth = statistics.median(times), machine.facts.get("bandwidth_gbs")
    gbs = shape.nbytes / us / 1e3
    return row | {
        "us": round(us, 4), "us_min": round(min(times), 4), "us_max": round(max(times), 4), "rounds": len(times),
        "gbs": round(gbs, 1), "share": round(gbs / bandwidth, 4) if bandwidth else None,
    }  # fmt: skip


class Session:
    """Shapes on a machine: a type's tile is made once, its weights are loaded for each length of a row."""

    def __init__(self, machine: Machine, shapes: Sequence[Shape], seed: int) -> None:
        self.machine, self.seed = machine, seed
        self.tiles: dict[str, np.ndarray] = {}
        self.loaded: dict[str, int] = {}  # type -> row length that its weights on the machine have
        l2 = machine.facts["l2_bytes"]
        self.needs = {kind: max(s.copies(l2) * s.stride for s in group) for kind, group in by_type(shapes).items()}
        self.shapes = list(shapes)

    def measure(self, shape: Shape) -> list[dict[str, Any]]:
        """The lines of one shape. Raises UserError when its type's weights have no room."""
        kind = shape.type
        if kind not in self.tiles:
            if not self.machine.fits(self.needs[kind]):
                raise UserError(f"{kind} needs {self.needs[kind] / 1e9:.1f} GB, more than is free: give fewer --types "
                                "at a time, or --no-models")  # fmt: skip
            self.tiles[kind] = tile(kind, self.seed)
        stored = whole_rows(self.tiles[kind], shape)
        if self.loaded.get(kind) != shape.id:
            self.machine.load(shape, stored, self.needs[kind])
            self.loaded[kind] = shape.id
        return measure(self.machine, shape, stored, self.seed)


def by_type(shapes: Iterable[Shape]) -> dict[str, list[Shape]]:
    """Shapes by their quant type."""
    found: dict[str, list[Shape]] = {}
    for shape in shapes:
        found.setdefault(shape.type, []).append(shape)
    return found


def catalogued() -> list[tuple[str, int, int]]:
    """(type, od, id) of the catalogued models' matmuls; the file is written by `python -m census.catalogue`."""
    with CATALOGUED.open(newline="", encoding="utf-8") as file:
        return [(r["type"], int(r["od"]), int(r["id"])) for r in csv.DictReader(file)]
