"""What a planned change will save, from a recording of the step before it and the two plans: nothing is measured.

A launch of the new plan that the recorded step has too keeps its recorded time. The others are estimated, each as an
interval whose ends are stated cases, in this order:

    same kernel and size elsewhere in the step      its mean there
    same kernel, other block                        all of it scales with the threads | none of it does
    same matmul kernel, other size                  at the rate of the next smaller | of the next larger one recorded
    same matmul family, other weight type           equal time per element (issue bound) | per byte (bandwidth bound)
    another matmul family                           bytes / bandwidth | the time of the route it replaces
    a kernel that takes another's work along        its own time | plus that of the work it takes along
    the same work by a kernel that moves less       less by the bytes | its own time
    a kernel in place of several                    launch + the longest of their work | launch + all their work
    work that is new                                a launch | the average small kernel of the step

The launch cost is the trace's own (sequence.launch_cost). The point is the middle of the two cases; of a matmul it is
interpolated between sizes first. The interval of a step is the sum of the ends: bounds, not a confidence.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis import classes, planned, sequence
from analysis.planned import Planned
from analysis.prediction import Interval
from analysis.sequence import Step
from census import timing

_TYPE = re.compile(r"_(q\d_[k\d]|f32|f16|bf16)(?=_|$)")


@dataclass(frozen=True)
class Estimate:
    """The time of one launch, µs."""

    low: float
    point: float
    high: float
    how: str


@dataclass(frozen=True)
class Line:
    """What happens to a kernel: its launches and µs per step, before and (predicted) after."""

    kernel: str
    before: int
    after: int
    before_us: float
    after_us: Interval
    how: tuple[str, ...]


@dataclass(frozen=True)
class Landing:
    saving_us: Interval
    launches_removed: int
    chain_us: float  # recorded cost of the launches that go and of those right behind them: no saving is larger
    lines: tuple[Line, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Case:
    """What an estimate may look at."""

    step: Step
    now: Sequence[Planned]
    gone: frozenset[int]  # positions of the recorded step that the new plan does not have
    partner: dict[tuple[str, str, int | None], int]  # what is computed -> its gone position
    again: frozenset[tuple[str, str, int | None]]  # what the new launches compute
    launch_us: float
    bandwidth: float  # bytes per µs


@dataclass(frozen=True)
class Recorded:
    """What is known of the recorded step without node tracing: its time, and the API calls that launch it, in µs."""

    step_us: float
    host_us: float | None = None


def predict(step: Step, now: Sequence[Planned], then: Sequence[Planned], *, bandwidth_gbs: float | None = None,
            true: Recorded | None = None) -> Landing:
    """Saving of going from the plan `now`, which `step` is a recording of, to the plan `then`."""
    gone, new = _difference(now, then)
    case = _Case(step, now, frozenset(gone), {now[i].key: i for i in gone}, frozenset(then[j].key for j in new),
                 sequence.launch_cost(step), 1e3 * (bandwidth_gbs or step.bandwidth_gbs or _best_rate(step, now)))
    before = sum(step.launches[i].cost_us for i in gone)
    gap = sum(x.gap_us for x in step.launches) / len(step.launches)
    made = [(then[j], _plus(estimate(case, then[j]), gap)) for j in new]
    low, point, high = (before - sum(getattr(e, end) for _, e in made) for end in ("high", "point", "low"))
    fewer = len(gone) - len(new)
    saving, why = as_clocked(Interval(low, point, high), step, fewer, true)
    chain = before + sum(step.launches[i + 1].cost_us for i in gone if i + 1 < len(now) and i + 1 not in case.gone)
    capped = Interval(*(min(end, chain) for end in (saving.low, saving.point, saving.high)))
    first = (f"launch and ramp cost at most {case.launch_us:.2f} µs in this trace (its cheapest recurring launch), "
             f"idle time before a launch {gap:.2f} µs")
    return Landing(capped, fewer, chain, _lines(case, made), (first, *why))


def as_clocked(saving: Interval, step: Step, fewer: int, true: Recorded | None) -> tuple[Interval, tuple[str, ...]]:
    """A saving in traced time as a clock without a tracer may show it, and why the ends move.

    The steps of a recording differ, and so will those of another: by the whole range on both sides. With `true`: the
    tracer's part of a launch that goes is not saved, and the host is spared its part of launching it.
    """
    spread = step.max_us - step.min_us
    low, point, high = saving.low - spread, saving.point, saving.high + spread
    why = [f"recorded steps differ by up to {spread:,.1f} µs"]
    if true is None:
        why.append("what node tracing adds is not known: give --time-from, a whole-graph recording of the same command")
        return Interval(low, point, high), tuple(why)
    traced = (step.step_us - true.step_us) / len(step.launches)
    host = (true.host_us or 0.0) / len(step.launches)
    low, high = low + min(0.0, -traced * fewer, host * fewer), high + max(0.0, -traced * fewer, host * fewer)
    why.append(f"node tracing adds {traced:.2f} µs per launch ({step.step_us:,.1f} against {true.step_us:,.1f} µs a "
               f"step); the API calls of a step take {host:.2f} µs per launch")
    return Interval(low, point * true.step_us / step.step_us, high), tuple(why)


def _best_rate(step: Step, now: Sequence[Planned]) -> float:
    """GB/s of the launch that moves its bytes fastest: where the device's bandwidth is not known."""
    return max(p.bytes / x.exposed_us / 1e3 for p, x in zip(now, step.launches, strict=True) if x.exposed_us)


def _difference(now: Sequence[Planned], then: Sequence[Planned]) -> tuple[list[int], list[int]]:
    """Positions of `now` that go and of `then` that come, by the longest common sequences of launches."""
    a, b = ([(p.kernel, p.key, p.grid, p.block) for p in plan] for plan in (now, then))
    gone: list[int] = []
    new: list[int] = []
    for tag, a0, a1, b0, b1 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag != "equal":
            gone += range(a0, a1)
            new += range(b0, b1)
    return gone, new


def estimate(case: _Case, new: Planned) -> Estimate:
    """The time of a launch that is not in the recorded step; see the module's table."""
    partner = case.partner.get(new.key)
    rules = (_same, _other_block, _other_size, _other_type, _other_family, _takes_along, _in_place_of, _new_work)
    return next(e for e in (rule(case, new, partner) for rule in rules) if e is not None)


def _us(case: _Case, i: int) -> float:
    return case.step.launches[i].exposed_us


def _middle(low: float, high: float, how: str) -> Estimate:
    return Estimate(low, (low + high) / 2, high, how)


def _same(case: _Case, new: Planned, partner: int | None) -> Estimate | None:
    like = [_us(case, i) for i, p in enumerate(case.now)
            if (p.kernel, p.grid, p.block, p.elements) == (new.kernel, new.grid, new.block, new.elements)]
    return _middle(sum(like) / len(like), sum(like) / len(like), "as recorded elsewhere in the step") if like else None


def _other_block(case: _Case, new: Planned, partner: int | None) -> Estimate | None:
    if partner is None or case.now[partner].kernel != new.kernel or case.now[partner].grid != new.grid:
        return None
    before, threads = _us(case, partner), case.now[partner].threads
    work = max(0.0, before - case.launch_us)
    scaled = case.launch_us + work * threads / new.threads
    return _middle(min(scaled, before), max(scaled, before), f"{threads} to {new.threads} threads a block: its work "
                   "beyond the launch scales with them, or does not")


def _sizes(case: _Case, family: str, row: float, exact: str | None) -> list[tuple[int, float]]:
    """(elements, mean µs) of a family's recorded matmuls with rows of `row` elements, by size."""
    sizes: dict[int, list[float]] = {}
    for i, p in enumerate(case.now):
        mine = p.kernel == exact if exact else _family(p.kernel) == family
        if mine and p.elements and p.elements / p.blocks == row:
            sizes.setdefault(p.elements, []).append(_us(case, i))
    return sorted((n, sum(v) / len(v)) for n, v in sizes.items())


def _family(kernel: str) -> str:
    return _TYPE.sub("", kernel)


def _by_size(points: list[tuple[int, float]], n: int) -> tuple[float, float, float] | None:
    """(low, point, high) µs at n elements. The rate rises with size: slower than the next larger's, faster than the
    next smaller's; beyond the largest, along the line through the last two."""
    below, above = [p for p in points if p[0] <= n], [p for p in points if p[0] >= n]
    if not below:
        return None
    most = below[-1][1] * n / below[-1][0]
    if above:
        least = above[0][1] * n / above[0][0]
        span = above[0][0] - below[-1][0]
        point = below[-1][1] + (above[0][1] - below[-1][1]) * ((n - below[-1][0]) / span if span else 0.0)
    elif len(below) > 1:
        slope = (below[-1][1] - below[-2][1]) / (below[-1][0] - below[-2][0])
        least = point = below[-1][1] + slope * (n - below[-1][0])
    else:
        return None
    return min(least, point, most), point, max(least, point, most)


def _other_size(case: _Case, new: Planned, partner: int | None) -> Estimate | None:
    if not new.elements:
        return None
    found = _by_size(_sizes(case, "", new.elements / new.blocks, new.kernel), new.elements)
    return Estimate(*found, "between the rates of its neighbours in size") if found else None


def _other_type(case: _Case, new: Planned, partner: int | None) -> Estimate | None:
    """By the family's kernel for another weight type on the same matrix: per element, or per byte."""
    if not new.elements:
        return None
    family = _family(new.kernel)
    found = _by_size(_sizes(case, family, new.elements / new.blocks, None), new.elements)
    like = next((p for p in case.now if p.elements and _family(p.kernel) == family), None)
    if found is None or like is None:
        return None
    ratio = (new.bytes / new.elements) / (like.bytes / like.elements)
    low, point, high = found
    return Estimate(low * min(1.0, ratio), point * (1 + ratio) / 2, high * max(1.0, ratio),
                    f"as {like.kernel} per element, or per byte")


def _other_family(case: _Case, new: Planned, partner: int | None) -> Estimate | None:
    if not new.elements or partner is None:
        return None
    floor = new.bytes / case.bandwidth
    return _middle(min(floor, _us(case, partner)), _us(case, partner), "no kernel like it in the trace: its bytes at "
                   "the device's bandwidth, or as slow as the route it replaces")


def _takes_along(case: _Case, new: Planned, partner: int | None) -> Estimate | None:
    """The same work by another kernel, which may do more (what goes and reads its output, or work that is new)."""
    if partner is None:
        return None
    own, ratio = _us(case, partner), new.bytes / max(1, case.now[partner].bytes)
    if ratio < 1:
        least = case.launch_us + max(0.0, own - case.launch_us) * ratio
        return _middle(min(own, least), own, "its own time, or less by the bytes that it no longer moves")
    guests = [_us(case, i) for i in _readers(case, partner)]
    more = max(guests) if guests else _small(case)
    return _middle(own, own + more, "its own time, or that and the work it takes along")


def _alone(case: _Case, i: int) -> bool:
    """Whether a gone launch is no matmul, and no new launch computes the same."""
    return not case.now[i].elements and case.now[i].key not in case.again


def _readers(case: _Case, i: int) -> list[int]:
    """Gone launches without a successor that read the output of launch i, until somebody else writes there."""
    out, found = case.now[i].out, []
    for j in range(i + 1, len(case.now)):
        if out in case.now[j].inputs and j in case.gone and _alone(case, j):
            found.append(j)
        if case.now[j].out == out:
            break
    return found


def _in_place_of(case: _Case, new: Planned, partner: int | None) -> Estimate | None:
    """Launches of its layer that go without a successor of their own; what they convert or quantize is shared work."""
    gone = [i for i in sorted(case.gone) if case.now[i].layer == new.layer and _alone(case, i)
            and classes.of(case.now[i].kernel) not in (classes.CONVERT, classes.QUANTIZE)]
    work = [max(0.0, _us(case, i) - case.launch_us) for i in gone]
    if len(work) < 2 or classes.of(new.kernel) == classes.QUANTIZE:
        return None
    return _middle(case.launch_us + max(work), case.launch_us + sum(work),
                   f"in place of {len(gone)} launches: the longest of their work, or all of it, behind one launch")


def _new_work(case: _Case, new: Planned, partner: int | None) -> Estimate | None:
    return _middle(case.launch_us, max(case.launch_us, _small(case)), "nothing like it in the trace: a launch, or as "
                   "long as the average small kernel here")


def _small(case: _Case) -> float:
    """Mean µs of the step's elementwise launches (of all but matmuls and attention, where it has none)."""
    for kinds in ((classes.ELEMENTWISE,), tuple(set(classes.CLASSES) - {classes.MATMUL, classes.ATTENTION})):
        found = [x.exposed_us for x in case.step.launches if x.kind in kinds]
        if found:
            return sum(found) / len(found)
    return case.launch_us


def of_files(trace: str, plan: Path, to: Path, *, time_from: str | None = None, how: str = "auto",
             bandwidth_gbs: float | None = None) -> tuple[Step, Landing]:
    """The saving of going from one plan file to another. Raises CensusError unless the trace is the first plan's."""
    step, now = sequence.read(trace, how), planned.load(plan)
    planned.check(step, now, str(plan))
    return step, predict(step, now, planned.load(to), bandwidth_gbs=bandwidth_gbs, true=recorded(time_from))


def recorded(time_from: str | None) -> Recorded | None:
    """A step's time without node tracing, from a whole-graph recording or a benchmark; None without a file."""
    if time_from is None:
        return None
    return Recorded(timing.read(time_from).step_us, sequence.launch_calls(time_from))


def _plus(estimate: Estimate, gap: float) -> Estimate:
    return Estimate(estimate.low + gap, estimate.point + gap, estimate.high + gap, estimate.how)


def _lines(case: _Case, made: list[tuple[Planned, Estimate]]) -> tuple[Line, ...]:
    lines = []
    for kernel in dict.fromkeys([*(case.now[i].kernel for i in sorted(case.gone)), *(p.kernel for p, _ in made)]):
        gone = [case.step.launches[i].cost_us for i in case.gone if case.now[i].kernel == kernel]
        new = [e for p, e in made if p.kernel == kernel]
        after = Interval(*(sum(getattr(e, end) for e in new) for end in ("low", "point", "high")))
        lines.append(Line(kernel, len(gone), len(new), sum(gone), after, tuple(dict.fromkeys(e.how for e in new))))
    return tuple(sorted(lines, key=lambda x: (-abs(x.before_us - x.after_us.point), x.kernel)))
