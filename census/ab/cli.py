"""`census ab` and `census verdict`: time two arms in an interleaved window, and judge one."""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from census import output
from census.ab import gpu, log, metric, runner, show, verdict, window
from census.ab import plan as planning
from census.ab import surface as surfaces
from census.ab.plan import Limits, Plan, Rule
from census.app import Csv, Json, app
from census.errors import CensusError

A = Annotated[str | None, typer.Option("--a", metavar="CMD", help="Arm A; NAME=VALUE may stand before the program.")]
B = Annotated[str | None, typer.Option("--b", metavar="CMD", help="Arm B.")]
Cmd = Annotated[str | None, typer.Option("--cmd", metavar="CMD", help="One command for both arms, with --switch.")]
Switch = Annotated[str | None, typer.Option("--switch", metavar="NAME", help="The variable that is 0 in A and 1 in B.")]
Env = Annotated[list[str] | None, typer.Option("--env", metavar="K=V", help="Set a variable in both arms.")]
Pairs = Annotated[int, typer.Option("--pairs", min=2, help="Pairs of runs; even, so that the order is balanced.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Of the order; drawn where it is not given.")]
Null = Annotated[bool, typer.Option("--with-null", help="Run A, A' and B in each pair: the floor of this machine.")]
Metric = Annotated[str, typer.Option("--metric", help="bench, bench:TEST, json:PATH or regex:EXPR; one figure a run.")]
Better = Annotated[bool | None, typer.Option("--higher/--lower", help="Which is better, for json: and regex:.")]
Warmup = Annotated[int, typer.Option("--warmup", min=0, help="Discarded runs of each arm before the first pair.")]
Gap = Annotated[float, typer.Option("--gap", min=0, help="Seconds before each run, the same in both arms.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds after which a run is stopped.")]
Bar = Annotated[float | None, typer.Option("--bar", metavar="PCT", help="The least gain of B that is worth landing.")]
Delta = Annotated[float, typer.Option("--delta", metavar="PCT", min=0, help="EQUIV: the interval lies within ± this.")]
Guard = Annotated[list[str] | None, typer.Option(
    "--guard", metavar="NAME>=VALUE", help="B lands only if this holds: tok/s of a bench test, or a JSON path.")]
Load = Annotated[float, typer.Option("--host-load", metavar="CORES", min=0, help="CPU others may use in a run.")]
Different = Annotated[bool, typer.Option("--allow-different-output", help="The arms may produce different tokens.")]
TraceA = Annotated[Path | None, typer.Option("--trace-a", metavar="TRACE", help="A trace of A, to check launches.")]
TraceB = Annotated[Path | None, typer.Option("--trace-b", metavar="TRACE", help="A trace of B.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The window's folder; windows/TIME by default.")]
Resume = Annotated[Path | None, typer.Option("--resume", metavar="DIR", help="Go on with a window that stopped.")]


@app.command()
def ab(
    context: typer.Context,
    a: A = None, b: B = None, cmd: Cmd = None, switch: Switch = None, env: Env = None,
    pairs: Pairs = 10, seed: Seed = None, with_null: Null = False,
    metric_: Metric = metric.BENCH, higher: Better = None,
    warmup: Warmup = 1, gap: Gap = 1.0, timeout: Timeout = 600.0,
    bar: Bar = None, delta: Delta = 1.0, guard: Guard = None, host_load: Load = 1.0,
    allow_different_output: Different = False, trace_a: TraceA = None, trace_b: TraceB = None,
    out: Out = None, resume: Resume = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Time two arms in interleaved pairs, one fresh process per run, and say what the figures allow to be said.

    Example: census ab --cmd "minfer bench smollm2-135m -p 0 -n 16 -r 3 -o json" --switch MINFER_NVTX --pairs 10
    """
    if resume is not None:
        _only_resume(context)
        folder = resume
    else:
        direction = metric.check(metric_, higher)
        sides = planning.arms(a, b, cmd, switch, planning.variables(env or []))
        rule = Rule(pairs, direction, delta_pct=delta, bar_pct=bar, different_output=allow_different_output,
                    conditions=tuple(map(metric.condition, guard or [])))
        drawn = random.SystemRandom().randrange(10**6) if seed is None else seed
        plan = Plan(*sides, planning.shuffled(pairs, drawn, with_null), drawn, metric_, rule,
                    Limits(host_cores=host_load), warmup, gap, timeout, switch, planning.now(), str(Path.cwd()),
                    planning.watched(os.environ), warnings=planning.remarks(*sides, os.environ, pairs))
        folder = out or Path("windows") / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        planning.refuse_recorded(os.environ)
        log.create(folder, planning.as_data(_with_surface(plan, trace_a, trace_b)))
    run_window(folder)
    _print(folder, as_json, False)


@app.command(name="verdict")
def verdict_(
    path: Annotated[Path, typer.Argument(metavar="WINDOW", help="A window.json, its folder, or a recording.")],
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Judge a window again, or one that was recorded elsewhere; CSV gives its pairs.

    Example: census verdict window-llamacpp-fusion-14b-h200.json
    """
    _print(path, as_json, as_csv)


def run_window(folder: Path) -> None:
    """Run what is left of a planned window. Raises CensusError, and leaves it so that it can go on."""
    plan = planning.from_data(log.read_json(folder / log.PLAN), folder / log.PLAN)
    if (folder / log.WINDOW).exists():
        _tell([f"{folder}: is finished; nothing was run"])
        return
    planning.refuse_recorded(os.environ)
    planning.check_environment(plan)
    _tell([*(f"warning: {w}" for w in plan.warnings),
           f"window {folder}: {len(plan.order)} pairs, seed {plan.seed}, order {' '.join(plan.order)}"])
    try:
        visible = (os.environ | plan.a.env).get("CUDA_VISIBLE_DEVICES")
        with gpu.opened(visible) as gpus, _bar() as tick:
            runner.run(folder, plan, runner.real_world(gpus, plan), tick)
    except KeyboardInterrupt:
        _tell([f"stopped; go on with `census ab --resume {folder}`"])
        raise
    if again := runner.interrupted(log.read(folder / log.RUNS)):
        _tell([f"{again} runs were cut short and ran again; their start lines are in {folder / log.RUNS}"])


def _with_surface(plan: Plan, trace_a: Path | None, trace_b: Path | None) -> Plan:
    """Print what the switch changes, and check recorded launches against it, before anything is timed."""
    if (trace_a is None) != (trace_b is None):
        raise CensusError("--trace-a and --trace-b belong together: give a trace of each arm, or neither")
    surface = surfaces.Surface(None, "not known: no --switch")
    if plan.switch:
        surface = surfaces.ask(plan.a, plan.switch, plan.cwd, os.environ)
        _tell(surface.lines)
    launches = None
    if trace_a and trace_b:
        launches = surfaces.recorded(trace_a, trace_b)
        _tell(surfaces.check(surface, launches))
    return replace(plan, surface=surface.data or {"not_known": surface.why}, launches=launches,
                   warnings=(*plan.warnings, *surface.warnings))


def _only_resume(context: typer.Context) -> None:
    """A resumed window has its plan; another option beside --resume would be ignored, so it is an error."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in ("resume", "as_json"):
            raise CensusError(f"--{name.strip('_').replace('_', '-')} cannot be changed by --resume: the plan of a "
                              "window is written before its first run; start a new window")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Runs done and time left on standard error; drawn between runs only, so that it disturbs none."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False,
                  disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=None)

        def tick(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, refresh=True)

        yield tick


def _print(path: Path, as_json: bool, as_csv: bool) -> None:
    read = window.load(path)
    made = verdict.judge(read)
    output.emit(show.report(read, made), as_json=as_json, as_csv=as_csv)
    if not as_json and not as_csv:
        output.lines(show.lines(read, made))


def _tell(lines: list[str]) -> None:
    """On standard error, so that --json stays JSON."""
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
