"""Predictions against what was measured afterwards, from stored files: the table of the repository in one command.

A folder holds `predictions/NAME.json`; `windows/NAME.json` is the isolation window of the same switch (A = 0, B = 1:
the saving is B - A), `NAME-graph.sqlite.gz` and `STEM-default-graph.sqlite.gz` are whole-graph recordings of both arms,
whose difference is the saving in device time.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import clock, prediction
from census import timing
from census.errors import CensusError


@dataclass(frozen=True)
class Score:
    """One prediction of a saving, µs per step; None where nothing measures it."""

    name: str
    made: str
    low: float
    point: float
    high: float
    clock_us: float | None
    clock_low_us: float | None
    clock_high_us: float | None
    clock_inside: bool | None
    clock_error_pct: float | None
    device_us: float | None
    device_inside: bool | None
    device_error_pct: float | None


def of_folder(folder: Path) -> tuple[Score, ...]:
    """Every prediction in a folder, by name. Raises CensusError when there is none."""
    files = sorted((folder / "predictions").glob("*.json"))
    if not files:
        raise CensusError(f"{folder}: holds no predictions/*.json; `census fusions ... --save-to` writes one")
    return tuple(_score(folder, path) for path in files)


def _score(folder: Path, path: Path) -> Score:
    data = prediction.load(path)
    if "saving_us" not in data:
        raise CensusError(f"{path}: is no prediction of one saving (`census fusions TRACE --plan P --to Q` writes one)")
    saving = prediction.Interval(**data["saving_us"])
    window = folder / "windows" / path.name
    said = clock.read(window) if window.exists() else None
    device = _device(folder, path.stem)
    measured, low, high = (said.change_us, said.low_us, said.high_us) if said else (None, None, None)
    return Score(path.stem, data["date"], saving.low, saving.point, saving.high, measured, low, high,
                 *_against(saving, measured), device, *_against(saving, device))


def _against(saving: prediction.Interval, measured: float | None) -> tuple[bool | None, float | None]:
    if measured is None:
        return None, None
    return measured in saving, 100 * (saving.point - measured) / abs(measured) if measured else None


def _device(folder: Path, name: str) -> float | None:
    """Whole-graph step without the switch's route less the one with it, µs; None without both recordings.

    A step that is launched eagerly is no graph: its recording says nothing of whole-graph time.
    """
    off = folder / f"{name}-graph.sqlite.gz"
    on = folder / f"{name.split('-no-')[0]}-default-graph.sqlite.gz"
    if not off.exists() or not on.exists():
        return None
    try:
        return timing.read(str(off)).step_us - timing.read(str(on)).step_us
    except CensusError:
        return None


def summary(scores: Sequence[Score]) -> dict[str, Any]:
    """Per kind of measurement: how many there are, how many lie inside, the median error of the points in percent."""
    out = {}
    for kind in ("clock", "device"):
        inside = [getattr(s, f"{kind}_inside") for s in scores if getattr(s, f"{kind}_inside") is not None]
        errors = [abs(e) for s in scores if (e := getattr(s, f"{kind}_error_pct")) is not None]
        out[kind] = {"measured": len(inside), "inside": sum(inside),
                     "median_error_pct": statistics.median(errors) if errors else None}
    return out
