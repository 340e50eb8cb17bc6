"""The `census` commands: each opens, calls and formats; what they compute is in the library.

    census ledger trace.sqlite
    census ledger trace.sqlite --by op --json
    census diff before.sqlite after.sqlite --window window.json
"""

from pathlib import Path
from typing import Annotated

import typer

from census import diff as diff_lib
from census import doctor as doctor_lib
from census import fleet as fleet_lib
from census import fleet_report, matmuls_report, output, reports, timing
from census import ledger as ledger_lib
from census import scrub as scrub_lib
from census.app import By, Csv, Json, Save, StepsHow, Top, app


@app.command()
def ledger(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="An nsys export (.sqlite, .sqlite.gz, parquetdir), an "
                     ".nsys-rep, a recording of this tool; or a folder or glob of them.")],
    by: By = "kernel",
    steps: StepsHow = "auto",
    time_from: Annotated[str | None, typer.Option("--time-from", metavar="FILE", help="True step time: a whole-graph "
                         "recording of the same command, or the benchmark's JSON.")] = None,
    workers: Annotated[str, typer.Option("--workers", metavar="N|tcp://HOST:PORT", help="For a folder or glob: local "
                       "processes, or a Dask scheduler.", show_default="one per core")] = "",
    top: Top = 30,
    model: Annotated[str | None, typer.Option("--model", metavar="FILE", help="With --by shape: the model that ran "
                     "(header is enough); matmuls by the weights they read, with GB/s.")] = None,
    bandwidth: Annotated[float | None, typer.Option(min=0.001, help="With --model: GB/s of the device's memory; what "
                         "the trace says of it by default.")] = None,
    as_json: Json = False,
    as_csv: Csv = False,
    save: Save = None,
) -> None:
    """What each kernel adds to a decode step, in exposed time; rows, gaps and residual add up to the step.

    Example: census ledger trace.sqlite --by op --time-from bench.json
    """
    if model is not None:
        with output.working(f"reading {trace}"):
            report = matmuls_report.of_trace(trace, model, by, steps, bandwidth)
        output.emit(report, as_json=as_json, as_csv=as_csv, save=save)
        return
    if fleet_lib.is_fleet(trace):
        with output.progress("traces") as tick:
            many = fleet_lib.run(fleet_lib.expand(trace), steps=steps, by=by, workers=workers, progress=tick)
        output.emit(fleet_report.fleet(many, top), as_json=as_json, as_csv=as_csv, save=save)
        return
    with output.working(f"reading {trace}"):
        made = ledger_lib.of_file(trace, steps=steps, by=by)
        time = timing.beside(made, time_from) if time_from else None
    output.emit(reports.ledger(made, top, time), as_json=as_json, as_csv=as_csv, save=save)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The trace before.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The trace after.")],
    by: By = "kernel",
    steps: StepsHow = "auto",
    window: Annotated[Path | None, typer.Option("--window", metavar="W.json", help="The interleaved window of the same "
                      "two arms: does the clock agree?")] = None,
    top: Top = 30,
    as_json: Json = False,
    as_csv: Csv = False,
    save: Save = None,
) -> None:
    """What changed per step from A to B: kernels added, removed and changed, largest effect first.

    Example: census diff before.sqlite after.sqlite --window window.json
    """
    with output.working(f"reading {a} and {b}"):
        before, after = (ledger_lib.of_file(path, steps=steps, by=by) for path in (a, b))
        made = diff_lib.ledgers(before, after, window)
    output.emit(reports.diff(made, top), as_json=as_json, as_csv=as_csv, save=save)


@app.command()
def scrub(
    source: Annotated[str, typer.Argument(metavar="IN", help="The trace; or a finished window, a .json file.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The copy to publish, a new file.")],
    begin: Annotated[str | None, typer.Option("--from", metavar="REGEX", help="Leave out device work and calls before "
                     "the first NVTX range whose text matches, e.g. a long prefill.")] = None,
) -> None:
    """A copy that is safe to publish: what a census reads, and nothing of the machine or its user.

    Example: census scrub trace.sqlite public.sqlite
    """
    with output.working(f"copying {source}"):
        made = scrub_lib.scrub(source, out, begin)
    typer.echo(f"{made.out}: {made.kept}, {made.masked} texts masked")


@app.command()
def doctor(
    trace: Annotated[str | None, typer.Argument(metavar="[TRACE]", help="Also say what this trace lacks.")] = None,
    as_json: Json = False,
    as_csv: Csv = False,
    save: Save = None,
) -> None:
    """What is installed and works together; of a trace, what it lacks and the nsys flag that would bring it.

    Example: census doctor trace.sqlite
    """
    found = {"this machine": doctor_lib.environment()} | ({trace: doctor_lib.of_file(trace)} if trace else {})
    output.emit(reports.findings(found), as_json=as_json, as_csv=as_csv, save=save)
