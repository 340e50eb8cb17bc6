"""From a library's typed results to the rows, notes and JSON that `output.emit` prints."""

from dataclasses import asdict
from typing import Any

from census import output
from census.diff import Change, Clock, Diff
from census.doctor import Finding
from census.ledger import Ledger, Row
from census.output import Column, Report
from census.timing import Inflation


def ledger(made: Ledger, top: int, time: Inflation | None = None) -> Report:
    """The ledger as a report; rows after the first `top` (0: none) become one row `other`."""
    shown = list(made.rows[:top] if top else made.rows)
    rows = [ledger_row(made, r) for r in shown]
    if len(made.rows) > len(shown):
        rows.append(ledger_row(made, _other(made.rows[len(shown) :])))
    data = ledger_json(made, rows)
    if time:
        data |= {"time": asdict(time)}
        data["warnings"] = [*data["warnings"], *time.true.warnings]
    return Report(f"census_ledger_{made.by}", _head(made) + _inflation(time), _columns(made), rows, data,
                  foot=_foot(made), notes=tuple(data["warnings"]))


def ledger_json(made: Ledger, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The JSON object of a ledger with these rows."""
    return {
        "trace": made.trace, "device": made.device, "devices": made.devices, "by": made.by, "unit": made.unit,
        "steps": asdict(made.steps), "rows": rows, "total": asdict(made.total), "identity": asdict(made.identity),
        "warnings": list(made.warnings),
    }


def ledger_row(made: Ledger, row: Row) -> dict[str, Any]:
    """A row as JSON: its key under the name of the ledger's key, `kernel` by default."""
    values = asdict(row)
    return {made.by: values.pop("key"), **values}


def _other(rows: tuple[Row, ...]) -> Row:
    """The rows that were cut off, added up; medians of different kernels are not."""
    # One unknown count makes the sum unknown: a partial sum would look like a count.
    launches = [r.launches_per_step for r in rows]
    known = None if None in launches else sum(n for n in launches if n is not None)
    exposed, duration = sum(r.exposed_us_per_step for r in rows), sum(r.duration_us_per_step for r in rows)
    return Row(f"other ({len(rows)} rows)", "mixed", known, None, None, None, sum(r.copies_per_step for r in rows),
               None, None, exposed, duration, sum(r.share for r in rows))


def _inflation(time: Inflation | None) -> tuple[str, ...]:
    if time is None:
        return ()
    true = time.true
    spread = f"{true.min_us:,.1f} to {true.max_us:,.1f} over {true.steps}"
    return (f"traced step {time.traced_us:,.1f} µs; true step {true.step_us:,.1f} µs ({true.what} in {true.source}, "
            f"{spread}); traced / true = {time.factor:.3f}",)


def _columns(made: Ledger) -> tuple[Column, ...]:
    unit = made.unit
    return (
        Column(made.by, made.by, output.name), Column("launches_per_step", f"launches\nper {unit}", output.count),
        Column("us_per_launch", "µs/launch\nmedian", output.number(2)),
        Column("exposed_us_per_launch", "exposed\nµs/launch", output.number(2)),
        Column("exposed_us_per_step", f"exposed\nµs/{unit}", output.number(1)),
        Column("duration_us_per_step", f"duration\nµs/{unit}", output.number(1)),
        Column("share", "share", output.percent),
    )


def _foot(made: Ledger) -> list[dict[str, Any]]:
    total = made.total
    wall = total.step_us or 1.0  # µs; the same denominator as the rows' shares, so that the column adds up

    def line(text: str, us: float | None, **more: Any) -> dict[str, Any]:
        return {made.by: text, "launches_per_step": "", "exposed_us_per_step": us,
                "share": None if us is None else us / wall, **more}

    lines = [line("total", total.exposed_us_per_step, launches_per_step=total.launches_per_step,
                  duration_us_per_step=total.duration_us_per_step),
             line(f"gaps inside the {made.unit}", total.gap_us_per_step)]
    if total.residual_us_per_step:
        lines.append(line("residual: other work in its window", total.residual_us_per_step))
    return [*lines, line(f"{made.unit} (wall)", total.step_us)]


def _head(made: Ledger) -> tuple[str, ...]:
    facts, ident = made.steps, made.identity
    device = f"{made.device or 'unknown device'}" + (f" and {made.devices - 1} more" if made.devices > 1 else "")
    lines = [f"{made.trace} · {device}"]
    if facts.count:
        # A whole-graph recording has steps, but nobody can count the launches in them.
        per = "?" if facts.launches_per_step is None else output.count(facts.launches_per_step)
        layer = f", layer period {facts.layer_period}" if facts.layer_period else ""
        lines.append(f"{facts.count} steps of {per} launches by {facts.method}: {facts.reason}{layer}")
    else:
        lines.append(f"no steps: {facts.reason}")
    if facts.excluded:
        lines.append("launches left out: " + ", ".join(f"{n:,} {why}" for why, n in facts.excluded.items()))
    apart = [(ident.captured, "captured, never executed"),
             (ident.launches_without_kernel, "launch calls without kernel")]
    said = "".join(f"; {n:,} {what}" for n, what in apart if n)
    lines.append(f"{ident.kernels:,} kernels = {ident.eager:,} eager launches + {ident.replayed:,} replayed nodes"
                 + (f" + {ident.without_launch:,} of unknown launch" if ident.without_launch else "") + said)
    if made.total.between_us is not None:
        lines.append(f"from the end of a step to the next: {made.total.between_us:,.1f} µs (mean, not in the ledger)")
    return tuple(lines)


def diff(made: Diff, top: int) -> Report:
    """A diff as a report; changes after the first `top` (0: none) become one row `other`."""
    changed = [r for r in made.rows if r.status != "same"]
    shown = changed[:top] if top else changed
    rows = [_change_row(made, r) for r in shown]
    rest = [r for r in made.rows if r not in shown]  # cut off, or without any change
    if rest:
        rows.append(_change_row(made, _other_changes(rest)))
    data = {
        "a": made.a.trace, "b": made.b.trace, "by": made.a.by, "unit": made.a.unit, "rows": rows,
        "total": {
            "launches_a": made.a.total.launches_per_step, "launches_b": made.b.total.launches_per_step,
            "launches_change": made.launches_change, "exposed_us_change": made.exposed_us_change,
            "gap_us_change": made.gap_us_change, "residual_us_change": made.residual_us_change,
            "step_us_change": made.step_us_change, "duration_us_change": made.duration_us_change,
        },
        "clock": asdict(made.clock) if made.clock else None, "warnings": list(made.warnings),
    }
    return Report("census_diff", _diff_head(made), _diff_columns(made), rows, data, foot=_diff_foot(made),
                  notes=made.warnings)


def _change_row(made: Diff, row: Change) -> dict[str, Any]:
    values = asdict(row)
    return {made.a.by: values.pop("key"), **values}


def _other_changes(rows: list[Change]) -> Change:
    def total(name: str) -> Any:
        values = [getattr(r, name) for r in rows]
        return None if None in values else sum(values)

    names = ("launches_a", "launches_b", "exposed_us_a", "exposed_us_b", "exposed_us_change", "duration_us_change")
    summed = {n: total(n) for n in names}
    same = all(r.status == "same" for r in rows)
    return Change(f"other ({len(rows)} rows)", "same" if same else "changed", us_per_launch_a=None,
                  us_per_launch_b=None, **summed)


def _diff_columns(made: Diff) -> tuple[Column, ...]:
    return (
        Column(made.a.by, made.a.by, output.name), Column("status", "", output.count),
        Column("launches_a", "launches\nA", output.count), Column("launches_b", "launches\nB", output.count),
        Column("us_per_launch_a", "µs/launch\nA", output.number(2)),
        Column("us_per_launch_b", "µs/launch\nB", output.number(2)),
        Column("exposed_us_a", "exposed\nA µs", output.number(1)),
        Column("exposed_us_b", "exposed\nB µs", output.number(1)),
        Column("exposed_us_change", "exposed\nB - A", output.number(1, sign=True)),
        Column("duration_us_change", "duration\nB - A", output.number(1, sign=True)),
    )


def _diff_foot(made: Diff) -> list[dict[str, Any]]:
    a, b = made.a.total, made.b.total
    total = {
        made.a.by: "total", "status": "", "launches_a": a.launches_per_step, "launches_b": b.launches_per_step,
        "exposed_us_a": a.exposed_us_per_step, "exposed_us_b": b.exposed_us_per_step,
        "exposed_us_change": made.exposed_us_change, "duration_us_change": made.duration_us_change,
    }
    # The foot closes like a ledger does: total + gaps and residual = wall, on both sides and in the difference.
    empty = {"status": "", "launches_a": "", "launches_b": ""}
    gaps = {made.a.by: "gaps and residual", **empty,
            "exposed_us_a": a.gap_us_per_step + a.residual_us_per_step,
            "exposed_us_b": b.gap_us_per_step + b.residual_us_per_step,
            "exposed_us_change": made.gap_us_change + made.residual_us_change}
    wall = {made.a.by: f"{made.a.unit} (wall)", **empty, "exposed_us_a": a.step_us, "exposed_us_b": b.step_us,
            "exposed_us_change": made.step_us_change}
    return [total, gaps, wall]


def _diff_head(made: Diff) -> tuple[str, ...]:
    a, b = made.a, made.b
    lines = [f"{side}: {m.trace} · {m.device or 'unknown device'} · {m.steps.count} steps by {m.steps.method}"
             for side, m in (("A", a), ("B", b))]
    launches = f"{output.count(a.total.launches_per_step)} -> {output.count(b.total.launches_per_step)}"
    lines.append(f"per {a.unit}, B - A: launches {launches}, exposed {made.exposed_us_change:+,.1f} µs, "
                 f"durations {made.duration_us_change:+,.1f} µs")
    return (*lines, *(_clock_lines(made.clock) if made.clock else ()))


def _clock_lines(clock: Clock) -> tuple[str, ...]:
    def said(agrees: bool) -> str:
        return "agrees in sign with" if agrees else "DISAGREES in sign with"

    return (f"clock: {clock.us_change:+,.1f} µs per step (medians of {clock.pairs} pairs in {clock.source}; "
            f"B slower in {clock.b_slower})",
            f"exposed time {said(clock.exposed_agrees)} the clock; the sum of durations "
            f"{said(clock.durations_agree)} it")


def findings(found: dict[str, list[Finding]]) -> Report:
    """What doctor found out about each thing it looked at, with the advice that goes with it."""
    columns = (Column("what", "", output.name), Column("state", "", output.name), Column("seen", "seen", str),
               Column("advice", "what to do", str))
    rows = [{"where": where, **asdict(f)} for where, group in found.items() for f in group]
    table = []
    for where, group in found.items():
        table += [{"what": where, "state": "", "seen": "", "advice": ""}, *(asdict(f) for f in group)]
    return Report("census_doctor", (), columns, rows, {"findings": rows}, table=table)
