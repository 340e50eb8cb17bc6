"""Cut a trace into decode steps: by NVTX ranges, by graph replays, or by the repeating sequence of launches.

One token in, one token out is a step; prefill and warm-up are never steps. Whatever is left out is counted. Where
no evidence is good enough, no steps are invented: the whole trace is the unit and the reason is given.
"""

import re
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from census import lag, ranges
from census import trace as tr
from census.activity import KERNEL, REPLAY, Activity, factor, run_heads
from census.errors import CensusError
from census.launches import Launches, moments
from census.ranges import Ranges
from census.trace import Trace

STEP_TEXT = re.compile(r"(?i)decode|step|generate")
NEVER_TEXT = re.compile(r"(?i)prefill|warm[-_ ]?up")
_NUMBERED = re.compile(r"\d\W*$")
_SURE = 0.995  # a whole trace that repeats this well needs no pause between its steps to be believed
_PAUSE = 5_000  # ns; a shorter idle time says nothing about where a step begins
_MIX = np.uint64(0x9E3779B97F4A7C15)  # an odd multiplier: (name, grid, block) become one number


@dataclass(frozen=True)
class Steps:
    """Which step each piece of device work belongs to (-1: none), and how that was found."""

    of: NDArray[np.int32]  # numbered 0.. in start order, device by device
    count: int  # 0: no steps, the whole trace is one unit
    method: str  # nvtx, graph, lag or none
    reason: str
    match: float | None = None  # lag only: share of launches that repeat exactly
    layer_period: int | None = None  # lag only
    excluded: dict[str, int] = field(default_factory=dict)  # launches left out, by reason
    warnings: tuple[str, ...] = ()


def find(trace: Trace, act: Activity, launches: Launches, spans: Ranges, how: str = "auto") -> Steps:
    """Cut by `how`: auto, nvtx, nvtx:REGEX, graph or lag. Raises CensusError for another word or a bad regex.

    A method that was asked for by name and finds nothing is an error; auto falls back to the whole trace.
    """
    method, _, pattern = how.partition(":")
    if method == "nvtx":
        return _demand(by_nvtx(act, launches, spans, _compile(pattern)), how, trace)
    if how == "graph":
        return _demand(by_graph(act), how, trace)
    if how == "lag":
        return _demand(by_lag(trace, act), how, trace)
    if how == "none":
        return Steps(whole(act, "").of, 0, "none", "the whole trace, as asked for")
    if how != "auto":
        raise CensusError(f"--steps {how}: unknown; allowed are auto, nvtx, nvtx:REGEX, graph, lag, none")
    return _auto(trace, act, launches, spans)


def _compile(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern) if pattern else None
    except re.error as err:
        raise CensusError(f"--steps nvtx:{pattern}: not a regular expression ({err})") from None


def _demand(steps: Steps, how: str, trace: Trace) -> Steps:
    if not steps.count:
        raise CensusError(f"{trace.path}: --steps {how} finds none: {steps.reason}; try --steps auto")
    return steps


def _auto(trace: Trace, act: Activity, launches: Launches, spans: Ranges) -> Steps:
    """The strongest evidence first: the engine's own ranges, then graph replays, then repetition."""
    tried = []
    nvtx = by_nvtx(act, launches, spans, None)
    if nvtx.count > 1:
        return nvtx
    tried.append(nvtx.reason)
    graph = by_graph(act)
    if graph.count > 1 and _mostly(act, graph):
        return graph
    tried.append(graph.reason if graph.count < 2 else "graph replays hold less than half of the device's time")
    found = by_lag(trace, act)
    if found.count:
        return found
    return whole(act, "; ".join([*tried, found.reason]))


def _mostly(act: Activity, steps: Steps) -> bool:
    return bool(2 * act.exposed[steps.of >= 0].sum() >= act.exposed[_work(act)].sum())


def whole(act: Activity, reason: str) -> Steps:
    """No steps: the trace is one unit and its totals are what a ledger can say."""
    return Steps(factor(act.device)[1].astype(np.int32), 0, "none", reason,
                 warnings=(f"no steps found ({reason}); figures are totals of the whole trace",))


def by_nvtx(act: Activity, launches: Launches, spans: Ranges, pattern: re.Pattern[str] | None) -> Steps:
    """One step per range that matches and holds launches; a range around other matches is a container, not a step."""
    none = np.full(len(act), -1, np.int32)
    if not len(spans):
        return Steps(none, 0, "nvtx", "no NVTX ranges")
    step, never = step_ranges(spans, pattern)
    tid, time = moments(launches)
    hit = ranges.innermost(spans, tid, time, ranges.nearest_where(spans, step))
    shut = ranges.innermost(spans, tid, time, ranges.nearest_where(spans, never))
    of, count = _instances(act, hit)
    if not count:
        return Steps(of, 0, "nvtx", "no NVTX range that looks like a step holds launches")
    empty = int(step.sum()) - len(np.unique(hit[hit >= 0]))
    warnings = (f"{empty} step ranges hold no launches and are left out",) if empty else ()
    example = spans.text[int(hit[hit >= 0][0])]
    return Steps(of, count, "nvtx", f"NVTX ranges like '{example}'", warnings=warnings,
                 excluded=_excluded(act, of, "warm-up and prefill", shut >= 0))


def step_ranges(spans: Ranges, pattern: re.Pattern[str] | None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which ranges are steps, and which are warm-up or prefill or inside one of those."""
    wanted = ranges.matching(spans, pattern or STEP_TEXT)
    never = ranges.matching(spans, NEVER_TEXT)
    if pattern is not None and NEVER_TEXT.search(pattern.pattern):
        never[:] = False  # asked for by name
    never = ranges.nearest_where(spans, never) != ranges.NONE
    step = wanted & ~never
    numbered = step & ranges.matching(spans, _NUMBERED)
    if pattern is None and numbered.any():  # `decode 7` is a step where `decode_attention` is an op
        step = numbered
    outer = spans.parent[np.flatnonzero(step)]
    around = ranges.nearest_where(spans, step)[outer[outer >= 0]]
    step[around[around >= 0]] = False
    return step, never


def _instances(act: Activity, hit: NDArray) -> tuple[NDArray[np.int32], int]:
    """Number the (range, device) pairs that hold launches, in order; -1 elsewhere."""
    _, device = factor(act.device)
    width = int(device.max()) + 1
    code = hit.astype(np.int64) * width + device
    present = np.zeros((int(hit.max()) + 1) * width + 1, np.bool_)
    present[code[(hit >= 0) & _work(act)]] = True
    number = np.where(present, np.cumsum(present) - 1, -1)
    of = np.where(hit >= 0, number[np.maximum(code, 0)], -1).astype(np.int32)
    return of, int(present.sum())


def _work(act: Activity) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = (act.kind == KERNEL) | (act.kind == REPLAY)
    return mask


def _excluded(act: Activity, of: NDArray, name: str, mask: NDArray[np.bool_]) -> dict[str, int]:
    """Launches outside every step, split by a mask; only what there is."""
    out = _work(act) & (of < 0)
    counts = {name: int((out & mask).sum()), "outside steps": int((out & ~mask).sum())}
    return {key: n for key, n in counts.items() if n}


def by_graph(act: Activity) -> Steps:
    """One step per replay of the graph that takes most of the device's time, in node or whole-graph recordings."""
    # All work of a replay has one (process, correlation id) and lies together: look at each run once.
    graph = np.where(act.kind == REPLAY, act.name, np.where(act.node != 0, act.node >> 32, -1))  # -1: in none
    replay = (act.pid << 32) ^ (act.corr & 0xFFFFFFFF)
    heads = run_heads(graph, replay, act.device)
    graph_of, replay_of = graph[heads], replay[heads]
    inside = graph_of >= 0
    if not inside.any():
        return Steps(np.full(len(act), -1, np.int32), 0, "graph", "no graph replays")
    ids, code = factor(graph_of)
    busiest = int(np.bincount(code, np.add.reduceat(act.exposed, heads) * inside, len(ids)).argmax())
    mine = inside & (code == busiest)
    number = np.where(mine, _in_time_order(factor(replay_of)[1], mine), -1)
    of, count = _instances(act, np.repeat(number, np.diff(heads, append=len(act))))
    unit = "whole-graph rows" if (act.kind[heads[mine]] == REPLAY).all() else "kernels with graph nodes"
    return Steps(of, count, "graph", f"replays of graph {int(ids[busiest])} ({unit})",
                 excluded=_excluded(act, of, "other graphs", graph >= 0))


def _in_time_order(code: NDArray, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Renumber codes by their first appearance in the masked rows."""
    first = np.full(int(code.max()) + 1, len(code), np.int64)
    rows = np.flatnonzero(mask)[::-1]
    first[code[rows]] = rows  # written back to front, so the first appearance stays
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return np.asarray(rank[code])


def by_lag(trace: Trace, act: Activity) -> Steps:
    """Steps of the best lag of the launch sequence, device by device."""
    symbols = _symbols(trace, act)
    of, count, periods, doubtful = np.full(len(act), -1, np.int32), 0, [], False
    for device in np.unique(act.device):
        rows = np.flatnonzero(_work(act) & (act.device == device))
        period = lag.find(symbols[rows])
        if period is None:
            continue
        if period.whole < _SURE and not _paced(act.gap[rows], period):
            doubtful = period.whole >= lag.THRESHOLD
            period = period if doubtful else replace(period, match=period.whole, stretches=())
        periods.append((len(rows), period))
        for lo, hi in period.stretches:
            count = _cut(act, rows[lo:hi], period.lag, of, count)
    best = max(periods, key=lambda p: (bool(p[1].stretches), p[0]))[1] if periods else None
    if best is None:
        return Steps(of, 0, "lag", "too few launches to repeat")
    said = f"best match {_floor(best.match)} at a lag of {best.lag:,} launches"
    if not count:
        return Steps(of, 0, "lag", f"no steady step: {said}", best.match, None)
    lags = sorted({p.lag for _, p in periods if p.stretches})
    warnings = [f"devices differ in their step: {', '.join(map(str, lags))} launches"] if len(lags) > 1 else []
    if doubtful:
        warnings.append(f"match {best.whole:.3f}, and no pause recurs with it: what repeats may be a layer, not a step")
    return Steps(of, count, "lag", said, best.match, best.layer, warnings=tuple(warnings),
                 excluded=_excluded(act, of, "warm-up, prefill and partial steps", np.ones(len(act), np.bool_)))


def _paced(gap: NDArray[np.int64], period: lag.Period) -> bool:
    """Whether a pause of the host recurs once per lag.

    Where only stretches of a trace repeat, the lag may be the layer of a single step; but a decode loop waits for
    its token between steps, and nothing waits between layers.
    """
    for lo, hi in period.stretches:
        steps = (hi - lo) // period.lag
        idle = np.median(gap[lo : lo + steps * period.lag].reshape(steps, period.lag), axis=0)
        second, first = np.sort(idle)[-2:]
        if steps < 2 or first < max(_PAUSE, 3 * second):
            return False
    return True


def _floor(match: float) -> str:
    """A match to two decimals, rounded down: 1.00 is said of a perfect one only."""
    return f"{int(match * 100) / 100:.2f}"


def _symbols(trace: Trace, act: Activity) -> NDArray[np.int64]:
    """A number per piece of work that is equal for equal (kind, name, grid, block)."""
    shape = tr.columns(trace, "kernels", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
    mixed = np.zeros(trace.rows.get("kernels", 0), np.uint64)
    for column in shape.values():
        mixed[: len(column)] = mixed[: len(column)] * _MIX + column.view(np.uint64)
    kernel = act.kind == KERNEL
    symbol = act.name.astype(np.uint64) * _MIX + act.kind.astype(np.uint64)
    symbol[kernel] = symbol[kernel] * _MIX + mixed[act.source[kernel]]
    return factor(symbol.view(np.int64))[1]


def _cut(act: Activity, rows: NDArray, size: int, of: NDArray[np.int32], count: int) -> int:
    """Number the whole steps of one stretch, with the copies and sets between their launches; the new count."""
    begin = _phase(act.gap[rows], size)
    whole_steps = (len(rows) - begin) // size
    for i in range(whole_steps):
        first, last = rows[begin + i * size], rows[begin + (i + 1) * size - 1]
        of[first : last + 1] = count + i  # rows of one device lie together
    return count + whole_steps


def _phase(gap: NDArray[np.int64], size: int) -> int:
    """Where in a stretch the first step begins: at the idle time that recurs every step, if one stands out."""
    steps = len(gap) // size
    idle = np.median(gap[: steps * size].reshape(steps, size), axis=0)
    stands_out = idle.max() > max(_PAUSE, 3 * idle[0])
    return int(idle.argmax()) if stands_out and len(gap) % size else 0
