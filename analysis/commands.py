"""The commands of the advice: each opens, calls and formats; what they compute is in this package's modules.

    census account trace.sqlite --peer bench.json
    census predict --pre before.sqlite --post after.sqlite --time-from graph.sqlite
    census fusions trace.sqlite --plan plan.json
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis import account as account_lib
from analysis import clock, fusions, landing, planned, prediction, scores, sequence, show
from analysis import predict as predict_lib
from analysis import reconcile as reconcile_lib
from analysis import report as report_lib
from census import output
from census.app import Csv, Json, Save, StepsHow, app
from census.errors import CensusError

TimeFrom = Annotated[str | None, typer.Option("--time-from", metavar="FILE", help="The step's true time: a whole-graph "
                     "recording of the same command, or the benchmark's JSON.")]
PlanFile = Annotated[Path | None, typer.Option("--plan", metavar="PLAN.json", help="The plan that the trace is a "
                     "recording of (`minfer plan MODEL --json`).")]
SaveTo = Annotated[Path | None, typer.Option("--save-to", metavar="FILE", help="Keep the prediction, with its date and "
                   "hash, in a new file.")]


@app.command()
def account(
    trace: Annotated[str | None, typer.Argument(metavar="[TRACE]", help="The recorded step to be split.")] = None,
    peer: Annotated[str | None, typer.Option("--peer", metavar="FILE", help="The reference: a benchmark's JSON or a "
                    "whole-graph recording of the peer.")] = None,
    floor: Annotated[float | None, typer.Option("--floor", metavar="GB/s", help="The reference: the step's bytes at "
                     "this bandwidth; needs --plan.")] = None,
    plan: PlanFile = None,
    time_from: TimeFrom = None,
    ours_tps: Annotated[float | None, typer.Option("--ours-tps", metavar="TOK/S", help="Bare arithmetic, no trace: our "
                        "speed.")] = None,
    reference_ms: Annotated[float | None, typer.Option("--reference-ms", metavar="MS", help="Bare arithmetic: the "
                            "reference step.")] = None,
    history: Annotated[list[Path] | None, typer.Option("--history", metavar="W.json", help="A window of ours against "
                       "the peer; once per window, oldest first.")] = None,
    ours: Annotated[str, typer.Option("--ours", metavar="A|B", help="The arm that is ours in --history.")] = "A",
    steps: StepsHow = "auto",
    as_json: Json = False,
    as_csv: Csv = False,
    save: Save = None,
) -> None:
    """The distance of a step to a peer or to the floor, in items that add up to it exactly.

    Example: census account trace.sqlite --peer bench.json
    """
    if history:
        output.emit(show.history(account_lib.history(history, ours)), as_json=as_json, as_csv=as_csv, save=save)
        return
    if trace is not None:
        with output.working(f"reading {trace}"):
            made = account_lib.of_files(trace, steps, peer=peer, floor_gbs=floor, plan=plan, time_from=time_from)
    elif ours_tps is not None and reference_ms is not None:
        made = account_lib.bare(ours_tps, reference_ms)
    else:
        raise CensusError("an account needs a TRACE with --peer or --floor, or --ours-tps with --reference-ms, or "
                          "--history")
    output.emit(show.account(made), as_json=as_json, as_csv=as_csv, save=save)


@app.command()
def predict(
    pre: Annotated[str, typer.Option("--pre", metavar="A", help="Node-mode trace of the step before.")],
    post: Annotated[str, typer.Option("--post", metavar="B", help="Node-mode trace of the step after.")],
    time_from: TimeFrom = None,
    steps: StepsHow = "auto",
    save_to: SaveTo = None,
    as_json: Json = False,
    as_csv: Csv = False,
    save: Save = None,
) -> None:
    """What the clock should say of the change between two recorded structures, as an interval with its reasons.

    Example: census predict --pre before.sqlite --post after.sqlite --time-from after-graph.sqlite
    """
    with output.working("reading the traces"):
        made = predict_lib.of_files(pre, post, time_from, steps)
    data = _keep(show.change_data(made, predict_lib.digests(made, time_from)), save_to)
    output.emit(show.change(made, data), as_json=as_json, as_csv=as_csv, save=save)


@app.command("fusions")
def fusions_(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="Node-mode trace of the step as it is.")],
    plan: PlanFile = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="PLAN.json", help="The plan after a change that is "
                  "written, not measured: what will it save?")] = None,
    window: Annotated[Path | None, typer.Option("--window", metavar="W.json", help="A window on this machine: which "
                      "candidates could it show?")] = None,
    bandwidth: Annotated[float | None, typer.Option("--bandwidth", metavar="GB/s", min=1, help="Of the device; the "
                         "trace's datasheet figure by default.")] = None,
    time_from: TimeFrom = None,
    steps: StepsHow = "auto",
    save_to: SaveTo = None,
    as_json: Json = False,
    as_csv: Csv = False,
    save: Save = None,
) -> None:
    """Which launches could be one, and what that may save: candidates ranked by what is sure; or a planned change.

    Example: census fusions trace.sqlite --plan plan.json
    """
    with output.working(f"reading {trace}"):
        report = (_landing(trace, plan, to, time_from, steps, bandwidth, save_to) if to else
                  _candidates(trace, plan, window, time_from, steps, save_to))
    output.emit(report, as_json=as_json, as_csv=as_csv, save=save)


def _landing(trace: str, plan: Path | None, to: Path, time_from: str | None, steps: str, bandwidth: float | None,
             save_to: Path | None) -> output.Report:
    if plan is None:
        raise CensusError("--to needs --plan, the plan that the trace is a recording of")
    step, made = landing.of_files(trace, plan, to, time_from=time_from, how=steps, bandwidth_gbs=bandwidth)
    files = _digests(trace, plan, to, time_from)
    return show.landing(step, made, _keep(show.landing_data(step, made, files), save_to))


def _candidates(trace: str, plan: Path | None, window: Path | None, time_from: str | None, steps: str,
                save_to: Path | None) -> output.Report:
    step, rows = sequence.read(trace, steps), planned.load(plan) if plan else None
    if rows:
        planned.check(step, rows, str(plan))
    found = fusions.find(step, rows, landing.recorded(time_from))
    notes = fusions.visible(found, clock.read(window)) if window else ()
    data = _keep(show.candidates_data(step, found, _digests(trace, plan, time_from)), save_to)
    return show.candidates(step, found, data, notes)


@app.command()
def reconcile(
    path: Annotated[Path, typer.Argument(metavar="PREDICTION", help="A file that --save-to wrote.")],
    pre: Annotated[str, typer.Option("--pre", metavar="T0", help="Trace before the change.")],
    post: Annotated[str, typer.Option("--post", metavar="T1", help="Trace after it.")],
    window: Annotated[Path, typer.Option("--window", metavar="W.json", help="The interleaved window of the two.")],
    candidate: Annotated[str | None, typer.Option("--candidate", metavar="NAME", help="Which candidate was made, where "
                         "the prediction holds several.")] = None,
    a_is_post: Annotated[bool, typer.Option("--a-is-post", help="The window's A is the step after: an isolation, where "
                         "A has the switch at 0.")] = False,
    steps: StepsHow = "auto",
    as_json: Json = False,
    as_csv: Csv = False,
    save: Save = None,
) -> None:
    """A prediction against two recordings and the clock, row by row with the residual; says where signs disagree.

    Example: census reconcile prediction.json --pre before.sqlite --post after.sqlite --window window.json
    """
    with output.working("reading the traces"):
        made = reconcile_lib.of_files(path, pre, post, window, candidate, steps, a_is_post)
    output.emit(show.reconciled(made), as_json=as_json, as_csv=as_csv, save=save)


@app.command()
def table(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Holds predictions/, windows/ and whole-graph "
                      "recordings under the same names.")],
    as_json: Json = False,
    as_csv: Csv = False,
    save: Save = None,
) -> None:
    """Predicted against measured, from stored predictions, windows and recordings.

    Example: census table traces
    """
    made = scores.of_folder(folder)
    output.emit(show.scores(made, scores.summary(made)), as_json=as_json, as_csv=as_csv, save=save)


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Traces, or folders of `census record` and "
                    "`census run`.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    tried: Annotated[Path | None, typer.Option("--tried", metavar="FOLDER", help="Predictions and windows to show as "
                     "what was tried (see `census table`).")] = None,
) -> None:
    """One self-contained page: where the time goes, what to fuse next, what it should save, what was tried.

    Example: census report traces/14b-d0-default-node.sqlite.gz --tried traces -o report.html
    """
    with output.working("reading the runs"):
        text = report_lib.page([report_lib.read(run) for run in runs], tried)
    report_lib.save(out, text)
    output.lines([f"wrote {out} ({len(text.encode()) / 1e3:,.0f} kB)"])


@app.command()
def lab(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The notebooks to open.")] = Path("notebooks"),
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="On this machine only.")] = 8888,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in a browser.")] = True,
) -> None:
    """JupyterLab on the notebooks: on this machine only, behind a token.

    Example: census lab notebooks --no-browser
    """
    if not folder.is_dir():
        raise CensusError(f"{folder}: no such folder; give the folder of the notebooks")
    if importlib.util.find_spec("jupyterlab") is None:
        raise CensusError("JupyterLab is not installed; pip install 'launch-census[lab]'")
    command = [sys.executable, "-m", "jupyterlab", f"--notebook-dir={folder}", "--ip=127.0.0.1", f"--port={port}"]
    if os.geteuid() == 0:  # a container: Jupyter refuses root unless it is told to
        command.append("--allow-root")
    raise typer.Exit(subprocess.run(command if browser else [*command, "--no-browser"]).returncode)


def _keep(data: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """The prediction sealed, and in a file where one is asked for."""
    made = prediction.sealed(data)
    if path is not None:
        prediction.save(path, made)
    return made


def _digests(*files: str | Path | None) -> dict[str, str]:
    return {Path(f).name: sequence.digest(str(f)) for f in files if f is not None}
