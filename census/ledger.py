"""Steps into a ledger that closes: per kernel what it adds to a step, in exposed time.

step_us = exposed of all rows + gaps inside the step + residual (foreign work inside the step's window), exactly.
The gap before the first launch of a step lies between steps. Means over the steps of a trace are means and labelled
so; launch counts are exact, and a count that differs between steps is flagged with min, median and max.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from census import activity, attribution, launches, ranges, sources
from census import steps as cut
from census import trace as tr
from census.activity import COPY, KERNEL, REPLAY, SET, Activity
from census.launches import Identity
from census.steps import Steps
from census.trace import Trace

_US = 1e-3  # µs per ns
_OVERLAP = 0.02  # durations and exposed time that differ by more than this are remarked upon


@dataclass(frozen=True)
class Row:
    """One key of a ledger; figures per step are means over the steps. Unknown is None."""

    key: str
    kind: str  # kernel, copy, set, graph, or mixed
    launches_per_step: float | None  # kernels; None: holds whole graphs, whose launches are not visible
    launches_min: int | None
    launches_median: float | None
    launches_max: int | None
    copies_per_step: float  # copies and sets, which are not launches
    us_per_launch: float | None  # median duration; None for rows added up
    exposed_us_per_launch: float | None
    exposed_us_per_step: float
    duration_us_per_step: float
    share: float  # of the step's wall time


@dataclass(frozen=True)
class Total:
    """What the rows add up to, and the step it closes with. All per step (or per trace), in µs."""

    launches_per_step: float | None
    exposed_us_per_step: float
    gap_us_per_step: float
    residual_us_per_step: float
    step_us: float
    step_us_min: float
    step_us_max: float
    between_us: float | None  # mean device time from the end of a step to the begin of the next
    duration_us_per_step: float  # the sum of durations: not time


@dataclass(frozen=True)
class StepFacts:
    """How the trace was cut. `count` 0 means it was not: every figure is then a total of the trace."""

    method: str
    reason: str
    count: int
    launches_per_step: float | None
    launches_min: int | None
    launches_max: int | None
    match: float | None
    layer_period: int | None
    excluded: dict[str, int]


@dataclass(frozen=True)
class Ledger:
    """A census: every row, largest exposed first, and what they close with."""

    trace: str
    device: str | None
    devices: int
    by: str
    unit: str  # "step" or "trace"
    steps: StepFacts
    rows: tuple[Row, ...]
    total: Total
    identity: Identity
    warnings: tuple[str, ...]


def of_file(path: str, *, steps: str = "auto", by: str = "kernel") -> Ledger:
    """The ledger of an export. Raises CensusError for a file, a step method or a key that cannot be used."""
    trace = sources.open_source(path)
    try:
        return of_trace(trace, steps=steps, by=by)
    finally:
        tr.close(trace)


def of_trace(trace: Trace, *, steps: str = "auto", by: str = "kernel") -> Ledger:
    """The ledger of an open trace, cut by `steps` (see steps.find), keyed by `by` (see attribution.KEYS)."""
    attribution.check(by)
    act = activity.load(trace)
    joined = launches.join(trace, act)
    spans = ranges.load(trace)
    found = cut.find(trace, act, joined, spans, steps)
    keys = attribution.keys(trace, act, joined, spans, by)
    rows, total = close(act, found, keys.code, keys.text)
    facts, devices = _facts(act, found), np.unique(act.device)
    warnings = (*trace.warnings, *found.warnings, *keys.warnings, *joined.warnings, *_invisible(act, trace),
                *_remarks(total, rows, facts))
    return Ledger(str(trace.path), _device_name(trace, int(devices[0])), len(devices), by,
                  "step" if found.count else "trace", facts, rows, total, joined.identity,
                  (*warnings, *_several(devices, found)))


def close(act: Activity, steps: Steps, code: NDArray, text: tuple[str, ...]) -> tuple[tuple[Row, ...], Total]:
    """Rows per key and the total, from work with a step number and a key code each."""
    inside = np.flatnonzero(steps.of >= 0)
    of = steps.of[inside]
    windows = _windows(act, inside, of, int(of.max()) + 1)
    per = _US / max(steps.count, 1)  # sums of ns -> µs per step, or per trace where there are no steps
    exposed, gap, wall = int(act.exposed[inside].sum()), int(windows.gap.sum()), int(windows.wall.sum())
    rows = _rows(act, inside, of if steps.count else np.zeros_like(of), code[inside], text, per, wall)
    kind = act.kind[inside]
    count = None if (kind == REPLAY).any() else _exact(int((kind == KERNEL).sum()) / max(steps.count, 1))
    total = Total(
        count, exposed * per, gap * per, (wall - gap - exposed) * per, wall * per,
        float(windows.wall.min()) * _US, float(windows.wall.max()) * _US, windows.between,
        int((act.end - act.start)[inside].sum()) * per,
    )
    return rows, total


@dataclass(frozen=True)
class _Windows:
    """The window of each step on its device (of each device, where there are no steps)."""

    wall: NDArray[np.int64]  # ns
    gap: NDArray[np.int64]  # ns of idle time inside
    between: float | None  # mean µs to the next window on the same device


def _windows(act: Activity, inside: NDArray, of: NDArray, count: int) -> _Windows:
    """Per step: from its first launch's first own moment to its latest end, and the idle time in between."""
    first, last = np.full(count, len(act), np.int64), np.zeros(count, np.int64)
    np.minimum.at(first, of, inside)
    np.maximum.at(last, of, inside)
    same = np.zeros(count, np.bool_)  # is the piece of work before the step on the same device?
    same[first > 0] = act.device[first[first > 0] - 1] == act.device[first[first > 0]]
    begin = np.where(same, np.maximum(act.start[first], act.reach[np.maximum(first - 1, 0)]), act.start[first])
    idle = np.concatenate(([0], np.cumsum(act.gap)))
    # A device's first piece has gap 0, so sums over gaps never cross devices.
    gap = idle[last + 1] - idle[first + 1]
    finish = act.reach[last]
    order = np.argsort(first, kind="stable")  # device by device, in time
    after, before = order[1:], order[:-1]
    same_device = act.device[first[after]] == act.device[first[before]]
    pause = (begin[after] - finish[before])[same_device]
    between = float(pause.mean()) * _US if len(pause) else None
    return _Windows(finish - begin, gap, between)


def _rows(act: Activity, inside: NDArray, of: NDArray, code: NDArray, text: tuple[str, ...], per: float,
          wall: int) -> tuple[Row, ...]:
    """One row per key, largest exposed first, ties by name. `per` turns a sum of ns into µs per step."""
    size, steps, kind = len(text), int(of.max()) + 1, act.kind[inside]
    length = (act.end - act.start)[inside]
    exposed, duration = np.bincount(code, act.exposed[inside], size), np.bincount(code, length, size)
    number = np.bincount(code, minlength=size)
    launch = kind == KERNEL
    counts = _per_step(code[launch], of[launch], size, steps)
    order = np.argsort(code.astype(np.uint16) if size < 1 << 16 else code, kind="stable")  # 16 bits: a radix sort
    cuts = np.concatenate(([0], np.cumsum(number)))
    rows = []
    for k in np.flatnonzero(number):
        members = order[cuts[k] : cuts[k + 1]]
        name, copies = _kind(kind[members])
        launches = _Count(None, None, None, None) if (kind[members] == REPLAY).any() else counts[k]
        rows.append(Row(
            text[k], name, *launches, _exact(copies / steps), float(np.median(length[members])) * _US,
            exposed[k] * _US / number[k], float(exposed[k]) * per, float(duration[k]) * per,
            float(exposed[k]) / wall if wall else 0.0,
        ))
    return tuple(sorted(rows, key=lambda r: (-r.exposed_us_per_step, r.key)))


class _Count(NamedTuple):
    mean: float | None
    low: int | None
    median: float | None
    high: int | None


def _per_step(code: NDArray, of: NDArray, size: int, steps: int) -> list[_Count]:
    """Launches per step of each key, over all steps; a step without the key counts as 0."""
    pairs, number = _counted(code.astype(np.int64) * steps + of, size * steps)
    cuts = np.searchsorted(pairs, np.arange(size + 1) * steps)
    out = []
    for k in range(size):
        seen = np.zeros(steps, np.int64)
        at = slice(cuts[k], cuts[k + 1])
        seen[pairs[at] - k * steps] = number[at]
        out.append(_Count(_exact(seen.sum() / steps), int(seen.min()), float(np.median(seen)), int(seen.max())))
    return out


def _counted(values: NDArray, top: int) -> tuple[NDArray, NDArray]:
    """Distinct values below `top` in order, and how often each occurs."""
    if top > 4 * len(values) + 1_000_000:
        return np.unique(values, return_counts=True)
    number = np.bincount(values, minlength=top)
    present = np.flatnonzero(number)
    return present, number[present]


def _kind(kinds: NDArray) -> tuple[str, int]:
    """What a row is made of, and how many copies and sets are in it."""
    copies = int(((kinds == COPY) | (kinds == SET)).sum())
    only = int(kinds[0])
    if (kinds != only).any():
        return "mixed", copies
    return {KERNEL: "kernel", COPY: "copy", SET: "set", REPLAY: "graph"}[only], copies


def _exact(value: float) -> float:
    """A whole number of launches stays an int, so that it prints and compares as one."""
    return int(value) if float(value).is_integer() else float(value)


def _facts(act: Activity, found: Steps) -> StepFacts:
    """How the trace was cut, with the launches of a step counted exactly."""
    kernel = (act.kind == KERNEL) & (found.of >= 0)
    if not found.count or (act.kind[found.of >= 0] == REPLAY).any():
        low = high = mean = None
    else:
        seen = np.bincount(found.of[kernel], minlength=found.count)
        low, high, mean = int(seen.min()), int(seen.max()), _exact(seen.sum() / found.count)
    return StepFacts(found.method, found.reason, found.count, mean, low, high, found.match, found.layer_period,
                     found.excluded)


def _device_name(trace: Trace, device: int) -> str | None:
    """`device` is the machine's number where the export maps CUDA's to it (see activity.load), else CUDA's."""
    number = "id" if "cuda_devices" in trace.rows else "cuda"
    return next((d.name for d in trace.devices if getattr(d, number) == device), None)


def _remarks(total: Total, rows: tuple[Row, ...], facts: StepFacts) -> list[str]:
    """What a reader must know before using the figures: overlap, residual, counts that vary."""
    out = []
    exposed, duration = total.exposed_us_per_step, total.duration_us_per_step
    if exposed and abs(duration - exposed) > _OVERLAP * exposed:
        out.append(f"durations add up to {duration:,.1f} µs, exposed time to {exposed:,.1f} µs: kernels overlap "
                   "(dependent launch or several streams) and their durations contain waiting; do not add durations")
    if facts.launches_min != facts.launches_max:
        out.append(f"launches per step differ: {facts.launches_min} to {facts.launches_max}")
    varying = [r for r in rows if r.launches_min != r.launches_max]
    if varying:
        worst = ", ".join(f"{r.key[:60]} {r.launches_min}/{r.launches_median:g}/{r.launches_max}" for r in varying[:3])
        out.append(f"{len(varying)} rows have a launch count that varies between steps (min/median/max): {worst}")
    if total.residual_us_per_step:
        out.append(f"{total.residual_us_per_step:,.3f} µs per step is other work inside the steps' windows (residual)")
    return out


def _invisible(act: Activity, trace: Trace) -> list[str]:
    """Whole-graph recordings hide the kernels of their replays; say so and name the flag that shows them."""
    hidden = act.kind == REPLAY
    if not hidden.any():
        return []
    return [f"recorded with whole-graph granularity: the kernels inside {int(hidden.sum())} graph replays "
            f"({act.exposed[hidden].sum() * 1e-6:,.1f} ms) are not in this trace; record with --cuda-graph-trace=node"]


def _several(devices: NDArray, found: Steps) -> list[str]:
    if len(devices) < 2:
        return []
    per = "figures are per step and device" if found.count else "figures are sums over the devices"
    return [f"{len(devices)} devices: {per}"]
