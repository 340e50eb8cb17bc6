"""Many traces at once: the same ledger of each, side by side, and a summary over runs, hosts and devices.

Launch counts are exact and listed where they differ; times are the median over traces with their spread. A trace
that fails is listed with its reason. A worker that dies costs no trace: what it held is read again.
"""

import glob
import json
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from census import ledger, sources
from census.errors import CensusError
from census.ledger import Ledger

_TRIES = 3  # a trace whose worker dies this often is the reason itself
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    """One trace of a fleet: its ledger, or the reason why there is none."""

    trace: str
    host: str | None  # from the run.json beside it, where there is one
    ledger: Ledger | None
    error: str | None


@dataclass(frozen=True)
class Summary:
    """One key on one device over all traces that have it."""

    device: str
    key: str
    traces: int
    hosts: int
    launches_per_step: float | None  # None: they differ, or are not visible
    launches_seen: tuple[float, ...]  # every distinct count
    exposed_us_median: float
    exposed_us_min: float
    exposed_us_max: float


@dataclass(frozen=True)
class Fleet:
    """All outcomes in order of their path, and the summary, largest first."""

    by: str
    outcomes: tuple[Outcome, ...]
    rows: tuple[Summary, ...]


def is_fleet(source: str) -> bool:
    """Whether a command's argument names many traces: a folder (of traces, not of tables) or a glob."""
    path = Path(source)
    return (path.is_dir() and not sources.is_parquet(path)) or (not path.exists() and glob.has_magic(source))


def expand(source: str) -> list[str]:
    """The traces in a folder, at any depth, or matched by a glob; sorted. Raises CensusError when there are none."""
    if Path(source).is_dir():
        paths = [p for p in Path(source).rglob("*") if p.name.endswith(sources.SUFFIXES) or sources.is_parquet(p)]
    else:
        paths = [Path(p) for p in glob.glob(source, recursive=True)]  # noqa: PTH207 (patterns may be absolute)
    if not paths:
        raise CensusError(f"{source}: holds no trace; looked for {', '.join(sources.SUFFIXES)} and parquet folders")
    return sorted(str(p) for p in paths)


def read_one(path: str, steps: str, by: str) -> Outcome:
    """The outcome of one trace; a trace that cannot be read is one too."""
    try:
        return Outcome(path, _host(path), ledger.of_file(path, steps=steps, by=by), None)
    except CensusError as err:
        return Outcome(path, _host(path), None, str(err))


def _host(path: str) -> str | None:
    try:
        facts = json.loads((Path(path).parent / "run.json").read_text(encoding="utf-8"))
        return str(facts["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run(paths: Sequence[str], *, steps: str = "auto", by: str = "kernel", workers: str = "",
        progress: Progress = lambda done, total: None) -> Fleet:
    """Ledgers of all paths. `workers`: a number of local processes, or the tcp:// address of a Dask scheduler.

    Raises CensusError for anything else, and when no trace at all could be read.
    """
    if workers.startswith("tcp://"):
        outcomes = _on_dask(paths, steps, by, workers, progress)
    else:
        outcomes = _on_processes(paths, steps, by, _worker_count(workers, len(paths)), progress)
    outcomes = sorted(outcomes, key=lambda o: o.trace)
    if all(o.ledger is None for o in outcomes):
        raise CensusError(f"none of {len(outcomes)} traces can be read; the first: {outcomes[0].error}")
    return Fleet(by, tuple(outcomes), summarize(outcomes))


def _worker_count(workers: str, traces: int) -> int:
    if workers and not (workers.isdigit() and int(workers)):
        raise CensusError(f"--workers {workers}: give a number of processes from 1, or tcp://HOST:PORT of a scheduler")
    return min(int(workers) if workers else os.cpu_count() or 1, traces)


def _on_processes(paths: Sequence[str], steps: str, by: str, workers: int, progress: Progress) -> list[Outcome]:
    if workers == 1:
        outcomes = []
        for path in paths:
            outcomes.append(read_one(path, steps, by))
            progress(len(outcomes), len(paths))
        return outcomes
    done: dict[str, Outcome] = {}

    def tick() -> None:
        progress(len(done), len(paths))

    while left := [p for p in paths if p not in done]:
        for path in _round(left, steps, by, workers, done, tick):
            done[path] = _alone(path, steps, by)
            tick()
    return list(done.values())


def _round(left: list[str], steps: str, by: str, workers: int, done: dict[str, Outcome],
           tick: Callable[[], None]) -> list[str]:  # fmt: skip
    """Read until all is read or a worker dies; then which traces were being read: one of them may be the cause."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = list(left)
        running: dict[Future[Outcome], str] = {}
        try:
            while waiting or running:
                while waiting and len(running) < workers:  # no more than run: the rest is innocent of a death
                    path = waiting.pop()
                    running[pool.submit(read_one, path, steps, by)] = path
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    outcome = future.result()
                    done[running.pop(future)] = outcome
                    tick()
        except BrokenProcessPool:
            return list(running.values())
    return []


def _alone(path: str, steps: str, by: str) -> Outcome:
    """A trace that was being read when a worker died, in a process of its own, where a death is its own."""
    for _ in range(_TRIES):
        with suppress(BrokenProcessPool), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(read_one, path, steps, by).result()
    return Outcome(path, _host(path), None, f"{path}: its worker died {_TRIES} times; read it alone, with more memory")


def _on_dask(paths: Sequence[str], steps: str, by: str, address: str, progress: Progress) -> list[Outcome]:
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise CensusError("--workers tcp://...: needs Dask; pip install 'launch-census[fleet]'") from None
    try:
        client = Client(address, timeout=10)
    except (OSError, TimeoutError) as err:
        raise CensusError(f"--workers {address}: no Dask scheduler answers there ({err})") from None
    with client:
        full = {str(Path(p).absolute()): p for p in paths}  # workers may run in another folder
        tasks = {client.submit(read_one, f, steps, by, pure=False, retries=_TRIES): p for f, p in full.items()}
        outcomes: list[Outcome] = []
        for future in as_completed(tasks):
            outcomes.append(_collect(future, tasks[future]))
            progress(len(outcomes), len(paths))
    return outcomes


def _collect(future: Any, path: str) -> Outcome:
    """A Dask task's outcome under the path the user gave; a task that its scheduler gave up on is a failure."""
    if future.status != "finished":
        return Outcome(path, None, None, f"{path}: its workers failed ({future.exception()})")
    got: Outcome = future.result()
    full = str(Path(path).absolute())
    made = None if got.ledger is None else replace(got.ledger, trace=path)
    return Outcome(path, got.host, made, got.error.replace(full, path) if got.error else None)


def summarize(outcomes: Sequence[Outcome]) -> tuple[Summary, ...]:
    """Every (device, key) over the traces, in order of the device and then of exposed time."""
    seen: dict[tuple[str, str], list[tuple[Outcome, ledger.Row]]] = {}
    for outcome in outcomes:
        for row in outcome.ledger.rows if outcome.ledger else ():
            seen.setdefault((_device(outcome), row.key), []).append((outcome, row))
    rows = [_summary(device, key, found) for (device, key), found in seen.items()]
    return tuple(sorted(rows, key=lambda r: (r.device, -r.exposed_us_median, r.key)))


def _device(outcome: Outcome) -> str:
    """Device and unit: a step and a whole trace do not mix in one median."""
    made = outcome.ledger
    name = (made.device if made else None) or "unknown device"
    return name if made is None or made.unit == "step" else f"{name} (whole traces)"


def _summary(device: str, key: str, found: list[tuple[Outcome, ledger.Row]]) -> Summary:
    counts = sorted({row.launches_per_step for _, row in found if row.launches_per_step is not None})
    hidden = any(row.launches_per_step is None for _, row in found)
    exposed = [row.exposed_us_per_step for _, row in found]
    hosts = {outcome.host for outcome, _ in found if outcome.host}
    return Summary(device, key, len(found), len(hosts), counts[0] if len(counts) == 1 and not hidden else None,
                   tuple(counts), statistics.median(exposed), min(exposed), max(exposed))
