"""`census shapes`: which matrices models have, which kernels they take, what another gate would change."""

from pathlib import Path
from typing import Annotated

import typer

from census import crossover as crossover_lib
from census import crossover_report, headers, output, shapes, shapes_report
from census.app import Csv, Json, Save, app
from census.errors import CensusError
from census.output import Report
from minfer.gguf import QUANTS


@app.command(name="shapes")
def shapes_command(
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL...", help="GGUF files (the header is enough), "
                      "folders, hf:ORG/REPO[:GLOB], or catalogue:GLOB[:MIX] of published configurations.")] = None,
    type: Annotated[str | None, typer.Option(help="Only matrices of this quant type.")] = None,
    between: Annotated[str | None, typer.Option(metavar="LO,HI", help="Only matrices of LO up to, not including, HI "
                       "elements: what a gate moved from HI to LO reroutes.")] = None,
    what_if: Annotated[list[str] | None, typer.Option("--what-if", metavar="TYPE=N", help="List what a gate constant "
                       "of N elements would reroute; TYPE=N:M to move it from N to M. The present constant is compared "
                       "with the one before it.")] = None,
    bandwidth: Annotated[float | None, typer.Option(min=0.001, help="GB/s, for the time that the bytes need.")] = None,
    crossover: Annotated[Path | None, typer.Option(metavar="TABLE", help="A table of `minfer crossover`: which shapes "
                         "the gates send to the slower kernel, and what that costs each model a step; the whole "
                         "catalogue in Q4_K_M and Q5_K_M where no model is given.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="With --crossover: also draw its map here (.png, "
                    ".svg).")] = None,
    as_json: Json = False,
    as_csv: Csv = False,
    save: Save = None,
) -> int:
    """Which matrices models have, on how many layers, and which kernel each takes: from headers alone.

    Example: census shapes catalogue:qwen2.5-* --type Q6_K --between 4e6,24e6
    """
    if type is not None and type not in QUANTS:
        raise CensusError(f"--type {type}: no such quant type (known: {', '.join(QUANTS)})")
    if crossover is not None:
        wanted = models or ["catalogue:*:Q[45]_K_M"]
        output.emit(_crossover(crossover, wanted, plot), as_json=as_json, as_csv=as_csv, save=save)
        return 0
    if not models or plot is not None:
        raise CensusError("give a MODEL: a file, a folder, hf:... or catalogue:...; --plot goes with --crossover")
    interval = _interval(between) if between else None
    changes = [_change(text) for text in what_if or ()]
    with output.progress("headers") as tick:
        found, refused = headers.read(models, tick)
    rows = shapes.filtered((s for model in found for s in shapes.shapes(model)), type, interval)
    moved = [shapes.what_if(rows, *change) for change in changes]
    output.emit(shapes_report.shapes(rows, moved, refused, bandwidth), as_json=as_json, as_csv=as_csv, save=save)
    return 2 if refused else 0


def _crossover(path: Path, models: list[str], plot: Path | None) -> Report:
    table = crossover_lib.read(path)
    found, _ = headers.read(models)
    if plot is not None:
        from analysis import plots  # matplotlib takes a second to load

        plots.save(plots.crossover_map(table), plot)
    return crossover_report.crossover(table, crossover_lib.losses(table, found))


def _interval(text: str) -> tuple[int, int]:
    try:
        lo, hi = map(shapes.elements, text.split(","))
        if lo < hi:
            return lo, hi
    except ValueError:
        pass
    raise CensusError(f"--between {text} is not allowed: give two counts of elements, e.g. 4e6,24e6")


def _change(text: str) -> tuple[str, int, int | None]:
    kind, _, constants = text.partition("=")
    try:
        first, *second = map(shapes.elements, constants.split(":"))
        if len(second) <= 1:
            return (kind, second[0], first) if second else (kind, first, None)
    except ValueError:
        pass
    raise CensusError(f"--what-if {text} is not allowed: give TYPE=ELEMENTS or TYPE=FROM:TO, e.g. Q6_K=4e6")
