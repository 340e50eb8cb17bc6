"""The verdict on a window: INVALID, DIFFERENT OUTPUT, SEP, PAIRED, EQUIV or OPEN, the first that applies.

It starts from OPEN and is raised only by evidence; each has a reason code. "Faster" is never said below PAIRED.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from census.ab import stats
from census.ab.plan import ARMS
from census.ab.window import Pair, Window

Interval = tuple[float, float]


@dataclass(frozen=True)
class Figures:
    """The arithmetic of some pairs of one window. Effects are log ratios seen from `leader`: above 0 it is better."""

    leader: str  # the arm with the better median; B where neither is
    wins: int  # of the leader; a tie is nobody's
    ties: int
    pairs: int
    p_one: float
    p_two: float
    bound: float  # largest one-sided p under any drift of the machine
    effect: float  # median
    interval: tuple[float, float, float] | None  # ends and coverage
    hodges_lehmann: float
    order: tuple[float, float] | None  # order-adjusted effect; slot effect (above 0: the first run is slower)
    sep: bool
    edges: Interval  # worst of the leader, best of the other
    spread: float  # robust standard deviation of a pair


@dataclass(frozen=True)
class Grade:
    verdict: str
    reason: str  # a code
    message: str


@dataclass(frozen=True)
class Verdict:
    grade: Grade
    figures: Figures | None  # None: not one pair to compute with
    everything: Figures | None  # the same with the pairs that were dropped
    null: Figures | None  # the A/A
    floor: float | None  # log ratio
    visible: float | None  # log ratio that this window would find 8 times in 10
    needed: int | None  # pairs that would find an effect of the size seen
    outputs: str  # equal, different, declared different, or unknown
    cycles: float | None  # log ratio of the leader in time × SM clock
    lands: bool | None  # None: no bar was declared
    lands_why: str
    held: tuple[dict[str, Any], ...]  # declared guards: name, wanted, value, holds
    warnings: tuple[str, ...]

    @property
    def winner(self) -> str | None:
        """A or B, and only with the evidence of SEP or PAIRED."""
        return self.figures.leader if self.figures and self.grade.verdict in ("SEP", "PAIRED") else None


def judge(window: Window) -> Verdict:
    """Judge a finished window by the rule that was declared with it."""
    rule = window.rule
    whole = [p for p in window.pairs if p.complete]
    kept = [p for p in whole if not p.why]
    figures, everything = (compare(pairs, rule.higher) for pairs in (kept, whole))
    null = compare(kept, rule.higher, "A", "A'")
    floor = stats.floor(_ratios(kept, rule.higher, "A", "A'")) if null else None
    outputs = _outputs(window)
    grade = (_invalid(window, kept, null) or _different(outputs) or _evidence(figures, floor, window)
             or Grade("OPEN", "no_pairs", "no complete pair"))
    grade = _cap(grade, figures, everything, floor, window)
    grade = _check_null(grade, figures, null)
    noise = null.spread if null and null.spread else figures.spread if figures else 0.0
    held = tuple(_held(window, kept))
    lands, why = _lands(grade, figures, held, rule.bar_pct)
    return Verdict(
        grade, figures, everything, null, floor, _visible(noise, figures, rule.alpha),
        _needed(noise, figures, rule.alpha), outputs, _cycles(kept, figures, rule.higher), lands, why, held,
        (*window.warnings, *_warnings(window, null, floor, outputs, figures)),
    )  # fmt: skip


def compare(pairs: Sequence[Pair], higher: bool, a: str = "A", b: str = "B") -> Figures | None:
    """The figures of arms `a` and `b` in these pairs; None where no pair has both."""
    pairs = [p for p in pairs if a in p.runs and b in p.runs]
    if not pairs:
        return None
    d = _ratios(pairs, higher, a, b)
    leader, other = (b, a) if statistics.median(d) >= 0 else (a, b)
    d = d if leader == b else [-x for x in d]
    tied = [_tie(p, a, b) for p in pairs]
    wins = sum(x > 0 and not t for x, t in zip(d, tied, strict=True))
    first = [_ran_first(p, other, leader) for p in pairs]
    better, worse = ([p.runs[arm].value for p in pairs] for arm in (leader, other))
    one, two = stats.sign_p(wins, len(d))
    return Figures(
        leader, wins, sum(tied), len(d), one, two, stats.design_bound(wins, len(d), sum(first)), statistics.median(d),
        stats.median_interval(d), stats.hodges_lehmann(d), stats.slot_effect(d, first),
        stats.separated(worse, better, higher) and wins == len(d),
        (min(better), max(worse)) if higher else (max(better), min(worse)), stats.spread(d),
    )  # fmt: skip


def _ran_first(pair: Pair, arm: str, other: str) -> bool:
    arms = ARMS.findall(pair.order)
    return arms.index(arm) < arms.index(other)


def _ratios(pairs: Sequence[Pair], higher: bool, a: str, b: str) -> list[float]:
    """ln of how much better b is than a, per pair."""
    sign = -1 if higher else 1
    return [sign * math.log(p.runs[a].value / p.runs[b].value) for p in pairs if a in p.runs and b in p.runs]


def _tie(pair: Pair, a: str, b: str) -> bool:
    """Equal to the last printed digit; of two resolutions the finer counts."""
    one, two = pair.runs[a], pair.runs[b]
    return abs(one.value - two.value) <= min(one.resolution, two.resolution) * (1 + 1e-9)


def _invalid(window: Window, kept: Sequence[Pair], null: Figures | None) -> Grade | None:
    if window.broken:
        return Grade("INVALID", "plan_broken", window.broken)
    lost, rule = [p for p in window.pairs if p.why], window.rule
    if len(lost) > rule.most_replaced:
        return Grade("INVALID", "machine", f"{len(lost)} pairs did not count, at most {rule.most_replaced} may: this "
                                           "machine was not fit to measure on")
    if len(kept) < rule.pairs:
        return Grade("INVALID", "missing_runs", f"{len(kept)} of {rule.pairs} pairs are complete")
    if null is None:
        return None
    if null.sep and null.p_two <= rule.alpha:
        return Grade("INVALID", "null_separated", "A and A' are separated, and they are the same command")
    if null.interval and null.interval[0] > 0:
        return Grade("INVALID", "null_interval", f"A and A' differ by {stats.percent(null.effect):.2f}%, and they are "
                                                 "the same command")
    return None


def _outputs(window: Window) -> str:
    """Did every run that says what it produced produce the same?"""
    said: dict[str, set[str]] = {}
    for pair in window.pairs:
        for arm, run in pair.runs.items():
            if run.output_hash:
                said.setdefault(arm[0], set()).add(run.output_hash)
    if len(set().union(*said.values())) > 1:
        stable = all(len(hashes) == 1 for hashes in said.values())
        return "declared different" if window.rule.different_output and stable else "different"
    return "equal" if set(said) == {"A", "B"} else "unknown"


def _different(outputs: str) -> Grade | None:
    if outputs != "different":
        return None
    return Grade("DIFFERENT OUTPUT", "output_hash", "runs produced different tokens; a faster wrong answer is none")


def _evidence(figures: Figures | None, floor: float | None, window: Window) -> Grade | None:
    """SEP, PAIRED, EQUIV or OPEN, from the figures of one set of pairs."""
    if figures is None:
        return None
    rule, size = window.rule, abs(figures.effect)
    signed = figures.p_two <= rule.alpha and figures.interval is not None and figures.interval[0] > 0
    if signed and (floor is None or size > floor):
        if figures.sep:
            return Grade("SEP", "separated", f"{figures.leader} faster, separated")
        return Grade("PAIRED", "sign_test", f"{figures.leader} faster, {figures.wins} pairs of {figures.pairs}")
    if figures.interval and max(map(abs, figures.interval[:2])) <= math.log1p(rule.delta_pct / 100):
        return Grade("EQUIV", "inside_delta", f"no difference larger than {rule.delta_pct:g}%")
    if stats.wins_needed(figures.pairs, rule.alpha) is None:
        return Grade("OPEN", "few_pairs", f"{figures.pairs} pairs can never show a difference; 6 is the least")
    if signed:
        return Grade("OPEN", "below_floor", "the difference is no larger than what A against A shows")
    return Grade("OPEN", "not_shown", f"{figures.wins} wins of {figures.pairs} are not enough "
                                      f"({stats.wins_needed(figures.pairs, rule.alpha)} are)")


def _cap(grade: Grade, kept: Figures | None, everything: Figures | None, floor: float | None,
         window: Window) -> Grade:
    """A verdict must also hold with the dropped pairs; where it does not it is OPEN."""
    if grade.verdict not in ("SEP", "PAIRED", "EQUIV") or kept == everything:
        return grade
    other = _evidence(everything, floor, window)
    if other and everything and kept and other.verdict == grade.verdict and everything.leader == kept.leader:
        return grade
    said = other.verdict if other else "nothing"
    return Grade("OPEN", "dropped_pairs_decide", f"{grade.verdict} without the dropped pairs, {said} with them")


def _check_null(grade: Grade, figures: Figures | None, null: Figures | None) -> Grade:
    """A claim is void where the place in a pair makes more of a difference to A/A than the arms do."""
    if grade.verdict in ("SEP", "PAIRED") and figures and null and null.order and abs(null.order[1]) > figures.effect:
        return Grade("INVALID", "null_slot", f"the place in a pair moves A against A by "
                                             f"{stats.percent(abs(null.order[1])):.2f}%, more than the claim")
    return grade


def _visible(noise: float, figures: Figures | None, alpha: float) -> float | None:
    size = stats.visible(figures.pairs, alpha) if figures else math.inf
    return noise * size if math.isfinite(size) and noise else None


def _needed(noise: float, figures: Figures | None, alpha: float) -> int | None:
    return stats.pairs_needed(figures.effect / noise, alpha) if figures and noise else None


def _cycles(pairs: Sequence[Pair], figures: Figures | None, higher: bool) -> float | None:
    """The effect in clock cycles: a difference that vanishes here is one of clocks. None without recorded clocks."""
    if figures is None or any(p.runs[arm].sm_mhz is None for p in pairs for arm in ("A", "B")):
        return None
    leader, other = figures.leader, "A" if figures.leader == "B" else "B"
    clocks = [math.log((p.runs[other].sm_mhz or 1) / (p.runs[leader].sm_mhz or 1)) for p in pairs]
    return statistics.median(x + c for x, c in zip(_ratios(pairs, higher, other, leader), clocks, strict=True))


def _held(window: Window, kept: Sequence[Pair]) -> list[dict[str, Any]]:
    """Each declared guard with the median of what arm B reported."""
    out = []
    for condition in window.rule.conditions:
        seen = [p.runs["B"].reported[condition.name] for p in kept if condition.name in p.runs["B"].reported]
        value = statistics.median(seen) if seen else None
        out.append({"guard": str(condition), "value": value, "holds": value is not None and condition.holds(value)})
    return out


def _lands(grade: Grade, figures: Figures | None, held: Sequence[dict[str, Any]],
           bar_pct: float | None) -> tuple[bool | None, str]:
    """Does B land? Only as the winner, past the declared bar, with every declared guard holding."""
    if bar_pct is None:
        return None, "no bar was declared (--bar)"
    if grade.verdict not in ("SEP", "PAIRED") or figures is None or figures.leader != "B":
        return False, f"the verdict is {grade.verdict}" + (" for A" if grade.verdict in ("SEP", "PAIRED") else "")
    gain = stats.percent(figures.effect)
    if gain < bar_pct:
        return False, f"{gain:+.2f}% is below the bar of {bar_pct:+g}%"
    if broken := [h["guard"] for h in held if not h["holds"]]:
        return False, f"the guard {', '.join(broken)} does not hold"
    return True, f"{gain:+.2f}% passes the bar of {bar_pct:+g}%" + (", and every guard holds" if held else "")


def _warnings(window: Window, null: Figures | None, floor: float | None, outputs: str,
              figures: Figures | None) -> list[str]:
    out = []
    if null is None:
        out.append("no A/A in this window (--with-null): what this machine shows between equal runs is not known")
    elif floor is None:
        out.append(f"{null.pairs} pairs are too few for an A/A floor: 6 is the least")
    if window.guards is None:
        out.append("no guards were recorded: nothing says that the machine was quiet")
    if outputs == "unknown":
        out.append("outputs were not compared: not both arms report a hash of their tokens")
    if window.switch and not _resolved(window):
        out.append(f"no run reports that it found {window.switch} set: the switch may not be read by this program")
    if figures and figures.order and abs(figures.order[1]) > abs(figures.effect) and figures.pairs >= 6:
        out.append("the place in a pair makes more of a difference than the arms do")
    return out


def _resolved(window: Window) -> bool:
    """Whether an engine echoed the switch in one arm (engines report the switches that are not at their default)."""
    return any(window.switch in (run.switches or {}) for pair in window.pairs for run in pair.runs.values())
