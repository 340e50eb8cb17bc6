"""NVTX ranges, and the innermost one open at a moment: a sort and a sweep, never a join.

A push/pop range belongs to its thread, a start/end range to its process, and domains are kept apart: each of these
is a lane that nests on its own. Ranges are numbered in start order, so across lanes the innermost range is the
one with the highest number.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from census import trace as tr
from census.activity import run_heads
from census.schema import NVTX_DOMAIN, NVTX_PUSH_POP, NVTX_START_END
from census.trace import Ints, Trace

NONE = -1  # no range
Ids = NDArray[np.int32]

_LAYER = re.compile(r"(?i)(?:^|[^a-z])(?:layers?|blk|blocks?)[ ._\[#-]?(\d+)")
_TORCH_TAIL = re.compile(r", (?:seq|op_id) = .*$")  # PyTorch appends a running number to every op


@dataclass(frozen=True)
class Lane:
    """One nesting of ranges: from `time[i]` (ns) on, `inner[i]` is the innermost open range."""

    owner: int  # a thread's global id, or a process id for start/end ranges
    threaded: bool
    time: Ints
    inner: Ids


@dataclass(frozen=True)
class Ranges:
    """Closed NVTX ranges, numbered in start order (ns), with the range around each in its own lane."""

    start: Ints
    end: Ints
    text: tuple[str, ...]
    domain: tuple[str, ...]  # "" for the default domain
    parent: Ids
    lanes: tuple[Lane, ...]
    silent_domains: tuple[str, ...]  # registered, but without a single range

    def __len__(self) -> int:
        return len(self.start)


def load(trace: Trace) -> Ranges:
    """Read push/pop and start/end ranges. Open ranges and marks are not ranges and are left out."""
    rows = tr.records(trace, "nvtx", "start", "end", "type", "tid", "end_tid", "text", "text_id", "domain")
    text = tr.strings(trace, {r[6] for r in rows if isinstance(r[6], int)})
    domains = {(_pid(r[3]), r[7]): _text(r, text) for r in rows if r[2] == NVTX_DOMAIN}
    kept = sorted(filter(_is_range, rows), key=lambda r: (r[0], -r[1]))  # of two at one start, the outer first
    members: dict[tuple[int, bool, Any], list[int]] = {}
    for i, row in enumerate(kept):
        threaded = row[2] in NVTX_PUSH_POP and row[4] in (None, row[3])
        members.setdefault((row[3] if threaded else _pid(row[3]), threaded, row[7]), []).append(i)
    start = np.array([r[0] for r in kept], np.int64)
    end = np.array([r[1] for r in kept], np.int64)
    parent = np.full(len(kept), NONE, np.int32)
    lanes = tuple(_sweep(owner, thr, ids, start, end, parent) for (owner, thr, _), ids in members.items())
    used = {(_pid(r[3]), r[7]) for r in kept}
    return Ranges(start, end, tuple(_text(r, text) for r in kept),
                  tuple(domains.get((_pid(r[3]), r[7]), "") for r in kept), parent, lanes,
                  tuple(sorted({name for key, name in domains.items() if key not in used})))


def _pid(tid: Any) -> int:
    return tid >> 24 if isinstance(tid, int) else NONE


def _text(row: tuple[Any, ...], strings: dict[int, str]) -> str:
    return str(row[5]) if row[5] is not None else strings.get(row[6], "")


def _is_range(row: tuple[Any, ...]) -> bool:
    timed = all(isinstance(v, int) for v in row[:4])
    return timed and row[2] in NVTX_PUSH_POP + NVTX_START_END and row[1] >= row[0]


def _sweep(owner: int, threaded: bool, ids: list[int], start: Ints, end: Ints, parent: Ids) -> Lane:
    """Walk one lane's ranges in start order with a stack; fills `parent` for them."""
    time: list[int] = []
    inner: list[int] = []
    stack: list[int] = []

    def close(until: int) -> None:
        while stack and end[stack[-1]] <= until:
            at = int(end[stack.pop()])
            while stack and end[stack[-1]] <= at:  # overlapping start/end ranges: this one is over as well
                stack.pop()
            time.append(at)
            inner.append(stack[-1] if stack else NONE)

    for i in ids:
        close(int(start[i]))
        parent[i] = stack[-1] if stack else NONE
        stack.append(i)
        time.append(int(start[i]))
        inner.append(i)
    close(np.iinfo(np.int64).max)
    return Lane(owner, threaded, np.array(time, np.int64), np.array(inner, np.int32))


def innermost(ranges: Ranges, tid: Ints, time: Ints, nearest: Ids | None = None) -> Ids:
    """The innermost range open on each thread at each time (ns), NONE where there is none.

    With `nearest` (from `nearest_where`) the innermost of the ranges that it singles out.
    """
    found = np.full(len(time), NONE, np.int32)
    if not len(ranges):
        return found
    for thread in _distinct(tid):
        mine = slice(None) if (tid == thread).all() else np.flatnonzero(tid == thread)
        when = time[mine]
        for lane in ranges.lanes:
            if lane.owner == (thread if lane.threaded else thread >> 24):
                found[mine] = np.maximum(found[mine], _lookup(lane, when, nearest))
    return found


def _lookup(lane: Lane, when: Ints, nearest: Ids | None) -> Ids:
    at = np.searchsorted(lane.time, when, side="right") - 1
    ids = np.where(at >= 0, lane.inner[np.maximum(at, 0)], NONE).astype(np.int32)
    return ids if nearest is None else np.where(ids >= 0, nearest[ids], NONE).astype(np.int32)


def _distinct(values: Ints) -> list[int]:
    """Distinct values of an array of long runs, without sorting all of it."""
    return [int(v) for v in np.unique(values[run_heads(values)])]


def nearest_where(ranges: Ranges, wanted: NDArray[np.bool_]) -> Ids:
    """For each range: itself if wanted, else the nearest wanted range around it in its lane, else NONE."""
    near = np.full(len(ranges), NONE, np.int32)
    for i in range(len(ranges)):  # parents have lower numbers
        outer = ranges.parent[i]
        near[i] = i if wanted[i] else (near[outer] if outer >= 0 else NONE)
    return near


def matching(ranges: Ranges, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Which ranges' texts the pattern is found in."""
    hit = {text: bool(pattern.search(text)) for text in set(ranges.text)}
    return np.array([hit[text] for text in ranges.text], np.bool_)


def layer_number(text: str) -> str | None:
    """`layer 3`, `model.layers.3.attn`, `blk.3` -> `3`; None for any other text."""
    found = _LAYER.search(text)
    return found.group(1) if found else None


def label(text: str) -> str:
    """A range's text without the running numbers that PyTorch appends."""
    return _TORCH_TAIL.sub("", text)
