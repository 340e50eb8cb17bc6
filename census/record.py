"""Run an engine under a recorder: a command in, an nsys-schema sqlite out.

Two recorders, one row each. nsys sees CUDA; the in-process recorder asks the engine for its own launch log and serves
backends that run on the host. Everything after recording reads one kind of file and does not know which it was.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from census import runlog, trace
from census.errors import CensusError

STDERR = 2  # file descriptor
NSYS_PROFILE = ("nsys", "profile", "-t", "cuda,nvtx", "--cuda-graph-trace=node", "--export", "sqlite",
                "--force-overwrite", "true", "-o")  # fmt: skip


@dataclass(frozen=True)
class Recorder:
    name: str
    wrap: Callable[[Sequence[str], Path], list[str]]  # (command, folder) -> the command to run
    env: Callable[[Path], dict[str, str]]  # folder -> variables added to the engine's environment
    finish: Callable[[Path, Path], None]  # (folder, trace to write)


def _nsys_wrap(command: Sequence[str], folder: Path) -> list[str]:
    return [*NSYS_PROFILE, str(folder / "report"), *command]


def _nsys_finish(folder: Path, target: Path) -> None:
    exported = folder / "report.sqlite"
    if not exported.exists():
        raise CensusError("nsys ended without an sqlite export; run `nsys status -e` and record again")
    exported.replace(target)


def _log_env(folder: Path) -> dict[str, str]:
    return {"MINFER_LAUNCH_LOG": str(folder / "launches.jsonl")}


def _log_finish(folder: Path, target: Path) -> None:
    log = folder / "launches.jsonl"
    trace.write_export(target, runlog.export_tables(runlog.read_log(log), version("launch-census")))


NSYS = Recorder("nsys", _nsys_wrap, lambda folder: {}, _nsys_finish)
IN_PROCESS = Recorder("in-process", lambda command, folder: list(command), _log_env, _log_finish)


def recorder_for(backend: str) -> Recorder:
    """The recorder that can see an engine's backend. Raises CensusError when a GPU backend has no nsys to record it."""
    if backend == "cpu":
        return IN_PROCESS
    if shutil.which("nsys") is None:
        raise CensusError(f"backend {backend!r} is recorded by nsys, and nsys is not on PATH; install Nsight Systems")
    return NSYS


def record(command: Sequence[str], recorder: Recorder, target: Path) -> None:
    """Run `command` recorded and write the trace to `target`, or raise CensusError and write nothing.

    All it prints goes to our standard error: nsys writes its own messages between the command's.
    """
    folder = target.with_name(f".{target.name}.recording")
    folder.mkdir(parents=True)
    try:
        argv = recorder.wrap(command, folder)
        done = subprocess.run(argv, stdout=STDERR, env=os.environ | recorder.env(folder))
        if done.returncode:
            raise CensusError(f"{' '.join(command)} ended with exit code {done.returncode}; its message is above")
        recorder.finish(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
