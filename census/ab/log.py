"""The append-only log of a window, and the other two files beside it.

    plan.json      written before the first run, never changed
    runs.jsonl     one JSON line per event (start, run, replace); a line counts once its newline is on disk
    window.json    appears when the window is finished, in one rename
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from census.errors import CensusError

PLAN, RUNS, WINDOW = "plan.json", "runs.jsonl", "window.json"
Event = dict[str, Any]


@dataclass(frozen=True)
class Log:
    """An open log and what it holds; `events` grows with every append."""

    path: Path
    descriptor: int
    events: list[Event]


def create(folder: Path, plan: Mapping[str, Any]) -> None:
    """A new window's folder with its plan, complete or not there at all. Raises CensusError when it exists."""
    if folder.exists():
        done = (folder / WINDOW).exists()
        what = "a finished window, and a window is not run again under its name" if done else "there already"
        way = "give another --out" if done else f"go on with `census ab --resume {folder}`, or give another --out"
        raise CensusError(f"{folder}: is {what}; {way}")
    part = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write_json(part / PLAN, plan)
        (part / RUNS).touch()
        part.rename(folder)
    except OSError as error:
        raise CensusError(f"{folder}: cannot be written ({error.strerror}); give another --out") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CensusError for anything else."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise CensusError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise CensusError(f"{path}: is not JSON ({error})") from None
    if not isinstance(data, dict):
        raise CensusError(f"{path}: holds a JSON {type(data).__name__}, not an object")
    return data


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a whole file or nothing: into a neighbour, to disk, then renamed."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w") as file:
        file.write(json.dumps(data, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


@contextmanager
def opened(path: Path) -> Iterator[Log]:
    """The log for appending, by one process at a time. A line cut short by a crash is taken off. Raises CensusError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    except OSError as error:
        raise CensusError(f"{path}: cannot be opened ({error.strerror}); is {path.parent} a window's folder?") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CensusError(f"{path.parent}: another process is running this window; wait for it") from None
        whole, torn = _whole_lines(path.read_bytes())
        if torn:
            os.ftruncate(descriptor, len(whole))
        yield Log(path, descriptor, _parse(whole, path))
    finally:
        os.close(descriptor)


def read(path: Path) -> list[Event]:
    """The events of a log, without opening it for writing."""
    try:
        return _parse(_whole_lines(path.read_bytes())[0], path)
    except OSError as error:
        raise CensusError(f"{path}: cannot be read ({error.strerror})") from None


def append(log: Log, event: Event) -> None:
    """One event, on disk when this returns. Where it cannot be written nothing of it stays; raises CensusError."""
    line = (json.dumps(event) + "\n").encode()
    size = os.fstat(log.descriptor).st_size
    try:
        written = 0
        while written < len(line):
            written += os.write(log.descriptor, line[written:])
        os.fsync(log.descriptor)
    except OSError as error:
        os.ftruncate(log.descriptor, size)
        raise CensusError(f"{log.path}: cannot be written ({error.strerror}); the runs before are kept; make room, "
                          f"then `census ab --resume {log.path.parent}`") from None
    log.events.append(event)


def _whole_lines(data: bytes) -> tuple[bytes, bytes]:
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _parse(data: bytes, path: Path) -> list[Event]:
    events = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            events.append(json.loads(line))
        except ValueError:
            raise CensusError(f"{path}: line {number} is not JSON; restore the file, or start a new window") from None
    return events
