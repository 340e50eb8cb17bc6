"""What the clock says: the runs of an interleaved window as µs per step, and the change from A to B with its interval.

The interval is that of the median of the paired differences by order statistics, with its real coverage; there is none
below 6 pairs (census/ab/stats.py).
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from census import timing
from census.ab import stats
from census.ab import window as windows
from census.errors import CensusError


@dataclass(frozen=True)
class Clock:
    """µs per step. `change_us` is median B - median A; low and high bound the median paired difference."""

    window: str
    date: str | None
    switch: str | None
    pairs: int
    b_slower: int
    a_us: float
    b_us: float
    change_us: float
    low_us: float | None
    high_us: float | None
    coverage: float | None


def read(path: Path) -> Clock:
    """The clock of a window, over its whole pairs that count. Raises CensusError where there is none."""
    window, times = windows.load(path), pairs(path)
    change = [b - a for a, b in times]
    interval = stats.median_interval(change) or (None, None, None)
    middle_a, middle_b = (statistics.median(side) for side in zip(*times, strict=True))
    return Clock(window.name, window.date, window.switch, len(change), sum(d > 0 for d in change), middle_a, middle_b,
                 middle_b - middle_a, *interval)


def pairs(path: Path) -> list[tuple[float, float]]:
    """(A, B) of each whole pair that counts, in µs per step. Raises CensusError for a window without one."""
    window, rows = windows.load(path), _rows(path)
    counted = {p.number for p in window.pairs if p.complete and not p.why}
    times: dict[Any, dict[str, float]] = {}
    for row in rows:
        if row["pair"] in counted and row["arm"] in ("A", "B"):
            times.setdefault(row["pair"], {})[row["arm"]] = step_us(row, window.name)
    if not times:
        raise CensusError(f"{path}: holds no whole pair of runs that counts")
    return [(pair["A"], pair["B"]) for pair in times.values()]


def turned(read: Clock) -> Clock:
    """The same clock with its arms exchanged: change from B to A."""
    low, high = (None, None) if read.low_us is None or read.high_us is None else (-read.high_us, -read.low_us)
    return replace(read, a_us=read.b_us, b_us=read.a_us, change_us=-read.change_us, low_us=low, high_us=high,
                   b_slower=read.pairs - read.b_slower)


def _rows(path: Path) -> list[dict[str, Any]]:
    file = path / "window.json" if path.is_dir() else path
    rows: list[dict[str, Any]] = timing.load_json(file)["runs"]
    return rows


def step_us(row: Mapping[str, Any], window: str) -> float:
    """µs per token of a run: from tokens per second, or from a figure in ms per token."""
    if isinstance(row.get("avg_ts"), int | float) and row["avg_ts"] > 0:
        return 1e6 / float(row["avg_ts"])
    if row.get("unit") == "ms/token":
        return float(row["value"]) * 1e3
    raise CensusError(f"{window}: a run has neither avg_ts nor a figure in ms/token; a step's time cannot be read")
