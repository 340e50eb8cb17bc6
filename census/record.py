"""Run an engine under a recorder: a command in, an nsys-schema sqlite out; `census record` and `census run` use it.

Three recorders, one row each. nsys sees any CUDA program. The in-process recorders ask minfer for its own log: of the
launches it made, where kernels run on the host, and of what CUPTI saw, where there is a GPU but no nsys. Everything
after recording reads one kind of file and does not know which it was.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from census import cuptilog, doctor, provenance, runlog, trace
from census.errors import CensusError

STDERR = 2  # file descriptor
ON_HOST = ("cpu", "emulated")  # minfer's backends whose kernels run inside the call
TRACE = "trace.sqlite"
GRAPHS = ("node", "graph", "both")
NSYS_PROFILE = ("nsys", "profile", "-t", "cuda,nvtx")
# no sampling of the host: it needs rights that containers lack, and slows the launches that are measured
NSYS_OUTPUT = ("--export", "sqlite", "--sample=none", "--cpuctxsw=none", "--force-overwrite", "true", "-o")
_GRACE_S = 10  # for an interrupted command to end by itself
_ENDED_BY_NSYS = {-signal.SIGTERM, 128 + signal.SIGTERM}


@dataclass(frozen=True)
class How:
    """What part of a run to record, and graph replays as what."""

    graphs: str = "node"  # or "graph": a replay is one row, and as fast as without a recorder
    delay: float = 0.0  # s after the start of the command
    duration: float = 0.0  # s; then nsys ends the command. 0: to its end


@dataclass(frozen=True)
class Recorder:
    name: str
    wrap: Callable[[Sequence[str], Path, How], list[str]]  # (command, folder, how) -> the command to run
    env: Callable[[Path], dict[str, str]]  # folder -> variables added to the engine's environment
    finish: Callable[[Path, Path], None]  # (folder, trace to write)


def _nsys_wrap(command: Sequence[str], folder: Path, how: How) -> list[str]:
    part = [f"--{name}={value:g}" for name, value in (("delay", how.delay), ("duration", how.duration)) if value]
    return [*NSYS_PROFILE, f"--cuda-graph-trace={how.graphs}", *part, *NSYS_OUTPUT, str(folder / "report"), *command]


def _nsys_finish(folder: Path, target: Path) -> None:
    exported = folder / "report.sqlite"
    if not exported.exists():
        raise CensusError("nsys ended without an sqlite export; its messages are above (`nsys status -e` checks it)")
    exported.replace(target)


def _log_finish(folder: Path, target: Path) -> None:
    log = folder / "launches.jsonl"
    trace.write_export(target, runlog.export_tables(runlog.read_log(log), provenance.tool_version()))


def _cupti_finish(folder: Path, target: Path) -> None:
    log = folder / "cupti.jsonl"
    tables = cuptilog.export_tables(log, provenance.tool_version())
    cuptilog.require_work(log, tables)
    trace.write_export(target, tables)


def _as_it_is(command: Sequence[str], folder: Path, how: How) -> list[str]:
    return list(command)


NSYS = Recorder("nsys", _nsys_wrap, lambda folder: {}, _nsys_finish)
IN_PROCESS = Recorder(
    "in-process", _as_it_is, lambda folder: {"MINFER_LAUNCH_LOG": str(folder / "launches.jsonl")}, _log_finish
)
CUPTI = Recorder("cupti", _as_it_is, lambda folder: {"MINFER_CUPTI_LOG": str(folder / "cupti.jsonl")}, _cupti_finish)


def recorder_for(backend: str) -> Recorder:
    """The recorder that can see minfer's backend. Raises CensusError when a GPU backend has none to record it."""
    if backend in ON_HOST:
        return IN_PROCESS
    if shutil.which("nsys"):
        return NSYS
    if find_spec("cupti"):
        return CUPTI
    raise CensusError(f"backend {backend!r} is recorded by nsys or CUPTI, and neither is here: put nsys on PATH, or "
                      "pip install 'launch-census[record]'")  # fmt: skip


def record(command: Sequence[str], recorder: Recorder, target: Path, how: How = How()) -> int:
    """Run `command` recorded, write the trace to `target` and return the command's exit code.

    Raises CensusError and writes nothing where there is no complete trace. All that the command prints goes to our
    standard error: nsys writes its own messages between the command's.
    """
    folder = target.with_name(f".{target.name}.recording")
    folder.mkdir(parents=True)
    try:
        code = _execute(recorder.wrap(command, folder, how), os.environ | recorder.env(folder))
        try:
            recorder.finish(folder, target)
        except CensusError as error:
            if code:
                raise CensusError(f"{ended(command, code)}, and left no trace; its message is above") from None
            raise error
        return 0 if how.duration and code in _ENDED_BY_NSYS else code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ended(command: Sequence[str], code: int) -> str:
    """`llama-bench -m x.gguf ended with exit code 3`."""
    return f"{' '.join(provenance.shown(command))} ended with exit code {code}"


def _execute(argv: Sequence[str], env: dict[str, str]) -> int:
    """Run to the end in a process group of its own: an interrupt must reach the engine that nsys started, too.

    Such a group cannot read a terminal, so the command gets none.
    """
    stdin = subprocess.DEVNULL if sys.stdin and sys.stdin.isatty() else None
    try:
        child = subprocess.Popen(argv, stdin=stdin, stdout=STDERR, env=env, process_group=0)
    except OSError as error:
        raise CensusError(f"{argv[0]}: cannot be run ({error.strerror})") from None
    try:
        return child.wait()
    except BaseException:  # Ctrl-C
        _end(child)
        raise


def _end(child: subprocess.Popen[bytes]) -> None:
    """Interrupt the command and all that it started; what is still there after a while is killed."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """A folder that appears complete or not at all: what is written into the one yielded moves there at the end."""
    if folder.exists():
        raise CensusError(f"{folder}: exists; give another --out, or remove it")
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        yield part
        part.rename(folder)
    except OSError as error:
        raise CensusError(f"{folder}: cannot be written ({error.strerror}); give another --out") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check(path: Path) -> tuple[str, ...]:
    """What the profiler complained of in a fresh trace, lost events first. Raises CensusError when it holds no work."""
    opened = trace.open_trace(path)
    try:
        if not opened.rows.keys() & {"kernels", "replays"}:
            raise CensusError("no GPU work was recorded: does the command use CUDA, and within --delay and --duration?")
        return doctor.messages(opened)
    finally:
        trace.close(opened)


def record_command(command: Sequence[str], graphs: str, how: How, folder: Path) -> dict[str, Any]:
    """Record any command under nsys into a new folder and return its run.json; `both` runs the command twice."""
    if graphs not in GRAPHS:
        raise CensusError(f"--graphs {graphs}: unknown; allowed are {', '.join(GRAPHS)}")
    if shutil.which("nsys") is None:
        raise CensusError("census record needs nsys on PATH: install Nsight Systems (`census run` records minfer "
                          "without it)")  # fmt: skip
    if shutil.which(command[0]) is None:
        raise CensusError(f"{command[0]}: no such command")
    modes = {"node": "trace-node.sqlite", "graph": "trace-graph.sqlite"} if graphs == "both" else {graphs: TRACE}
    with fresh(folder) as part:
        facts: dict[str, Any] = {"command": provenance.shown(command), "date": provenance.now()}
        runs = [_one(command, How(mode, how.delay, how.duration), part / name) for mode, name in modes.items()]
        facts |= {
            "device": provenance.devices() or _named_in(part / next(iter(modes.values()))),
            "recorder": NSYS.name, "versions": provenance.versions(), "delay_s": how.delay,
            "duration_s": how.duration or None, "runs": runs,
        }  # fmt: skip
        (part / "run.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def _one(command: Sequence[str], how: How, target: Path) -> dict[str, Any]:
    code = record(command, NSYS, target, how)
    return {"trace": target.name, "graphs": how.graphs, "exit_code": code, "messages": list(check(target))}


def _named_in(path: Path) -> list[str]:
    opened = trace.open_trace(path)
    try:
        return [device.name for device in opened.devices]
    finally:
        trace.close(opened)
