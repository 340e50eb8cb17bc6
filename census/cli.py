"""The `census` commands: each opens, calls and formats; what they compute is in the library.

    census ledger trace.sqlite
    census ledger trace.sqlite --by op --json
    census ledger trace.sqlite --steps lag
"""

from pathlib import Path
from typing import Annotated

import typer

from census import ledger as ledger_lib
from census import output, reports

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False,
                  help="Where the time of a decode step goes, from traces of any engine.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Save = Annotated[Path | None, typer.Option("--save", metavar="DB", help="Also write the rows into this sqlite file.")]
By = Annotated[str, typer.Option("--by", help="kernel, family, shape, op, layer, range or stream.")]
StepsHow = Annotated[str, typer.Option("--steps", help="auto, nvtx, nvtx:REGEX, graph, lag or none (the whole trace).")]


@app.callback(invoke_without_command=True)
def _commands(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def ledger(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="An nsys sqlite export, or a recording of this tool.")],
    by: By = "kernel",
    steps: StepsHow = "auto",
    top: Annotated[int, typer.Option("--top", min=0, help="Rows before 'other'; 0 shows all.")] = 30,
    as_json: Json = False,
    as_csv: Csv = False,
    save: Save = None,
) -> None:
    """What each kernel adds to a decode step, in exposed time; rows, gaps and residual add up to the step."""
    with output.working(f"reading {trace}"):
        made = ledger_lib.of_file(trace, steps=steps, by=by)
    output.emit(reports.ledger(made, top), as_json=as_json, as_csv=as_csv, save=save)
