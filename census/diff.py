"""Two ledgers side by side: which kernels came, went or changed per step, and whether the clock agrees.

A kernel found only in B is a row: a fused kernel is exactly that. The rows' changes add up to the difference of the
two totals, in launches, in exposed time and in durations.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from census import timing
from census.errors import CensusError
from census.ledger import Ledger, Row

_SPEEDS = ("avg_ts",)  # tokens per second of a run in a window file


@dataclass(frozen=True)
class Change:
    """One key in both ledgers; figures of the side that lacks it are 0 launches and 0 µs. Unknown is None."""

    key: str
    status: str  # added (only in B), removed (only in A), changed, same
    launches_a: float | None
    launches_b: float | None
    us_per_launch_a: float | None
    us_per_launch_b: float | None
    exposed_us_a: float
    exposed_us_b: float
    exposed_us_change: float  # per step, B - A
    duration_us_change: float


@dataclass(frozen=True)
class Clock:
    """The measured change of a step, B - A, from an interleaved window, and what it says about the ledgers."""

    source: str
    pairs: int
    b_slower: int  # pairs in which B took longer
    us_change: float  # median of B's steps - median of A's
    exposed_agrees: bool
    durations_agree: bool


@dataclass(frozen=True)
class Diff:
    """All changes, largest first, and the totals that they add up to. Per step in µs, B - A."""

    a: Ledger
    b: Ledger
    rows: tuple[Change, ...]
    launches_change: float | None
    exposed_us_change: float
    gap_us_change: float
    residual_us_change: float
    step_us_change: float
    duration_us_change: float
    clock: Clock | None
    warnings: tuple[str, ...]


def ledgers(a: Ledger, b: Ledger, window: Path | None = None) -> Diff:
    """Compare two ledgers of one kind of key. Raises CensusError when only one of them has steps."""
    if a.unit != b.unit:
        raise CensusError(f"{a.trace} has {a.steps.count} steps and {b.trace} has {b.steps.count}: a step and a whole "
                          "trace do not compare; give --steps none for totals")
    ours, theirs = {r.key: r for r in a.rows}, {r.key: r for r in b.rows}
    rows = [_change(key, ours.get(key), theirs.get(key)) for key in dict.fromkeys([*ours, *theirs])]
    ta, tb = a.total, b.total
    exposed = tb.exposed_us_per_step - ta.exposed_us_per_step
    duration = tb.duration_us_per_step - ta.duration_us_per_step
    return Diff(
        a, b, tuple(sorted(rows, key=lambda r: (-abs(r.exposed_us_change), r.key))),
        _minus(tb.launches_per_step, ta.launches_per_step), exposed, tb.gap_us_per_step - ta.gap_us_per_step,
        tb.residual_us_per_step - ta.residual_us_per_step, tb.step_us - ta.step_us, duration,
        read_window(window, exposed, duration) if window else None, _warnings(a, b),
    )


def _change(key: str, a: Row | None, b: Row | None) -> Change:
    launches_a, launches_b = a.launches_per_step if a else 0, b.launches_per_step if b else 0
    exposed_a, exposed_b = a.exposed_us_per_step if a else 0.0, b.exposed_us_per_step if b else 0.0
    duration = (b.duration_us_per_step if b else 0.0) - (a.duration_us_per_step if a else 0.0)
    same = launches_a == launches_b and exposed_a == exposed_b and not duration
    status = "added" if a is None else "removed" if b is None else "same" if same else "changed"
    return Change(key, status, launches_a, launches_b, a.us_per_launch if a else None, b.us_per_launch if b else None,
                  exposed_a, exposed_b, exposed_b - exposed_a, duration)


def _minus(b: float | None, a: float | None) -> float | None:
    return None if a is None or b is None else b - a


def _warnings(a: Ledger, b: Ledger) -> tuple[str, ...]:
    out = [f"A: {w}" for w in a.warnings] + [f"B: {w}" for w in b.warnings]
    if a.device != b.device:
        out.append(f"different devices: A {a.device or 'unknown'}, B {b.device or 'unknown'}")
    return tuple(out)


def read_window(path: Path, exposed: float, duration: float) -> Clock:
    """The clock's change (difference of the medians, µs per step) from a window's runs, and whether the signs agree.

    Raises CensusError for a file without pairs of an A and a B run.
    """
    data = timing.load_json(path)
    runs = data.get("runs") if isinstance(data, dict) else None
    pairs: dict[Any, dict[str, float]] = {}
    for run in runs if isinstance(runs, list) else []:
        speed = next((run[k] for k in _SPEEDS if isinstance(run, dict) and k in run), None)
        if isinstance(speed, int | float) and speed > 0 and run.get("arm") in ("A", "B"):
            pairs.setdefault(run.get("pair"), {})[run["arm"]] = 1e6 / speed
    whole = [both for both in pairs.values() if len(both) == 2]
    if not whole:
        raise CensusError(f"{path}: holds no pair of runs; a window has runs with pair, arm (A or B) and avg_ts")
    change = statistics.median(p["B"] for p in whole) - statistics.median(p["A"] for p in whole)
    return Clock(str(path), len(whole), sum(p["B"] > p["A"] for p in whole), change, exposed * change > 0,
                 duration * change > 0)
