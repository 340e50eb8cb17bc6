"""The distance to a peer or to the floor, in items that add up to it exactly.

    distance = ours - reference;  distance % = distance / ours (the reports' convention)

With a plan every item is the time of its launches less the time that their bytes need at the given bandwidth: what
remains is above the floor. Against a peer, of which only the total is known, one more item takes away what the peer
spends above that floor. Small launches are split into `launch structure` (their number times the launch cost measured
in the trace) and the rest. Only numbers of one window are subtracted; a peer's drift between windows is shown apart.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis import classes, clock, planned, sequence
from analysis.planned import Planned
from analysis.sequence import Launch, Step
from census import timing
from census.errors import CensusError

_MS = 1e-3  # ms per µs
_HEAD = "output"  # the role of the matrix that makes the logits, in plans and ranges of minfer


@dataclass(frozen=True)
class Item:
    name: str
    ms: float


@dataclass(frozen=True)
class Account:
    """ms per step; `items` add up to `distance_ms`."""

    ours_ms: float
    reference_ms: float
    reference: str
    distance_ms: float
    distance_pct: float  # of our step
    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One window of a history: medians of its own two arms, and how far its peer is from the first window's peer."""

    window: str
    date: str | None
    ours_ms: float
    peer_ms: float
    distance_ms: float
    distance_pct: float
    peer_drift_ms: float


def bare(ours_tps: float, reference_ms: float) -> Account:
    """The arithmetic of a report: our tokens per second against a reference step in ms."""
    if not (ours_tps > 0 and reference_ms > 0):
        raise CensusError(f"--ours-tps {ours_tps:g} --reference-ms {reference_ms:g}: both must be above 0")
    ours = 1e3 / ours_tps
    return _account(ours, reference_ms, "given", [Item("not split (no trace)", ours - reference_ms)], ())


def of_step(step: Step, *, true: timing.TrueTime | None = None, plan: Sequence[Planned] | None = None,
            floor_gbs: float | None = None, peer: timing.TrueTime | None = None) -> Account:
    """Account of a recorded step. `true`: its time without tracing, the difference is an item of its own.

    Raises CensusError without a reference, and for a floor without a plan: bytes are not in a trace.
    """
    if peer is None and floor_gbs is None:
        raise CensusError("an account needs a reference: give --peer bench.json or --floor GB/s")
    if floor_gbs is not None and plan is None:
        raise CensusError("--floor needs --plan PLAN.json (`minfer plan MODEL --json`): a trace does not hold bytes")
    rate = floor_gbs * 1e3 if floor_gbs else math.inf  # bytes per µs
    needs = [p.bytes / rate for p in plan] if plan and floor_gbs else [0.0] * len(step.launches)
    items = [*_items(step, plan, needs), Item("gaps inside the step", math.fsum(x.gap_us for x in step.launches) * _MS)]
    ours = (true.step_us if true else step.step_us) * _MS
    items.append(Item("residual: untraced step less traced step" if true else "residual",
                      ours - math.fsum(i.ms for i in items) - math.fsum(needs) * _MS))
    floor = math.fsum(needs) * _MS
    if peer is None:
        return _account(ours, floor, f"floor at {floor_gbs:g} GB/s", items, step.warnings)
    theirs = peer.step_us * _MS
    items.append(Item("what the peer spends above the floor" if floor else "the peer's step", floor - theirs))
    return _account(ours, theirs, f"{peer.what} {peer.source}", items, (*step.warnings, *peer.warnings))


def _account(ours: float, reference: float, name: str, items: Iterable[Item], notes: tuple[str, ...]) -> Account:
    distance = ours - reference
    return Account(ours, reference, name, distance, 100 * distance / ours, tuple(items), notes)


def _items(step: Step, plan: Sequence[Planned] | None, needs: Sequence[float]) -> list[Item]:
    """Time above the floor per matmul role, of attention, and of small launches in two parts. Largest first."""
    cost = sequence.launch_cost(step)
    sums: dict[str, list[float]] = {}
    for i, x in enumerate(step.launches):
        if x.kind == classes.MATMUL:
            sums.setdefault(_role(x, plan[i] if plan else None), []).append(x.exposed_us - needs[i])
        elif x.kind == classes.ATTENTION:
            sums.setdefault("attention", []).append(x.exposed_us - needs[i])
        else:
            structure = min(cost, x.exposed_us)
            sums.setdefault("launch structure of small kernels", []).append(structure)
            sums.setdefault("small kernels", []).append(x.exposed_us - structure - needs[i])
    items = [Item(name, math.fsum(values) * _MS) for name, values in sums.items()]
    return sorted(items, key=lambda i: (-i.ms, i.name))


def _role(launch: Launch, plan: Planned | None) -> str:
    """`matmul ffn_down`, `head`; by kernel where neither plan nor range says what it computes."""
    name = plan.name if plan else (launch.op or launch.kernel.split("<")[0]).removeprefix("matmul ")
    return "head" if name == _HEAD else f"matmul {name}"


def of_files(trace: str, how: str, *, peer: str | None, floor_gbs: float | None, plan: Path | None,
             time_from: str | None) -> Account:
    """The account of a trace from files; see of_step."""
    if floor_gbs is not None and floor_gbs <= 0:
        raise CensusError(f"--floor {floor_gbs:g} is not allowed: give a bandwidth above 0, in GB/s")
    step = sequence.read(trace, how)
    rows = planned.load(plan) if plan else None
    if rows:
        planned.check(step, rows, str(plan))
    return of_step(step, true=timing.read(time_from) if time_from else None, plan=rows, floor_gbs=floor_gbs,
                   peer=timing.read(peer) if peer else None)


def history(paths: Sequence[Path], ours: str = "A") -> tuple[Entry, ...]:
    """One entry per window, in the order given: only the two arms of one window are subtracted."""
    if ours not in ("A", "B"):
        raise CensusError(f"--ours {ours}: unknown arm; allowed are A and B")
    entries: list[Entry] = []
    for path in paths:
        read = clock.read(path)
        mine, theirs = (read.a_us * _MS, read.b_us * _MS)[:: 1 if ours == "A" else -1]
        first = entries[0].peer_ms if entries else theirs
        entries.append(Entry(read.window, read.date, mine, theirs, mine - theirs, 100 * (mine - theirs) / mine,
                             theirs - first))
    return tuple(entries)
