"""What `census shapes --crossover` prints: the models by their loss, and the shapes on the slower kernel."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from census import output
from census.crossover import Loss, Measured, Table, slower
from census.output import Column, Report


def crossover(table: Table, models: Sequence[Loss]) -> Report:
    """Shapes that the present gates send to the slower kernel; above them, what that costs each model a step."""
    rows = [_row(shape, models) for shape in slower(table)]
    data = {
        "table": table.path, "facts": dict(table.facts), "shapes": len(table.shapes), "rows": rows,
        "models": [asdict(m) | {"slower": [[*key, n] for key, n in m.slower.items()]} for m in models],
    }  # fmt: skip
    bandwidth = table.facts.get("bandwidth_gbs")
    head = (f"{table.path} · {table.facts.get('device')} · {table.facts.get('date')} · {len(table.shapes)} shapes, "
            f"{len(rows)} on the slower kernel · read bandwidth {bandwidth} GB/s",)  # fmt: skip
    columns = (
        Column("shape", "type, od x id", output.name), Column("models", "models", output.number(0)),
        Column("kernel", "kernel", str), Column("us", "µs", output.number(2)), Column("gbs", "GB/s", output.number(0)),
        Column("share", "share", output.percent), Column("fastest", "fastest", str),
        Column("fastest_us", "µs", output.number(2)), Column("fastest_gbs", "GB/s", output.number(0)),
        Column("loss_us", "loss\nµs/launch", output.number(2)),
    )  # fmt: skip
    note = "slower: its fastest round is slower than the slowest of the other; launches as in a graph, without quantize"
    return Report("census_crossover", (), columns, rows, data, notes=(note,), above=_models(models, head))


def _row(shape: Measured, models: Sequence[Loss]) -> dict[str, Any]:
    chosen, fastest = shape.chosen, shape.fastest
    assert chosen is not None
    return {
        "shape": f"{shape.type} {shape.od}x{shape.id}", "type": shape.type, "od": shape.od, "id": shape.id,
        "grid": shape.grid, "models": sum(shape.key in m.slower for m in models), "kernel": chosen.kernel,
        "us": chosen.us, "gbs": chosen.gbs, "share": chosen.share, "fastest": fastest.kernel, "fastest_us": fastest.us,
        "fastest_gbs": fastest.gbs, "loss_us": shape.loss_us,
    }  # fmt: skip


def _models(models: Sequence[Loss], head: tuple[str, ...]) -> Report:
    columns = (
        Column("model", "model", output.name), Column("matmuls", "matmuls\na step", output.number(0)),
        Column("measured", "measured", output.number(0)), Column("us", "µs a step", output.number(1)),
        Column("loss_us", "lost\nµs a step", output.number(1)), Column("share", "lost", output.percent),
    )  # fmt: skip
    rows = [asdict(m) | {"share": m.loss_us / m.us if m.us else None} for m in models if m.measured]
    return Report("census_crossover_models", head, columns, rows, {})
