"""`census record` and `census run`: the commands that record, and print the ledger of what they recorded."""

from pathlib import Path
from typing import Annotated, Any

import typer

from census import ledger as ledger_lib
from census import output, provenance, reports, timing
from census import record as record_lib
from census import run as run_lib
from census.app import Json, app
from census.errors import CensusError
from census.ledger import Ledger
from census.reconcile import reconcile
from census.timing import Inflation

Overhead = Annotated[bool, typer.Option("--overhead/--no-overhead", help="Run the same command unrecorded before and "
                     "after, and print what recording costs.")]  # fmt: skip


@app.command(context_settings={"allow_interspersed_args": False})
def record(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The engine and its arguments, after --.")],
    graphs: Annotated[str, typer.Option(help="CUDA graph replays as node (every kernel), graph (one row, true time) "
                      "or both (two runs of the command).")] = "node",
    delay: Annotated[float, typer.Option(min=0, metavar="S", help="Start recording S seconds after the command.")] = 0,
    duration: Annotated[float, typer.Option(min=0, metavar="S", help="Record for S seconds, then end the command; 0 "
                        "records to its end.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the recording; traces/PROGRAM-TIME by default.")] = None,
    as_json: Json = False,
) -> None:
    """Record any CUDA program under nsys, keep trace and run.json in a folder, and print the ledger.

    Example: census record --graphs both -- llama-bench -m model.gguf -p 0 -n 32 -r 1
    """
    folder = out or provenance.default_folder(Path(command[0]).name)
    facts = record_lib.record_command(command, graphs, record_lib.How(delay=delay, duration=duration), folder)
    try:
        made, time, notes = _ledger(folder, facts)
    except CensusError as error:
        raise CensusError(f"{error}; the recording is kept in {folder}") from None
    report = reports.ledger(made, 30, time)
    notes += [f"profiler: {text}" for run in facts["runs"] for text in run["messages"]]
    if as_json:
        output.data({"run": str(folder), **facts, "ledger": report.data, "notes": notes})
    else:
        output.emit(report, as_json=False, as_csv=False)
        output.lines([*notes, f"kept in {folder}"])
    if code := next((run["exit_code"] for run in facts["runs"] if run["exit_code"]), 0):
        raise CensusError(f"{record_lib.ended(command, code)}; its trace is complete and kept in {folder}")


def _ledger(folder: Path, facts: dict[str, Any]) -> tuple[Ledger, Inflation | None, list[str]]:
    """The ledger of the first trace; where there is a second, of whole graphs, the true step time comes from it."""
    first, *second = [str(folder / run["trace"]) for run in facts["runs"]]
    made = ledger_lib.of_file(first)
    try:
        return made, timing.beside(made, second[0]) if second else None, []
    except CensusError as error:
        return made, None, [f"no true step time: {error}"]


@app.command()
def run(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, or a name that `minfer pull` fetched.")],
    tokens: Annotated[int, typer.Option("-n", "--tokens", min=1, help="Decode steps to record.")] = 32,
    depth: Annotated[int, typer.Option("-d", "--depth", min=0, help="Tokens already in the KV cache.")] = 0,
    device: Annotated[str, typer.Option(help="minfer's device: auto, cpu, cuda or emulated.")] = "auto",
    overhead: Overhead = True,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; traces/MODEL-BACKEND-TIME by default.")] = None,
    as_json: Json = False,
) -> None:
    """Predict minfer's decode step, record it, print the ledger, and check plan against trace launch by launch.

    Example: census run smollm2-135m --tokens 32
    """
    with output.working("planning"):
        plan = run_lib.predict(model, tokens, depth, device)
    if not as_json:
        output.lines(run_lib.prediction_lines(plan))
    folder = out or run_lib.default_folder(model, plan["backend"])
    wanted = run_lib.Run(model, tokens, depth, folder, device)
    facts = run_lib.record_run(wanted, plan, overhead)
    trace = wanted.folder / record_lib.TRACE
    made = ledger_lib.of_file(str(trace))
    held = reconcile(plan["launches"], run_lib.step_kernels(trace))
    report = reports.ledger(made, 0)
    if as_json:
        output.data(run_lib.as_data(wanted, facts, report.data, held))
    else:
        output.emit(report, as_json=False, as_csv=False)
        output.lines([*run_lib.outcome_lines(made, facts, plan, held), f"kept in {wanted.folder}"])
    if not held.holds:
        raise CensusError(f"{wanted.folder}: the trace does not launch what the plan says ({held.matching} of "
                          f"{held.steps} steps do); the recording is kept")  # fmt: skip
