"""From a library's typed results to the rows, notes and JSON that `output.emit` prints."""

from dataclasses import asdict
from typing import Any

from census import output
from census.ledger import Ledger, Row
from census.output import Column, Report


def ledger(made: Ledger, top: int) -> Report:
    """The ledger as a report; rows after the first `top` (0: none) become one row `other`."""
    shown = list(made.rows[:top] if top else made.rows)
    rows = [_row(made, r) for r in shown]
    if len(made.rows) > len(shown):
        rows.append(_row(made, _other(made.rows[len(shown) :])))
    return Report(f"census_ledger_{made.by}", _head(made), _columns(made), rows, ledger_json(made, rows),
                  foot=_foot(made), notes=made.warnings)


def ledger_json(made: Ledger, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The JSON object of a ledger with these rows."""
    return {
        "trace": made.trace, "device": made.device, "devices": made.devices, "by": made.by, "unit": made.unit,
        "steps": asdict(made.steps), "rows": rows, "total": asdict(made.total), "identity": asdict(made.identity),
        "warnings": list(made.warnings),
    }


def _row(made: Ledger, row: Row) -> dict[str, Any]:
    values = asdict(row)
    return {made.by: values.pop("key"), **values}


def _other(rows: tuple[Row, ...]) -> Row:
    """The rows that were cut off, added up; medians of different kernels are not."""
    launches = [r.launches_per_step for r in rows]
    known = None if None in launches else sum(n for n in launches if n is not None)
    exposed, duration = sum(r.exposed_us_per_step for r in rows), sum(r.duration_us_per_step for r in rows)
    return Row(f"other ({len(rows)} rows)", "mixed", known, None, None, None, sum(r.copies_per_step for r in rows),
               None, None, exposed, duration, sum(r.share for r in rows))


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
    wall = total.step_us or 1.0

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
