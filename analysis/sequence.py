"""A recorded decode step as a sequence: one entry per launch, in order, with what it adds to the step on average.

A ledger adds launches up by name; advice needs their order, their neighbours and their layer. Only steps that launch
the very same sequence are averaged; others are counted and left out.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analysis import classes
from census import activity, attribution, launches, ranges, sources, steps
from census import trace as tr
from census.activity import KERNEL, REPLAY, Activity
from census.errors import CensusError
from census.launches import Launches
from census.steps import Steps
from census.trace import Trace

_US = 1e-3  # µs per ns
_NO = ("(no layer)", "(no op)")
Dim = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One position of the step; times are means over its steps, in µs."""

    kernel: str
    layer: str | None  # None: no NVTX range says so
    op: str | None
    grid: Dim
    block: Dim
    registers: int  # per thread; 0 unknown
    exposed_us: float
    gap_us: float  # device idle time before it, inside the step
    duration_us: float

    @property
    def kind(self) -> str:
        return classes.of(self.kernel)

    @property
    def cost_us(self) -> float:
        """What goes away with it: its exposed time and the idle time before it."""
        return self.exposed_us + self.gap_us

    @property
    def hidden_us(self) -> float:
        """The part of its duration that ran beside other work."""
        return max(0.0, self.duration_us - self.exposed_us)

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class Step:
    """The step of a node-mode trace. `launches` exposed and gaps add up to step_us where residual is 0."""

    trace: str
    sha256: str
    device: str | None
    sms: int | None
    bandwidth_gbs: float | None  # datasheet, from the trace; decimal GB/s
    launches: tuple[Launch, ...]
    steps: int  # averaged
    step_us: float
    min_us: float
    max_us: float
    host_us: float | None  # of the API calls that launch one step, median; traced
    warnings: tuple[str, ...]


def read(path: str, how: str = "auto") -> Step:
    """The step of an export. Raises CensusError for a trace without steps, or whose kernels are not visible."""
    trace = sources.open_source(path)
    try:
        act = activity.load(trace)
        joined, spans = launches.join(trace, act), ranges.load(trace)
        found = steps.find(trace, act, joined, spans, how)
        _usable(path, act, found)
        layer, op = (attribution.keys(trace, act, joined, spans, by) for by in ("layer", "op"))
        names = attribution.keys(trace, act, joined, spans, "kernel")
        return _step(path, trace, act, found, (names, layer, op), host_calls(trace, act, joined, found))
    finally:
        tr.close(trace)


def _usable(path: str, act: Activity, found: Steps) -> None:
    if not found.count:
        raise CensusError(f"{path}: no steps in it ({found.reason}); advice needs decode steps, try --steps")
    if (act.kind[found.of >= 0] == REPLAY).any():
        raise CensusError(f"{path}: a whole-graph recording, its kernels are not visible; record with "
                          "--cuda-graph-trace=node, and give this file as --time-from")


def _step(path: str, trace: Trace, act: Activity, found: Steps, keys: tuple[attribution.Keys, ...],
          host: float | None) -> Step:
    shape, registers = _shapes(trace, act), _registers(trace, act)
    rows = [np.flatnonzero(found.of == i) for i in range(found.count)]
    symbols = [tuple(zip(keys[0].code[r].tolist(), map(tuple, shape[r].tolist()), strict=True)) for r in rows]
    best = Counter(symbols).most_common(1)[0][0]
    alike = [r for r, s in zip(rows, symbols, strict=True) if s == best]
    table = np.stack(alike)
    gap = act.gap[table].astype(float)
    gap[:, 0] = 0  # the idle time before the first launch lies between steps
    mean = [a.mean(axis=0) * _US for a in (act.exposed[table], gap, (act.end - act.start)[table])]
    first = table[0]
    made = [_launch(keys, shape[i], int(registers[i]), i, *(float(m[k]) for m in mean)) for k, i in enumerate(first)]
    wall = np.array([act.exposed[r].sum() + g.sum() for r, g in zip(alike, gap, strict=True)]) * _US
    left = found.count - len(alike)
    warnings = (f"{left} of {found.count} steps launch another sequence and are left out",) if left else ()
    device = trace.devices[0] if trace.devices else None
    return Step(path, digest(path), device.name if device else None, _whole(device and device.sms),
                _gbs(device and device.bandwidth), tuple(made), len(alike), float(wall.mean()), float(wall.min()),
                float(wall.max()), host, warnings)


def _launch(keys: tuple[attribution.Keys, ...], shape: NDArray, registers: int, i: int, exposed: float, gap: float,
            duration: float) -> Launch:
    kernel, layer, op = (k.text[k.code[i]] for k in keys)
    grid, block = tuple(map(int, shape[:3])), tuple(map(int, shape[3:]))
    return Launch(kernel, None if layer in _NO else layer, None if op in _NO else op, grid, block,  # type: ignore[arg-type]
                  registers, exposed, gap, duration)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _gbs(bytes_per_second: object) -> float | None:
    return bytes_per_second / 1e9 if isinstance(bytes_per_second, int) and bytes_per_second > 1e9 else None


def _shapes(trace: Trace, act: Activity) -> NDArray[np.int64]:
    """(work, 6): grid and block; 0 for copies and sets."""
    cols = tr.columns(trace, "kernels", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
    out = np.zeros((len(act), 6), np.int64)
    kernel = act.kind == KERNEL
    out[kernel] = np.stack(list(cols.values()), axis=1)[act.source[kernel]]
    return out


def _registers(trace: Trace, act: Activity) -> NDArray[np.int64]:
    out = np.zeros(len(act), np.int64)
    kernel = act.kind == KERNEL
    out[kernel] = tr.columns(trace, "kernels", "registers")["registers"][act.source[kernel]]
    return out


def host_calls(trace: Trace, act: Activity, joined: Launches, found: Steps) -> float | None:
    """µs of the API calls that launch one step, median over the steps; a replay's call counts once. None: no calls."""
    if "api" not in trace.rows:
        return None
    api = tr.columns(trace, "api", "start", "end")
    length = api["end"] - api["start"]
    per = [length[np.unique(c[c >= 0])].sum() for c in (joined.call[found.of == i] for i in range(found.count))]
    return float(np.median(per)) * _US if per else None


def launch_calls(time_from: str) -> float | None:
    """host_calls of a whole-graph recording; None for a benchmark's JSON, which says nothing of calls."""
    if time_from.endswith(".json"):
        return None
    trace = sources.open_source(time_from)
    try:
        act = activity.load(trace)
        joined, spans = launches.join(trace, act), ranges.load(trace)
        return host_calls(trace, act, joined, steps.find(trace, act, joined, spans, "graph"))
    finally:
        tr.close(trace)


def launch_cost(step: Step) -> float:
    """µs that a launch costs in this trace before it does anything: the cheapest shape that recurs in a step.

    Launch and ramp cannot be told apart from execution in a trace; the cheapest recurring launch bounds them from
    above. Recurring: a hundredth of the step's launches or more, twice at least, so that one lucky launch does not
    decide (any, where none recurs).
    """
    groups: dict[tuple[str, Dim, Dim], list[float]] = {}
    for x in step.launches:
        if x.blocks:
            groups.setdefault((x.kernel, x.grid, x.block), []).append(x.exposed_us)
    least = max(2, len(step.launches) // 100)
    recurring = [v for v in groups.values() if len(v) >= least] or list(groups.values())
    return min(sum(v) / len(v) for v in recurring)


def digest(path: str) -> str:
    """SHA-256 of a file's bytes; of a parquet folder, of its tables in name order."""
    file, made = Path(path), hashlib.sha256()
    for part in sorted(file.glob("*.parquet")) if file.is_dir() else [file]:
        made.update(part.read_bytes())
    return made.hexdigest()
