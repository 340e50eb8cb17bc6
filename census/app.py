"""The `census` app that command modules add their commands to, and the options that several of them share."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Where the time of a decode step goes, from traces of any engine.")

# Options that several commands share, so that they are spelled and explained once.
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Save = Annotated[Path | None, typer.Option("--save", metavar="DB", help="Also write the rows into this sqlite file.")]
By = Annotated[str, typer.Option("--by", help="kernel, family, shape, op, layer, range or stream.")]
StepsHow = Annotated[str, typer.Option("--steps", help="auto, nvtx, nvtx:REGEX, graph, lag or none (the whole trace).")]
Top = Annotated[int, typer.Option("--top", min=0, help="Rows before 'other'; 0 shows all.")]


@app.callback(invoke_without_command=True)
def _commands(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
