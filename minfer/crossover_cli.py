"""`minfer crossover`: measure which kernel wins for which matrix, and what the gate table's constants should be."""

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable

from minfer.cli_common import Json, emit
from minfer.errors import UserError

if TYPE_CHECKING:
    from minfer.cuda.crossover import Machine
    from minfer.cuda.crossover_table import Choice, Table


def crossover(
    types: Annotated[
        str | None, typer.Option(help="Quant types, e.g. Q5_K,Q6_K. By default those with two kernels.")
    ] = None,
    od: Annotated[str | None, typer.Option("--od", help="Rows of the grid's matrices, e.g. 512,1024.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="Row lengths of the grid's matrices.")] = None,
    models: Annotated[
        bool, typer.Option("--models/--no-models", help="Also every shape of the catalogued models, first.")
    ] = True,
    seconds: Annotated[float, typer.Option(min=0, help="Stop after so long; the next run goes on.")] = 120.0,
    out: Annotated[Path, typer.Option(help="The table, JSON lines; appended to.")] = Path("crossover.jsonl"),
    seed: Annotated[int, typer.Option(min=0, help="Of blocks, activations and order.")] = 0,
    apply: Annotated[
        bool, typer.Option("--apply", help="Measure nothing: print the table's constants as a diff of the gate table.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Time every kernel that a decode matmul could take, over a grid and the catalogue's shapes. Needs a GPU.

    Example: minfer crossover --types Q5_K,Q6_K --seconds 60 --out crossover.jsonl
    """
    from minfer.cuda import crossover as cross
    from minfer.cuda import crossover_table as tables

    begin = time.monotonic()
    grid = _numbers("--od", od, cross.DEFAULT_OD), _numbers("--id", id, cross.DEFAULT_ID)
    if apply:
        return _propose(tables.parse(out, tables.read(out)), as_json)
    kinds = types.split(",") if types else cross.contested()
    shapes = cross.plan(kinds, *grid, cross.catalogued() if models else [], seed)
    table = tables.open_table(out)
    left = _measure(_machine(), table, shapes, seed, seconds - (time.monotonic() - begin))
    wrong = [r for r in table.rows if not r["checked"]]
    chosen = tables.choices(table.rows)
    data = {"table": str(out), "shapes": len(table.done()), "left": left, "wrong": wrong, "gates": _gates(chosen)}
    emit(data, _lines(data, chosen), as_json)
    return 1 if wrong else 0


def _machine() -> "Machine":
    from minfer.cuda.crossover_gpu import Gpu

    return Gpu()


def _numbers(option: str, text: str | None, default: Sequence[int]) -> Sequence[int]:
    try:
        values = [int(part) for part in text.split(",")] if text is not None else list(default)
    except ValueError:
        values = [0]
    if not all(0 < v <= 1 << 20 for v in values):
        raise UserError(f"{option} {text!r} is not allowed: give sizes of 1 to 1048576, e.g. 1024,4096")
    return values


def _measure(machine: "Machine", table: "Table", shapes: list[Any], seed: int, seconds: float) -> int:
    from minfer.cuda import crossover as cross
    from minfer.cuda import crossover_table as tables

    command = " ".join(["minfer", *sys.argv[1:]])
    table.begin(machine.facts | {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "seed": seed, "command": command})
    run = cross.Session(machine, shapes, seed)
    try:
        return tables.run(table, run.shapes, run.measure, time.monotonic, seconds, _tell)
    finally:
        sys.stderr.write("\n" if sys.stderr.isatty() else "")


def _tell(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done} of {total} shapes")


def _gates(chosen: "list[Choice]") -> list[dict[str, Any]]:
    return [
        {
            "type": c.gate.type, "constant": c.gate.min_elements, "best": c.best, "proposed": c.proposed,
            "shapes": c.shapes, "loss_us": c.loss_us, "best_loss_us": c.best_loss_us, "fastest_us": c.total_us,
        }
        for c in chosen
    ]  # fmt: skip


def _lines(data: dict[str, Any], chosen: "list[Choice]") -> list[Any]:
    table = RichTable(box=None, pad_edge=False)
    for head in ("type", "constant", "lost", "best constant", "lost", "proposed", "shapes"):
        table.add_column(head, justify="left" if head == "type" else "right")
    for c in chosen:
        shares = [f"{100 * loss / c.total_us:.2f}%" for loss in (c.loss_us, c.best_loss_us)]
        constants = [f"{n:,}" for n in (c.gate.min_elements, c.best, c.proposed)]
        table.add_row(str(c.gate.type), constants[0], shares[0], constants[1], shares[1], constants[2], str(c.shapes))
    wrong = [f"WRONG: {r['kernel']} {r['od']}x{r['id']}, error {r['error']}" for r in data["wrong"]]
    left = f", {data['left']} left: run it again" if data["left"] else ""
    return [table, *wrong, "lost: time above the fastest kernel of each shape, each shape once",
            f"{data['shapes']} shapes in {data['table']}{left}; the map: census shapes --crossover {data['table']}"]


def _propose(table: "Table", as_json: bool) -> int:
    from minfer.cuda import crossover_table as tables
    from minfer.cuda import dispatch

    chosen = tables.choices(table.rows)
    if not chosen:
        raise UserError(f"{table.path}: has no shape with both kernels of a gate; measure some first")
    facts = table.headers[-1] if table.headers else {}
    source = Path(str(dispatch.__file__)).read_text(encoding="utf-8")
    diff = tables.proposal(chosen, source, str(facts.get("device")), str(facts.get("date")))
    if diff and not as_json:
        print(diff, end="")  # noqa: T201  as it is: a wrapped diff does not apply
    else:
        emit({"gates": _gates(chosen), "diff": diff}, ["the present constants stand"], as_json)
    return 0
