"""Predicted, recorded, clocked: three figures of one change, item by item, with what is left.

    clock = recorded exposed change + residual;  recorded = predicted rows + their errors

The ledgers of the two recordings say which rows changed; the window says what the step really did. Where signs
disagree it is said which figure is on which side, and which rows explain it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import clock, predict, prediction, sequence
from analysis.clock import Clock
from analysis.prediction import Interval
from census.errors import CensusError


@dataclass(frozen=True)
class Row:
    """A kernel family, µs per step, post - pre. `predicted_us` is None where the prediction does not name it."""

    kernel: str
    predicted_us: float | None
    recorded_us: float
    error_us: float | None


@dataclass(frozen=True)
class Reconciled:
    """µs per step, post - pre."""

    prediction: str
    made: str  # date
    predicted: Interval
    recorded_us: float  # change of the recorded step, node tracing on
    durations_us: float  # change of the summed durations
    clock: Clock
    contained: bool
    residual_us: float  # clock - recorded
    rows: tuple[Row, ...]
    findings: tuple[str, ...]
    warnings: tuple[str, ...]


def of_files(path: Path, pre: str, post: str, window: Path, candidate: str | None = None, how: str = "auto",
             backwards: bool = False) -> Reconciled:
    """Reconcile a prediction with two recordings and a window of the arms A = pre and B = post.

    `backwards`: the window's A is the post arm (an isolation, where A is the switch at 0).
    Raises CensusError for a prediction that was changed, and for a candidate that it does not hold.
    """
    data = prediction.load(path)
    change = predict.of_steps(sequence.read(pre, how), sequence.read(post, how))
    said = clock.read(window)
    if backwards:
        said = clock.turned(said)
    predicted, named = predicted_change(data, candidate, path)
    return reconcile(path.name, data, predicted, named, change, said)


def predicted_change(data: dict[str, Any], candidate: str | None, path: Path) -> tuple[Interval, dict[str, float]]:
    """The interval of the change, and what the prediction says of each kernel, both post - pre."""
    if "candidates" in data:
        names = [c["name"] for c in data["candidates"]]
        if candidate not in names:
            raise CensusError(f"{path}: --candidate {candidate}: give one of {', '.join(names) or 'none'}")
        data = next(c for c in data["candidates"] if c["name"] == candidate)
    if "saving_us" in data:
        saving = data["saving_us"]
        return Interval(-saving["high"], -saving["point"], -saving["low"]), _named(data)
    return Interval(**data["change_us"]), _named(data)


def _named(data: dict[str, Any]) -> dict[str, float]:
    return {r["kernel"]: r["change_us"] for r in data.get("rows", []) if r.get("change_us") is not None}


def reconcile(name: str, data: dict[str, Any], predicted: Interval, named: dict[str, float], change: predict.Change,
              said: Clock) -> Reconciled:
    """`named`: predicted change per kernel or kernel family."""
    rows = tuple(_row(r, named) for r in change.rows)
    recorded = change.post.step_us - change.pre.step_us
    return Reconciled(name, data["date"], predicted, recorded, change.duration_change_us, said,
                      said.change_us in predicted, said.change_us - recorded, rows,
                      tuple(_findings(predicted, recorded, change, said)), tuple(_warnings(data, change, said)))


def _row(row: predict.Row, named: dict[str, float]) -> Row:
    mine = [v for k, v in named.items() if k.split("<")[0] == row.kernel]
    predicted = sum(mine) if mine else None
    return Row(row.kernel, predicted, row.change_us, None if predicted is None else row.change_us - predicted)


def _findings(predicted: Interval, recorded: float, change: predict.Change, said: Clock) -> list[str]:
    inside = "lies in" if said.change_us in predicted else "LIES OUTSIDE"
    out = [f"the clock's {said.change_us:+,.1f} µs {inside} the predicted interval [{predicted.low:+,.1f}, "
           f"{predicted.high:+,.1f}], its point is off by {said.change_us - predicted.point:+,.1f} µs"]
    figures = (("exposed time", recorded), ("the sum of durations", change.duration_change_us))
    for name, value in figures:
        verb = "agrees" if value * said.change_us > 0 else "DISAGREES"
        out.append(f"{name} ({value:+,.1f} µs) {verb} in sign with the clock ({said.change_us:+,.1f} µs)")
    slower = said.change_us > 0
    side = [r for r in change.rows if (r.change_us > 0) == slower and abs(r.change_us) >= 0.1 * abs(said.change_us)]
    word = "slower" if slower else "faster"
    out.append(f"{word} because of " + (", ".join(f"{r.kernel} ({r.change_us:+,.1f} µs)" for r in side) or "no row"))
    return out


def _warnings(data: dict[str, Any], change: predict.Change, said: Clock) -> Sequence[str]:
    out = []
    if said.date and said.date < data["date"][: len(said.date)]:
        out.append(f"the window ({said.date}) is older than the prediction ({data['date']}): not predicted, explained")
    held = {i["sha256"] for i in data.get("inputs", [])}
    if held and change.pre.sha256 not in held:
        out.append(f"{change.pre.trace} is not among the files that the prediction was made from")
    if said.low_us is None:
        out.append(f"{said.pairs} pairs give no interval of the clock (6 do)")
    return out
