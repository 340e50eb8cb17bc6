"""From the advice's typed results to the rows, notes and JSON that `census.output.emit` prints."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from analysis import prediction
from analysis.account import Account, Entry
from analysis.fusions import Candidate
from analysis.landing import Landing
from analysis.predict import Change
from analysis.prediction import Interval
from analysis.reconcile import Reconciled
from analysis.scores import Score
from analysis.sequence import Step
from census import output
from census.output import Column, Report

_US = output.number(1, sign=True)


def _interval(value: Interval) -> str:
    return f"{value.low:+,.1f} to {value.high:+,.1f} µs, point {value.point:+,.1f}"


def account(made: Account) -> Report:
    """Items largest first, then the total they add up to."""
    rows: list[dict[str, Any]] = [asdict(i) for i in made.items]
    head = (f"ours {made.ours_ms:.2f} ms ({1e3 / made.ours_ms:.2f} tok/s), reference {made.reference_ms:.2f} ms "
            f"({made.reference})", f"distance {made.distance_ms:+.2f} ms, {made.distance_pct:+.1f}% of our step")
    columns = (Column("name", "item", output.name), Column("ms", "ms", output.number(3, sign=True)))
    data = asdict(made) | {"items": rows, "notes": list(made.notes)}
    return Report("census_account", head, columns, rows, data, foot=[{"name": "distance", "ms": made.distance_ms}],
                  notes=made.notes)


def history(entries: Sequence[Entry]) -> Report:
    """One line per window; a peer's drift stands beside, it is in no difference."""
    rows = [asdict(e) for e in entries]
    columns = (
        Column("window", "window", output.name), Column("date", "date", str),
        Column("ours_ms", "ours\nms", output.number(3)), Column("peer_ms", "peer\nms", output.number(3)),
        Column("distance_ms", "distance\nms", output.number(3, sign=True)),
        Column("distance_pct", "distance\n%", output.number(1, sign=True)),
        Column("peer_drift_ms", "peer since\nfirst, ms", output.number(3, sign=True)),
    )
    return Report("census_account_history", (), columns, rows, {"history": rows})


def change_data(made: Change, files: dict[str, str]) -> dict[str, Any]:
    """The JSON of a predicted change, not yet sealed."""
    rows = [asdict(r) | {"came": list(r.came), "went": list(r.went)} for r in made.rows]
    return {"what": "change of a step from pre to post, µs", "inputs": prediction.inputs(files),
            "change_us": prediction.as_dict(made.change_us), "duration_change_us": made.duration_change_us,
            "rows": rows, "reasons": list(made.reasons)}


def change(made: Change, data: dict[str, Any]) -> Report:
    """A predicted change: its interval, the rows that make it, the reasons."""
    word = "slower" if made.change_us.low > 0 else "faster" if made.change_us.high < 0 else "either way"
    head = (f"predicted change of a step: {_interval(made.change_us)}: {word}",
            f"launches {len(made.pre.launches):,} to {len(made.post.launches):,}; summed durations "
            f"{made.duration_change_us:+,.1f} µs")
    columns = (
        Column("kernel", "kernel family", output.name), Column("launches_pre", "launches\npre", output.count),
        Column("launches_post", "launches\npost", output.count), Column("pre_us", "exposed\npre µs", output.number(1)),
        Column("post_us", "exposed\npost µs", output.number(1)), Column("change_us", "post - pre", _US),
        Column("duration_change_us", "durations\npost - pre", _US),
    )
    return Report("census_predict", head, columns, data["rows"], data, notes=made.reasons)


def candidates_data(step: Step, found: Sequence[Candidate], files: dict[str, str]) -> dict[str, Any]:
    """The JSON of the candidates of a trace, not yet sealed."""
    rows = [asdict(c) | {"saving_us": prediction.as_dict(c.saving_us), "reasons": list(c.reasons)} for c in found]
    return {"what": "saving of fusions that could be made, µs per step", "inputs": prediction.inputs(files),
            "step_us": step.step_us, "candidates": rows, "warnings": list(step.warnings)}


def candidates(step: Step, found: Sequence[Candidate], data: dict[str, Any], notes: Sequence[str]) -> Report:
    """Candidates ranked by the lower end of their interval."""
    flat = [{**{k: v for k, v in row.items() if k not in ("saving_us", "reasons")}, **row["saving_us"]}
            for row in data["candidates"]]
    columns = (
        Column("name", "fusion", output.name), Column("what", "what", str), Column("layers", "layers", output.count),
        Column("launches_removed", "launches\nremoved", output.count), Column("low", "saves µs\nlow", _US),
        Column("point", "point", _US), Column("high", "high", _US), Column("chain_us", "chain µs", output.number(1)),
        Column("basis", "basis", str),
    )
    head = (f"{step.trace} · {step.device or 'unknown device'} · step {step.step_us:,.1f} µs, {len(step.launches):,} "
            "launches", "ranked by the lower end; candidates share launches, so savings do not add up")
    why = [f"{c.name}: {r}" for c in found[:3] for r in c.reasons] or ["no neighbours in this step that could be one"]
    return Report("census_fusions", head, columns, flat, data, notes=(*why, *notes, *step.warnings))


def landing_data(step: Step, made: Landing, files: dict[str, str]) -> dict[str, Any]:
    """The JSON of a planned change's saving, not yet sealed. `change_us` of a row is post - pre."""
    rows = [{"kernel": x.kernel, "launches_pre": x.before, "launches_post": x.after, "pre_us": round(x.before_us, 3),
             "post_us": prediction.as_dict(x.after_us), "change_us": round(x.after_us.point - x.before_us, 3),
             "how": list(x.how)} for x in made.lines]
    return {"what": "saving of a planned change, µs per step", "inputs": prediction.inputs(files),
            "step_us": step.step_us, "saving_us": prediction.as_dict(made.saving_us),
            "chain_us": round(made.chain_us, 3), "launches_removed": made.launches_removed, "rows": rows,
            "reasons": list(made.reasons)}


def landing(step: Step, made: Landing, data: dict[str, Any]) -> Report:
    """A planned change: its saving, and each kernel that goes or comes."""
    head = (f"{step.trace}: predicted saving {_interval(made.saving_us)} of {step.step_us:,.1f} µs a step",
            f"{made.launches_removed:+,} launches removed; the chain takes {made.chain_us:,.1f} µs")
    flat = [{**row, "low": row["post_us"]["low"], "high": row["post_us"]["high"]} for row in data["rows"]]
    columns = (
        Column("kernel", "kernel", output.name), Column("launches_pre", "launches\nnow", output.count),
        Column("launches_post", "launches\nthen", output.count), Column("pre_us", "recorded\nµs", output.number(1)),
        Column("low", "then µs\nlow", output.number(1)), Column("high", "then µs\nhigh", output.number(1)),
        Column("change_us", "then - now\npoint", _US),
    )
    how = [f"{x.kernel}: {text}" for x in made.lines for text in x.how]
    return Report("census_landing", head, columns, flat, data, notes=(*how, *made.reasons))


def reconciled(made: Reconciled) -> Report:
    """Predicted, recorded and clocked change, row by row, with the residual."""
    head = (f"predicted {_interval(made.predicted)} ({made.prediction}, made {made.made})",
            f"recorded {made.recorded_us:+,.1f} µs (exposed), {made.durations_us:+,.1f} µs (summed durations)",
            f"clock {made.clock.change_us:+,.1f} µs ({made.clock.pairs} pairs in {made.clock.window})")
    columns = (Column("kernel", "kernel family", output.name), Column("predicted_us", "predicted", _US),
               Column("recorded_us", "recorded", _US), Column("error_us", "recorded -\npredicted", _US))
    rows = [asdict(r) for r in made.rows]
    foot = [{"kernel": "step (wall), recorded", "recorded_us": made.recorded_us},
            {"kernel": "residual: clock - recorded", "recorded_us": made.residual_us},
            {"kernel": "clock", "recorded_us": made.clock.change_us}]
    return Report("census_reconcile", head, columns, rows, asdict(made), foot=foot,
                  notes=(*made.findings, *made.warnings))


def scores(made: Sequence[Score], summary: dict[str, Any]) -> Report:
    """Predicted against measured, one line per prediction that a window or a whole-graph recording measures."""
    rows = [asdict(s) for s in made]
    columns = (
        Column("name", "prediction", output.name), Column("low", "saving µs\nlow", _US), Column("point", "point", _US),
        Column("high", "high", _US), Column("clock_us", "window\nµs", _US),
        Column("clock_inside", "inside", output.count), Column("clock_error_pct", "point\noff %", _US),
        Column("device_us", "whole-graph\nµs", _US), Column("device_inside", "inside", output.count),
        Column("device_error_pct", "point\noff %", _US),
    )
    words = {True: "yes", False: "NO", None: ""}
    table = [{**r, "clock_inside": words[s.clock_inside], "device_inside": words[s.device_inside]}
             for r, s in zip(rows, made, strict=True)]
    return Report("census_table", (), columns, rows, {"rows": rows, **summary}, table=table,
                  notes=_summary_lines(summary))


def _summary_lines(summary: dict[str, Any]) -> tuple[str, ...]:
    lines = []
    for name, text in (("clock", "interleaved windows"), ("device", "whole-graph recordings, device time")):
        if summary[name]["measured"]:
            lines.append(f"{text}: {summary[name]['inside']} of {summary[name]['measured']} inside their interval, "
                         f"median error of the point {summary[name]['median_error_pct']:.1f}%")
    return tuple(lines)
