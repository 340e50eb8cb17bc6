"""Which launches could be one, and what that may save: candidates from one recorded step, with honest lower ends.

A rule says which class of kernel may take in which neighbour. With a plan, neighbours must also be connected: the guest
reads what its host writes, and nobody else does. Without one, adjacency and kernel class decide, which is weaker and
said so. For an instance of (host, guests), with costs as recorded:

    high    the guests' exposed time and the idle time before them: all that can go away
    low     high, less three things that may come back:
            - the guests' work, which stays: their exposed time beyond the launch cost measured in this trace, longer
              by the ratio of threads where the host has fewer than the guest (a chain chooses its own)
            - a host that fills the device loses one resident block per multiprocessor to the registers of its new
              epilogue: k resident blocks become k - 1, so the host takes k / (k - 1) as long
            - overlap that is lost: the part of the next launch's duration that ran beside the guests
            (matmuls side by side: high is what the smaller ones lose against the best rate per block, and low is 0)
    point   the middle

Nothing in one trace says where between the ends the truth lies. low is often below zero: launch counts mislead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor

import numpy as np

from analysis import sequence
from analysis.classes import ATTENTION, ELEMENTWISE, MATMUL, NORM, QUANTIZE, ROPE, STORE
from analysis.clock import Clock
from analysis.landing import Recorded
from analysis.planned import Planned
from analysis.prediction import Interval
from analysis.sequence import Launch, Step
from census.activity import family_name

# Of a multiprocessor, compute capability 8.0 and 9.0 (CUDA programming guide, table of technical specifications).
THREADS_PER_SM, REGISTERS_PER_SM, BLOCKS_PER_SM = 2048, 65536, 32
_LEAST = 4  # instances per step; fewer are no chain that repeats per layer
_SMALL = (ELEMENTWISE, ROPE, STORE)
BESIDE, AGAIN, CHAIN = "matmuls side by side", "the same again", "chain of small kernels"


@dataclass(frozen=True)
class Rule:
    """`host` may take in a neighbour of class `guest`, which comes right after it (or before)."""

    what: str
    host: tuple[str, ...]
    guest: tuple[str, ...]
    after: bool = True  # the guest follows its host


RULES: tuple[Rule, ...] = (
    Rule("epilogue of a matmul", (MATMUL,), (ELEMENTWISE,)),
    Rule("scale in the norm", (NORM,), (ELEMENTWISE,)),
    Rule("sum before the norm", (NORM,), (ELEMENTWISE,), after=False),
    Rule("producer writes the quantized row", (NORM, ELEMENTWISE, ATTENTION), (QUANTIZE,)),
    Rule(CHAIN, _SMALL, _SMALL),
    Rule(BESIDE, (MATMUL,), (MATMUL,)),
)


@dataclass(frozen=True)
class Instance:
    host: int  # position in the step
    guests: tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """A fusion that repeats through the step; µs per step. `basis` says what connects its launches."""

    name: str
    what: str
    basis: str  # "data flow" or "adjacency"
    layers: int
    launches_removed: int
    saving_us: Interval
    chain_us: float  # recorded cost of hosts and guests together
    reasons: tuple[str, ...]


def find(step: Step, plan: Sequence[Planned] | None = None, true: Recorded | None = None) -> tuple[Candidate, ...]:
    """Candidates of a step, best lower end first. They overlap: their savings do not add up.

    `true`: the step without node tracing, whose part of a launch is then taken off the lower end and the point.
    """
    groups: dict[tuple[str, str], list[Instance]] = {}
    for what, instance in _instances(step, plan):
        groups.setdefault((what, _name(step, instance)), []).append(instance)
    made = [_candidate(step, plan, what, name, found, true) for (what, name), found in groups.items()
            if sum(len(i.guests) for i in found) >= _LEAST]
    return tuple(sorted(made, key=lambda c: (-c.saving_us.low, -c.saving_us.point, c.name)))


def visible(found: Sequence[Candidate], seen: Clock) -> tuple[str, ...]:
    """Which candidates a window like this one could not show: their saving is below half its interval."""
    if seen.low_us is None or seen.high_us is None:
        return (f"{seen.window}: {seen.pairs} pairs give no interval, so what it could show is not known",)
    half = (seen.high_us - seen.low_us) / 2
    small = [c.name for c in found if c.saving_us.high < half]
    return (f"a window like {seen.window} ({seen.pairs} pairs) is sure to ±{half:,.1f} µs; too small for it: "
            f"{', '.join(small) or 'none of them'}",)


def _instances(step: Step, plan: Sequence[Planned] | None) -> Iterator[tuple[str, Instance]]:
    for rule in RULES:
        if rule.host == rule.guest:
            yield from ((rule.what, run) for run in _runs(step, rule, plan))
        else:
            yield from ((rule.what, pair) for pair in _pairs(step, rule, plan))
    if plan:
        yield from ((AGAIN, again) for again in _repeated(plan))


def _pairs(step: Step, rule: Rule, plan: Sequence[Planned] | None) -> Iterator[Instance]:
    for i, launch in enumerate(step.launches):
        j = i + 1 if rule.after else i - 1
        if launch.kind in rule.host and 0 <= j < len(step.launches) and step.launches[j].kind in rule.guest \
                and (plan is None or _flows(plan, min(i, j), max(i, j))):
            yield Instance(i, (j,))


def _runs(step: Step, rule: Rule, plan: Sequence[Planned] | None) -> Iterator[Instance]:
    """Maximal runs of two or more. Matmuls run side by side when one kernel does them (on one input, with a plan)."""
    run: list[int] = []
    for i, launch in enumerate((*step.launches, None)):
        fits = launch is not None and launch.kind in rule.host
        if fits and (not run or rule.host != (MATMUL,) or _beside(step, plan, run[-1], i)):
            run.append(i)
            continue
        if len(run) > 1:
            yield Instance(run[0], tuple(run[1:]))
        run = [i] if fits else []


def _beside(step: Step, plan: Sequence[Planned] | None, i: int, j: int) -> bool:
    if plan is not None:
        return plan[i].kernel == plan[j].kernel and plan[i].inputs == plan[j].inputs
    return step.launches[i].kernel == step.launches[j].kernel


def _repeated(plan: Sequence[Planned]) -> Iterator[Instance]:
    """Launches that compute what an earlier one of the step did: same kernel, weights and inputs, not overwritten."""
    made: dict[tuple[object, ...], int] = {}
    again: dict[int, list[int]] = {}
    for i, p in enumerate(plan):
        key = (p.kernel, p.inputs, p.weights, p.grid)
        if key in made:
            again.setdefault(made[key], []).append(i)
        made = {k: v for k, v in made.items() if p.out not in plan[v].inputs and (p.out != plan[v].out or k == key)}
        made.setdefault(key, i)
    yield from (Instance(first, tuple(rest)) for first, rest in again.items())


def _flows(plan: Sequence[Planned], i: int, j: int) -> bool:
    """Whether launch j reads what i writes, and nobody but j reads it (a quantized row is a second output)."""
    if plan[i].out not in plan[j].inputs:
        return False
    if plan[j].op == "quantize":
        return True
    for p in plan[j + 1 :]:
        if plan[j].out == plan[i].out or (p.out == plan[i].out and plan[i].out not in p.inputs):
            return True
        if plan[i].out in p.inputs:
            return False
    return True


def _name(step: Step, instance: Instance) -> str:
    host, guests = step.launches[instance.host], [step.launches[g] for g in instance.guests]
    if host.kind == guests[0].kind or (host.kind in _SMALL and guests[0].kind in _SMALL):
        return " + ".join(dict.fromkeys(family_name(x.kernel) for x in (host, *guests)))
    return f"{_short(guests[0])} into {family_name(host.kernel)}"


def _short(launch: Launch) -> str:
    """A family, with the first template argument where it says which operation it is (`k_bin_bcast<&op_add>`)."""
    family, _, rest = launch.kernel.partition("<")
    return f"{family}<{rest.split(',')[0]}>" if rest.startswith("&") else family_name(launch.kernel)


@dataclass(frozen=True)
class _Parts:
    """What goes and what of it may come back, µs per step; see the module's text."""

    launch: float
    high: float
    stays: float
    squeezed: float
    lost: float

    @property
    def low(self) -> float:
        return self.high - self.stays - self.squeezed - self.lost


def _candidate(step: Step, plan: Sequence[Planned] | None, what: str, name: str, found: list[Instance],
               true: Recorded | None) -> Candidate:
    parts = _parts(step, what, found)
    guests = [g for i in found for g in i.guests]
    low, high = parts.low, parts.high
    point = (low + high) / 2
    if true is not None:
        low -= max(0.0, step.step_us - true.step_us) / len(step.launches) * len(guests)
        point *= true.step_us / step.step_us
    chain = sum(step.launches[i].cost_us for i in {*guests, *(i.host for i in found)})
    return Candidate(name, what, "data flow" if plan else "adjacency", _layers(step, found), len(guests),
                     Interval(low, max(low, point), high), chain, tuple(_reasons(step, plan, found, parts)))


def _parts(step: Step, what: str, found: list[Instance]) -> _Parts:
    cost = sequence.launch_cost(step)
    guests = [step.launches[g] for i in found for g in i.guests]
    lost = sum(_overlap(step, i) for i in found)
    if what == AGAIN:
        return _Parts(cost, sum(g.cost_us for g in guests), 0.0, 0.0, lost)
    if what == BESIDE:  # the bytes are still read: what goes is what the smaller ones lose against the best rate
        return _Parts(cost, *_beside_parts(step, found), 0.0, lost)
    own = what == CHAIN
    stays = sum(_work(step.launches[g], cost) * (1.0 if own else _rounds(step.launches[i.host], step.launches[g]))
                for i in found for g in i.guests)
    squeezed = sum(_squeezed(step, step.launches[i.host]) for i in found)
    return _Parts(cost, sum(g.cost_us for g in guests), stays, squeezed, lost)


def _work(guest: Launch, cost: float) -> float:
    return max(0.0, guest.exposed_us - cost)


def _rounds(host: Launch, guest: Launch) -> float:
    """How much longer a guest's work takes on its host's threads, if it is bound by them; never less."""
    return max(1.0, guest.blocks * guest.threads / max(1, host.blocks * host.threads))


def _beside_parts(step: Step, found: list[Instance]) -> tuple[float, float]:
    """(saving if all blocks ran at the best rate of their run, of which all may stay)."""
    most = 0.0
    for instance in found:
        run = [step.launches[i] for i in (instance.host, *instance.guests)]
        rate = min(x.exposed_us / max(1, x.blocks) for x in run)
        most += sum(x.exposed_us - rate * x.blocks for x in run) + sum(x.gap_us for x in run[1:])
    return most, most


def resident(launch: Launch) -> int:
    """Blocks of it that a multiprocessor holds, from its threads and registers (shared memory is not looked at)."""
    threads = max(1, launch.threads)
    by_registers = floor(REGISTERS_PER_SM / (-(-launch.registers // 8) * 8 * threads)) if launch.registers else 1 << 30
    return max(1, min(BLOCKS_PER_SM, THREADS_PER_SM // threads, by_registers))


def _squeezed(step: Step, host: Launch) -> float:
    """µs that a host adds when it loses one resident block per multiprocessor; 0 where it does not fill them."""
    held = resident(host)
    if step.sms is None or host.blocks <= step.sms * (held - 1) or held < 2:
        return 0.0
    return host.exposed_us / (held - 1)


def _overlap(step: Step, instance: Instance) -> float:
    """The part of the launch behind the last guest that ran beside it, at most as long as the guest."""
    last = max(instance.guests)
    if last + 1 >= len(step.launches):
        return 0.0
    return min(step.launches[last + 1].hidden_us, step.launches[last].duration_us)


def _layers(step: Step, found: list[Instance]) -> int:
    """Layers it occurs in: by NVTX, else by the period at which the step's launches repeat."""
    named = {step.launches[i.host].layer for i in found} - {None}
    if named:
        return len(named)
    period = layer_period(step)
    return len({i.host // period for i in found}) if period else len(found)


def layer_period(step: Step) -> int | None:
    """Launches per layer: the smallest lag at which 90% of the best share of launches repeat; None without one."""
    symbols: dict[object, int] = {}
    code = np.array([symbols.setdefault((x.kernel, x.grid, x.block), len(symbols)) for x in step.launches])
    share = {lag: float((code[lag:] == code[:-lag]).mean()) for lag in range(2, len(code) // 2)}
    best = max(share.values(), default=0.0)
    return next((lag for lag, s in share.items() if s >= 0.9 * best), None) if best > 0.5 else None


def _reasons(step: Step, plan: Sequence[Planned] | None, found: list[Instance], parts: _Parts) -> Iterator[str]:
    guests = [g for i in found for g in i.guests]
    yield (f"{len(guests)} launches go, with at most {parts.high:,.1f} µs; in this trace a launch costs at most "
           f"{parts.launch:.2f} µs")
    if parts.stays:
        yield f"{parts.stays:,.1f} µs of that is their work, which the host may have to do as well"
    if parts.squeezed:
        host = next(x for x in (step.launches[i.host] for i in found) if _squeezed(step, x))
        held = resident(host)
        yield (f"the host fills the device ({host.registers} registers, {host.threads} threads: {held} blocks per "
               f"multiprocessor); with {held - 1} it takes {parts.squeezed:,.1f} µs longer")
    if parts.lost:
        yield f"{parts.lost:,.1f} µs of the launches behind ran beside them; that overlap may be lost"
    if plan and step.bandwidth_gbs:
        moved = sum(plan[g].bytes for g in guests)
        yield (f"at most {moved / 1e6:,.2f} MB less written and read again: {moved / step.bandwidth_gbs / 1e3:,.1f} µs "
               f"at {step.bandwidth_gbs:,.0f} GB/s")
    yield from _unknown(plan)


def _unknown(plan: Sequence[Planned] | None) -> Iterator[str]:
    if plan is None:
        yield "by adjacency and kernel class only: whether data flows so is not known (--plan says)"
    yield "not known from one trace: registers and shared memory of the fused kernel, cache hits"


