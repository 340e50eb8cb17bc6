"""What `census shapes` prints: shapes, the rows a changed gate constant reroutes, headers that were refused."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from census import output
from census.headers import Refused
from census.output import Column, Report
from census.shapes import Reroute, Shape

# what streams (minfer/fusions/stream.py) is taken before these gates are asked
GATES = "kernels by the dispatch gates: decode with MINFER_NO_STREAM=1; by default most Q4_K and Q6_K matmuls stream"


def shapes(rows: Sequence[Shape], moved: Sequence[Reroute], refused: Sequence[Refused],
           bandwidth: float | None) -> Report:
    """The rows as a report; with `moved`, only what the changed constants reroute."""
    shown = [(row, kernel) for change in moved for row, kernel in change.rows] if moved else [(r, None) for r in rows]
    made = [_row(row, bandwidth, kernel) for row, kernel in shown]
    data = {
        "rows": made, "bandwidth_gbs": bandwidth, "what_if": [_change(c) for c in moved],
        "refused": [asdict(r) for r in refused], "gates": GATES,
    }  # fmt: skip
    notes = (*(f"refused: {r.reason}" for r in refused), *(c.note for c in moved if c.note))
    head, columns = _head(rows, moved), _columns(bandwidth, bool(moved))
    return Report("census_shapes", head, columns, made, data, _foot([row for row, _ in shown]), notes)


def _change(change: Reroute) -> dict[str, Any]:
    return {"type": change.type, "from": change.old, "to": change.new, "rerouted": len(change.rows),
            "note": change.note}  # fmt: skip


def _row(row: Shape, bandwidth: float | None, kernel: str | None) -> dict[str, Any]:
    values = asdict(row) | {"layer_ids": list(row.layer_ids)}
    if kernel is not None:
        values["kernel_then"] = kernel
    if bandwidth is not None:
        values["us"] = row.time_us(bandwidth)  # of one matrix
    return values


def _head(rows: Sequence[Shape], moved: Sequence[Reroute]) -> tuple[str, ...]:
    files = len({r.file for r in rows})
    first = f"{len(rows)} shapes in {files} model{'s' * (files != 1)}; kernels at one token"
    changes = (f"gate of {c.type} moved from {c.old:,} to {c.new:,} elements: {len(c.rows)} of these shapes rerouted"
               for c in moved)  # fmt: skip
    return (first, GATES, *changes)


def _columns(bandwidth: float | None, moved: bool) -> tuple[Column, ...]:
    def megabytes(value: Any) -> str:
        return "" if value is None else f"{value / 1e6:,.2f}"

    columns = [
        Column("file", "model", output.name), Column("role", "role", str), Column("type", "type", str),
        Column("od", "od", output.number(0)), Column("id", "id", output.number(0)),
        Column("elements", "elements", output.number(0)), Column("row_blocks", "blocks\na row", output.number(0)),
        Column("layers", "layers", lambda v: output.count(v) if v else "-"), Column("layer_ids", "which", _spans),
        Column("bytes", "MB, all\nlayers", megabytes), Column("kernel", "kernel", lambda v: v or "none"),
    ]  # fmt: skip
    columns += [Column("us", "µs each", output.number(2))] if bandwidth else []
    columns += [Column("kernel_then", "kernel then", str)] if moved else []
    return tuple(columns)


def _foot(shown: Sequence[Shape]) -> list[dict[str, Any]]:
    total = {"file": "total", "role": "", "type": "", "kernel": " ", "kernel_then": "", "layer_ids": ()}
    return [total | {"layers": sum(s.layers for s in shown), "bytes": sum(s.bytes for s in shown)}]


def _spans(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0-2 5"."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
