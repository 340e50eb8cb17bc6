"""A fleet as a report: the traces, then the summary over them."""

from dataclasses import asdict
from typing import Any

from census import output, reports
from census.fleet import Fleet, Outcome
from census.output import Column, Report


def fleet(made: Fleet, top: int) -> Report:
    """Table: one line per trace and the summary. CSV and --save: every row of every trace. JSON: all of it."""
    summary = [{"device": r.device, made.by: r.key, **_without(asdict(r), "device", "key")} for r in made.rows]
    shown = summary[:top] if top else summary
    failed = tuple(o.error for o in made.outcomes if o.error)
    data = {
        "by": made.by, "summary": summary,
        "traces": [_trace_json(o) for o in made.outcomes if o.ledger],
        "failed": [{"trace": o.trace, "error": o.error} for o in made.outcomes if o.error],
    }
    return Report(
        f"census_fleet_{made.by}", (f"summary over {len(made.outcomes) - len(failed)} traces",), _summary_columns(made),
        _long_rows(made), data, table=shown, foot=_rest(made, summary[len(shown) :]),
        notes=tuple(f"failed: {e}" for e in failed), above=_traces(made),
    )


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k not in keys}


def _trace_json(outcome: Outcome) -> dict[str, Any]:
    made = outcome.ledger
    assert made is not None
    rows = [reports.ledger_row(made, r) for r in made.rows]
    return {"host": outcome.host, **reports.ledger_json(made, rows)}


def _long_rows(made: Fleet) -> list[dict[str, Any]]:
    return [{"trace": o.trace, "host": o.host, "device": o.ledger.device, **reports.ledger_row(o.ledger, r)}
            for o in made.outcomes if o.ledger for r in o.ledger.rows]


def _traces(made: Fleet) -> Report:
    columns = (
        Column("trace", "trace", output.name), Column("device", "device", output.name),
        Column("method", "steps by", output.name), Column("count", "steps", output.count),
        Column("launches_per_step", "launches\nper step", output.count),
        Column("exposed_us_per_step", "exposed\nµs/step", output.number(1)),
        Column("gap_us_per_step", "gaps\nµs/step", output.number(1)), Column("step_us", "step µs", output.number(1)),
    )
    # Facts and totals share no key but launches_per_step, which is the same figure in both.
    rows = [{"trace": o.trace, "device": o.ledger.device, **asdict(o.ledger.steps), **asdict(o.ledger.total)}
            for o in made.outcomes if o.ledger]
    return Report("", (), columns, rows, {})


def _summary_columns(made: Fleet) -> tuple[Column, ...]:
    return (
        Column(made.by, made.by, output.name), Column("device", "device", output.name),
        Column("traces", "traces", output.count), Column("launches_seen", "launches\nper step", _counts),
        Column("exposed_us_median", "exposed µs\nmedian", output.number(1)),
        Column("exposed_us_min", "min", output.number(1)), Column("exposed_us_max", "max", output.number(1)),
    )


def _counts(seen: Any) -> str:
    """One exact count, or all that were seen: a count is never averaged over runs."""
    if seen is None:
        return ""
    return "?" if not seen else " | ".join(output.count(n) for n in seen[:4]) + (" | …" if len(seen) > 4 else "")


def _rest(made: Fleet, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not rows:
        return []
    return [{made.by: f"other ({len(rows)} rows)", "device": "", "traces": "",
             "exposed_us_median": sum(r["exposed_us_median"] for r in rows)}]
