"""One run: a fresh process in its own group, stopped at its timeout and never outliving the window."""

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, NamedTuple

from census.ab.plan import Arm, Plan
from census.errors import CensusError

_POLL = 1.0  # s between two looks at the GPU during a run; more often would disturb it


class Finished(NamedTuple):
    """A process that ended: its exit code (None: it was stopped at the timeout) and what it printed."""

    code: int | None
    out: str
    err: str


_libc = ctypes.CDLL(None)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def _bound() -> None:
    """In the child: end when this process ends, however it ends, so that no run goes on beside the next."""
    _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def execute(arm: Arm, plan: Plan, poll: Callable[[], None]) -> Finished:
    """One fresh process in the plan's folder; `poll` is called once a second while it runs. Raises CensusError."""
    with _scratch() as out, _scratch() as err:
        try:
            process = subprocess.Popen(arm.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=plan.cwd,
                                       env=os.environ | arm.env, start_new_session=True, preexec_fn=_bound)
        except (OSError, subprocess.SubprocessError) as error:
            why = getattr(error, "strerror", None) or error
            raise CensusError(f"{arm.command[0]}: cannot be started ({why}); give a program on PATH") from None
        try:
            code = _wait(process, plan.timeout_s, poll)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it left running
            process.wait()
        return Finished(code, *(_text(file) for file in (out, err)))


def _scratch() -> IO[bytes]:
    """A nameless file: a pipe that nobody reads during a run would block the command."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise CensusError(f"{tempfile.gettempdir()}: cannot hold a run's output ({error.strerror}); make room, "
                          "then resume") from None


def _wait(process: "subprocess.Popen[bytes]", timeout: float, poll: Callable[[], None]) -> int | None:
    """Exit code, or None when the time is over."""
    until = time.monotonic() + timeout
    while (left := until - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            return int(process.wait(min(left, _POLL)))
        poll()
    return None


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))
