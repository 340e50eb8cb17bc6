"""A copy of a trace, or of a window, that is safe to publish.

Of a trace: an allow-list of columns into a new file, never a deletion from the old. What a census reads stays;
environment, user, host, processes, thread names, captured output, device ids and strings that nothing kept refers to do
not. Ranges and kernel names are text of the engine's author: they stay, with absolute paths, addresses and the recorded
host and user names in them masked.

Of a window: every figure, and its texts, masked in the same way; not the ids of devices, nor the inherited variables
that tell of the machine's folders.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from census import ranges, sources
from census import trace as tr
from census.ab import log
from census.ab import window as windows
from census.errors import CensusError
from census.schema import COLUMNS, SAFE_EXTRA, TABLES

# Of the concepts that a census reads, those that stay behind.
_UNSAFE = ("diagnostics",)  # free text of the profiler: paths and command lines
# Only known roots: `/model/layers.0/MatMul` is the name of an op, not a path.
_ROOTS = "home|root|usr|opt|tmp|var|mnt|data|workspace|work|srv|etc|proc|Users|scratch|nfs|lustre|gpfs"
_PATH = re.compile(rf"(?:/(?:{_ROOTS})(?:/[^\s\"'<>()|,;]*)?|\b[A-Za-z]:\\[^\s\"'<>()|,;]*)(?!\w)")
_DEVICE = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F][\w/-]*")
_ADDRESS = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\b|\b(?:\d{1,3}\.){3}\d{1,3}\b")


@dataclass(frozen=True)
class Scrubbed:
    """What went into the copy, and how many texts were masked or, being inherited variables, left out."""

    out: str
    kept: str
    masked: int


def scrub(source: str, out: Path, begin: str | None = None) -> Scrubbed:
    """Write the publishable copy of a trace; with `begin`, of work only from the first range that this pattern matches.
    Or of a finished window, a .json file as `census ab` leaves it.

    Raises CensusError for a source that is neither, out == source, and a pattern that is none or matches no range.
    """
    window = source.endswith(".json")
    if out.exists() and Path(source).exists() and out.samefile(source):
        what = "window" if window else "trace"
        raise CensusError(f"{out}: is the {what} itself; a scrubbed copy goes into a new file")
    if not out.parent.is_dir():
        raise CensusError(f"{out}: no such folder {out.parent}; make it first")
    if window and begin is not None:
        raise CensusError("--from is for traces, a window has no ranges; leave it out")
    return _scrub_window(Path(source), out) if window else _scrub_trace(source, out, begin)


def _scrub_trace(source: str, out: Path, begin: str | None) -> Scrubbed:
    trace = sources.open_source(source)
    try:
        names = tr.secrets(trace)
        masked = 0

        def mask(value: Any) -> Any:
            nonlocal masked
            clean = mask_text(value, names) if isinstance(value, str) else value
            masked += clean is not value and clean != value
            return clean

        since = None if begin is None else _first(trace, begin)
        tables = tr.write_copy(trace, out, allowed(), mask, since)
        return Scrubbed(str(out), f"{sum(tables.values()):,} rows in {len(tables)} tables", masked)
    finally:
        tr.close(trace)


def _scrub_window(source: Path, out: Path) -> Scrubbed:
    data = log.read_json(source)
    windows.from_data(data, source)  # refuses what is none
    masked = 0

    def mask(value: Any) -> Any:
        nonlocal masked
        if isinstance(value, dict):
            return {key: mask(v) for key, v in value.items()}
        if isinstance(value, list):
            return [mask(v) for v in value]
        clean = _DEVICE.sub("[device]", mask_text(value, set())) if isinstance(value, str) else value
        masked += clean != value
        return clean

    plan = data.get("plan") or {}
    if watched := plan.get("watched"):
        plan["watched"] = {name: value for name, value in watched.items() if mask(value) == value}
    clean = {key: value if key == "guards" else mask(value) for key, value in data.items()}  # guards: our own words
    log.write_json(out, clean)
    return Scrubbed(str(out), f"{len(data['runs'])} runs", masked)


def _first(trace: tr.Trace, pattern: str) -> int:
    """When the first range begins (ns) whose text matches."""
    try:
        wanted = re.compile(pattern)
    except re.error as err:
        raise CensusError(f"--from {pattern}: not a regular expression ({err})") from None
    spans = ranges.load(trace)
    hits = spans.start[ranges.matching(spans, wanted)]
    if not len(hits):
        raise CensusError(f"{trace.path}: --from {pattern} matches none of its {len(spans)} ranges")
    return int(hits.min())


def allowed() -> dict[str, tuple[str, ...]]:
    """table -> columns that may be published."""
    keep: dict[str, tuple[str, ...]] = {}
    for concept, tables in TABLES.items():
        if concept in _UNSAFE:
            continue
        columns = [c for col in COLUMNS if col.concept == concept for c in col.candidates]
        for table in tables:
            keep[table] = tuple(dict.fromkeys([*columns, *SAFE_EXTRA.get(table, ())]))
    return keep


def mask_text(text: str, names: set[str]) -> str:
    """A text without absolute paths, addresses and the given names of hosts and users."""
    text = _ADDRESS.sub("[address]", _PATH.sub("[path]", text))
    for name in sorted(names, key=len, reverse=True):  # longest first: `alice-box` before `alice`
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "[name]", text)
    return text
