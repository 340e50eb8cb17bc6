"""The change of a step between two recorded structures, as an interval: what the clock should say, before it is asked.

Both traces are node-mode recordings: they know the structure, and time it with the tracer on. The interval is an
envelope of bounds, no confidence is claimed:

- each arm lies between the fastest and the slowest of its recorded steps;
- `time_from`, a whole-graph recording or a benchmark of one arm, widens that arm to its steps too, and says how much
  node tracing slows a step down. The other arm is slowed by something between nothing and that ratio;
- without it, tracing costs each launch the same in both arms, something between nothing and TRACING_US;
- fewer launches are cheaper for the host too: by at most what the API calls of a step cost per launch, as recorded in
  the whole-graph trace. Without one it is left out, and said so.
"""

from dataclasses import dataclass
from pathlib import Path

from analysis import sequence
from analysis.prediction import Interval
from analysis.sequence import Step
from census import timing
from census.activity import family_name
from census.timing import TrueTime

# µs per launch that node tracing adds to a step, at most: (node - whole graph) / launches over the pairs of recordings
# of one command in traces/ and tests/data, 2026-11-29, H200, nsys 2025.3; tests/cpu/test_predict.py measures it again.
TRACING_US = 0.39


@dataclass(frozen=True)
class Row:
    """A kernel family in both steps; times are exposed µs per step, B - A."""

    kernel: str
    launches_pre: int
    launches_post: int
    pre_us: float
    post_us: float
    change_us: float
    duration_change_us: float
    came: tuple[str, ...]  # kernels of this family that only the post step launches
    went: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """post - pre per step in µs: the expected change on the clock, and the rows that make it."""

    pre: Step
    post: Step
    change_us: Interval
    duration_change_us: float  # of the summed durations: not time
    rows: tuple[Row, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Arm:
    low: float
    point: float
    high: float


def of_files(pre: str, post: str, time_from: str | None = None, how: str = "auto") -> Change:
    """Predict from export files. Raises CensusError for traces without steps or visible kernels."""
    a, b = sequence.read(pre, how), sequence.read(post, how)
    if time_from is None:
        return of_steps(a, b)
    return of_steps(a, b, timing.read(time_from), sequence.launch_calls(time_from))


def of_steps(pre: Step, post: Step, true: TrueTime | None = None, host_us: float | None = None) -> Change:
    """`true`: one arm's step without node tracing; `host_us`: the API calls that launch one step of that recording."""
    made = rows(pre, post)
    arms, tracing = _traced(pre, post) if true is None else _timed(pre, post, true)
    a, b = arms
    host, said = _host(pre, post, true, host_us)
    low, high = b.low - a.high + min(0.0, host), b.high - a.low + max(0.0, host)
    more = len(post.launches) - len(pre.launches)
    if true is None:
        low, high = low - max(0.0, more * TRACING_US), high - min(0.0, more * TRACING_US)
    durations = sum(r.duration_change_us for r in made)
    why = (*_because(made), *tracing, said, *_sign(durations, b.point - a.point))
    return Change(pre, post, Interval(low, b.point - a.point, high), durations, made, why)


def rows(pre: Step, post: Step) -> tuple[Row, ...]:
    """Kernel families of both steps, largest change first; their changes and that of the gaps add up to the steps'."""
    names = dict.fromkeys(family_name(x.kernel) for x in (*pre.launches, *post.launches))
    made = [_row(name, pre, post) for name in names]
    return tuple(sorted(made, key=lambda r: (-abs(r.change_us), r.kernel)))


def _row(name: str, pre: Step, post: Step) -> Row:
    a, b = ([x for x in step.launches if family_name(x.kernel) == name] for step in (pre, post))
    had, has = {x.kernel for x in a}, {x.kernel for x in b}
    exposed = [sum(x.exposed_us for x in side) for side in (a, b)]
    duration = sum(x.duration_us for x in b) - sum(x.duration_us for x in a)
    return Row(name, len(a), len(b), exposed[0], exposed[1], exposed[1] - exposed[0], duration,
               tuple(sorted(has - had)), tuple(sorted(had - has)))


def _traced(pre: Step, post: Step) -> tuple[tuple[_Arm, _Arm], tuple[str, ...]]:
    arms = _Arm(pre.min_us, pre.step_us, pre.max_us), _Arm(post.min_us, post.step_us, post.max_us)
    return arms, (f"both steps are timed with node tracing on, which costs up to {TRACING_US} µs per launch "
                  "(recordings in traces/): give --time-from, a whole-graph recording of either arm",)


def _timed(pre: Step, post: Step, true: TrueTime) -> tuple[tuple[_Arm, _Arm], tuple[str, ...]]:
    """The arm whose traced step is nearer to the true time is the one that it times."""
    mine = min((pre, post), key=lambda s: abs(s.step_us - true.step_us))
    ratio = true.step_us / mine.step_us
    arms = []
    for step in (pre, post):
        if step is mine:
            arms.append(_Arm(min(step.min_us, true.min_us), true.step_us, max(step.max_us, true.max_us)))
        else:
            least, most = min(1.0, true.min_us / mine.step_us), max(1.0, true.max_us / mine.step_us)
            arms.append(_Arm(step.min_us * least, step.step_us * ratio, step.max_us * most))
    what = "pre" if mine is pre else "post"
    said = (f"{true.what} in {true.source} time the {what} step at {true.step_us:,.1f} µs where node tracing says "
            f"{mine.step_us:,.1f}; the other arm is taken to be slowed by at most as much")
    return (arms[0], arms[1]), (said,)


def _host(pre: Step, post: Step, true: TrueTime | None, host_us: float | None) -> tuple[float, str]:
    """(the most that launching costs the host more, µs; what is said about it)."""
    if true is None or host_us is None:
        return 0.0, "the host's part of a step is not in exposed time; how it changes is not known from these traces"
    mine = min((pre, post), key=lambda s: abs(s.step_us - true.step_us))
    most = host_us / len(mine.launches) * (len(post.launches) - len(pre.launches))
    return most, (f"the API calls of a step take {host_us:,.0f} µs for {len(mine.launches):,} launches there: "
                  f"launching may change by {most:+,.0f} µs at most")


def _because(made: tuple[Row, ...], shown: int = 3) -> list[str]:
    """The rows that grow and shrink most, with the kernels that came and went."""
    out = []
    for title, sign in (("slower", 1), ("faster", -1)):
        for row in [r for r in made if r.change_us * sign > 0][:shown]:
            names = f"; came: {', '.join(row.came)}" if row.came else ""
            gone = f"; went: {', '.join(row.went)}" if row.went and not row.came else ""
            out.append(f"{title}: {row.kernel} {row.change_us:+,.1f} µs ({row.pre_us:,.1f} to {row.post_us:,.1f}, "
                       f"{row.launches_pre:,} to {row.launches_post:,} launches){names}{gone}")
    return out


def _sign(durations: float, exposed: float) -> list[str]:
    if durations * exposed >= 0:
        return []
    return [f"summed durations change by {durations:+,.1f} µs, the other way: they contain waiting and are not time"]


def digests(change: Change, time_from: str | None) -> dict[str, str]:
    """File name -> hash of what the prediction was made from."""
    more = {Path(time_from).name: sequence.digest(time_from)} if time_from else {}
    return {Path(s.trace).name: s.sha256 for s in (change.pre, change.post)} | more
