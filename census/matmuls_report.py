"""What `census ledger --by shape --model` prints: a row per (role, type, od, id), with GB/s and share of bandwidth."""

from dataclasses import asdict
from typing import Any

from census import headers, matmuls, output
from census.errors import CensusError
from census.matmuls import ByTensor, Line
from census.output import Column, Report


def of_trace(trace: str, model: str, by: str, steps: str, bandwidth: float | None) -> Report:
    """The report of a trace and of one model: a file, hf:... or catalogue:... . Raises CensusError for several."""
    if by != "shape":
        raise CensusError(f"--model goes with --by shape (by the weights), not with --by {by}")
    found, _ = headers.read([model])
    if len(found) != 1:
        raise CensusError(f"--model {model}: {len(found)} models, a trace is of one; name it")
    return by_tensor(matmuls.of_file(trace, found[0], steps), bandwidth)


def by_tensor(made: ByTensor, bandwidth: float | None) -> Report:
    """The ledger as a report; `bandwidth` in GB/s, or else what the trace says of its device."""
    of = bandwidth or made.bandwidth_gbs
    rows = [_row(line, of) for line in made.lines]
    source = "given" if bandwidth else "advertised by the driver"
    data = {
        "trace": made.trace, "model": made.model, "device": made.device, "bandwidth_gbs": of,
        "bandwidth_source": source if of else None, "steps": made.steps.count, "rows": rows,
        "total": asdict(made.total), "warnings": list(made.warnings),
    }  # fmt: skip
    known = f"{of:,.0f} GB/s {source}" if of else "bandwidth unknown: give --bandwidth"
    head = (f"{made.trace} · {made.model} · {made.device or 'unknown device'} · {known}",
            f"{made.steps.count} steps by {made.steps.method}: {made.steps.reason}")  # fmt: skip
    columns = (
        Column("shape", "weights", output.name), Column("launches_per_step", "launches\nper step", output.count),
        Column("megabytes", "MB a\nlaunch", output.number(2)),
        Column("us_per_launch", "µs/launch\nmedian", output.number(2)),
        Column("exposed_us_per_launch", "exposed\nµs/launch", output.number(2)),
        Column("exposed_us_per_step", "exposed\nµs/step", output.number(1)),
        Column("gbs", "GB/s", output.number(0)), Column("bandwidth_share", "of band-\nwidth", output.percent),
        Column("share", "share of\nstep", output.percent),
    )  # fmt: skip
    return Report("census_ledger_tensor", head, columns, rows, data, foot=_foot(made), notes=made.warnings)


def _row(line: Line, bandwidth: float | None) -> dict[str, Any]:
    values = asdict(line.row)
    gbs = line.gbs
    return {
        "shape": values.pop("key"), "role": line.role, "type": line.type, "od": line.od, "id": line.id,
        "bytes": line.bytes, "megabytes": line.bytes / 1e6 if line.bytes else None, **values, "gbs": gbs,
        "bandwidth_share": gbs / bandwidth if gbs and bandwidth else None,
    }  # fmt: skip


def _foot(made: ByTensor) -> list[dict[str, Any]]:
    total = made.total

    def line(text: str, us: float, launches: float | str | None = "") -> dict[str, Any]:
        share = us / (total.step_us or 1.0)
        return {"shape": text, "launches_per_step": launches, "exposed_us_per_step": us, "share": share}

    lines = [line("total", total.exposed_us_per_step, total.launches_per_step),
             line("gaps inside the step", total.gap_us_per_step)]  # fmt: skip
    if total.residual_us_per_step:
        lines.append(line("residual: other work in its window", total.residual_us_per_step))
    return [*lines, line("step (wall)", total.step_us)]
