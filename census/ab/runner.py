"""Run a plan to its end, from wherever it stopped.

What comes next is a function of the plan and the log alone, so a window that was killed goes on exactly as it would
have. A run that was under way when the machine went down has no line in the log and runs again; its `start` line stays.
A run that fails is logged as failed and stops the window: its pair is dropped, and replaced at the end.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from census.ab import gpu, guards, log, metric
from census.ab import plan as planning
from census.ab.log import Event, Log
from census.ab.plan import ARMS, Arm, Plan
from census.ab.process import Finished, execute
from census.errors import CensusError

_TAIL = 200  # characters of a failed command's last line that its message keeps


@dataclass(frozen=True)
class World:
    """Everything a window does outside of its own files; tests put a clockwork in its place."""

    execute: Callable[[Arm, Plan, Callable[[], None]], Finished]  # the callable is called about once a second
    before: Callable[[], dict[str, Any]]
    poll: Callable[[], Any]
    after: Callable[[dict[str, Any], list[Any]], dict[str, Any]]
    sleep: Callable[[float], None]
    clock: Callable[[], float]  # s since 1970
    facts: Mapping[str, Any]  # devices and which guards can see


class Slot(NamedTuple):
    """A run to come."""

    pair: int
    order: str
    arm: str


def real_world(gpus: gpu.Gpus, plan: Plan) -> World:
    """This machine."""
    return World(
        execute, lambda: guards.before(gpus, plan.limits), lambda: gpu.state(gpus),
        lambda start, polled: guards.after(gpus, start, polled), time.sleep, time.time,
        {"devices": gpu.identity(gpus), "cpu": guards.cpu_name(), "guards": guards.availability(gpus)},
    )  # fmt: skip


def run(folder: Path, plan: Plan, world: World, tick: Callable[[int, int], None]) -> None:
    """Run what is left of the window in `folder`, up to its window.json; tick(done, total) counts runs.

    Raises CensusError when a run fails or a file cannot be written; what was recorded is kept.
    """
    with log.opened(folder / log.RUNS) as book:
        if (folder / log.WINDOW).exists():
            return
        tick(*_progress(plan, book.events))
        if next_slot(plan, book.events):
            _warm_up(plan, world)
        while slot := _next(plan, book):
            _one(folder, plan, world, book, slot)
            tick(*_progress(plan, book.events))
        try:
            log.write_json(folder / log.WINDOW, finished(plan, book.events, world.facts))
        except OSError as error:
            raise CensusError(f"{folder / log.WINDOW}: cannot be written ({error.strerror}); every run is kept; make "
                              f"room, then `census ab --resume {folder}`") from None


def _next(plan: Plan, book: Log) -> Slot | None:
    """The next run; where all are done, first the replacements of pairs that do not count."""
    slot = next_slot(plan, book.events)
    if slot is None:
        for event in replacements(plan, book.events):
            log.append(book, event)
        slot = next_slot(plan, book.events)
    return slot


def pairs(plan: Plan, events: Sequence[Event]) -> list[tuple[int, str]]:
    """Pair number and order label: the planned ones, then the replacements."""
    return [*enumerate(plan.order), *((e["pair"], e["order"]) for e in events if e["event"] == "replace")]


def runs(events: Sequence[Event]) -> list[Event]:
    """The run records of a log, in order."""
    return [e for e in events if e["event"] == "run"]


def next_slot(plan: Plan, events: Sequence[Event]) -> Slot | None:
    """The first run that is not in the log. A pair with a failed run is over, and so is a window with too many."""
    done = {(e["pair"], e["arm"]) for e in runs(events)}
    failed = {e["pair"] for e in runs(events) if e["failed"]}
    if len(failed) > plan.rule.most_replaced:
        return None
    for pair, order in pairs(plan, events):
        for name in ARMS.findall(order):
            if (pair, name) not in done and pair not in failed:
                return Slot(pair, order, name)
    return None


def dropped(plan: Plan, events: Sequence[Event]) -> dict[int, list[str]]:
    """Pair -> reasons: those that were replaced keep the reasons of that moment."""
    bad = guards.contaminated(runs(events), plan.limits, plan.gap_s)
    return bad | {e["replaces"]: e["why"] for e in events if e["event"] == "replace"}


def replacements(plan: Plan, events: Sequence[Event]) -> list[Event]:
    """A replacement, with the same order label, for each dropped pair without one; none where that is too many."""
    bad, orders = dropped(plan, events), dict(pairs(plan, events))
    have = {e["replaces"] for e in events if e["event"] == "replace"}
    if len(bad) > plan.rule.most_replaced:
        return []
    todo = [pair for pair in sorted(bad) if pair not in have]
    return [{"event": "replace", "pair": len(orders) + i, "order": orders[pair], "replaces": pair, "why": bad[pair]}
            for i, pair in enumerate(todo)]


def _progress(plan: Plan, events: Sequence[Event]) -> tuple[int, int]:
    return len(runs(events)), sum(len(ARMS.findall(order)) for _, order in pairs(plan, events))


def _warm_up(plan: Plan, world: World) -> None:
    """Discarded runs: caches fill, clocks settle, and a command that cannot be measured shows it before any run."""
    for name in ("A", "B") * plan.warmup:
        done = world.execute(plan.arm(name), plan, lambda: None)
        _, failed = _report(plan, name, done)
        if failed:
            raise CensusError(f"warm-up of arm {name}: {failed}; no run was lost, mend it and resume")


def _one(folder: Path, plan: Plan, world: World, book: Log, slot: Slot) -> None:
    """One run, from its gap to its line in the log. Raises CensusError after logging a run that failed."""
    world.sleep(plan.gap_s)
    state = world.before()
    polled: list[Any] = []
    began = world.clock()
    log.append(book, {"event": "start", **slot._asdict(), "began": began})
    done = world.execute(plan.arm(slot.arm), plan, lambda: polled.append(world.poll()))
    ended = world.clock()
    measured, failed = _report(plan, slot.arm, done)
    record = {"event": "run", **slot._asdict(), **(asdict(measured) if measured else {}), "failed": failed,
              "began": began, "ended": ended, "machine": world.after(state, polled)}
    log.append(book, record)
    if not failed:
        for reason in guards.contaminated([record], plan.limits, plan.gap_s).get(slot.pair, []):
            sys.stderr.write(f"pair {slot.pair + 1} does not count: {reason}\n")
    else:
        raise CensusError(f"pair {slot.pair + 1}, arm {slot.arm}: {failed}; the pair is dropped; mend it, then "
                          f"`census ab --resume {folder}`")


def _report(plan: Plan, name: str, done: Finished) -> tuple[metric.Measured | None, str | None]:
    """What a run measured, or in one line why it measured nothing."""
    arm = plan.arm(name)
    if done.code is None:
        return None, f"`{arm.text}` had not ended after {plan.timeout_s:g} s (--timeout) and was stopped"
    if done.code:
        said = (done.err.strip() or done.out.strip()).splitlines()
        end = f": {said[-1][:_TAIL]}" if said else ""
        return None, f"`{arm.text}` ended with exit code {done.code}{end}"
    try:
        measured = metric.extract(plan.metric, plan.rule.conditions, done.out, done.err)
    except CensusError as error:
        return None, f"`{arm.text}`: {error}"
    for switch, value in (measured.switches or {}).items():
        if switch in arm.env and arm.env[switch] != value:
            return None, f"`{arm.text}` found {switch}={value}, which is not what this arm sets"
    return measured, None


def finished(plan: Plan, events: Sequence[Event], facts: Mapping[str, Any]) -> dict[str, Any]:
    """window.json: what was planned, every run, and the pairs that do not count."""
    records = [{k: v for k, v in e.items() if k != "event"} for e in runs(events)]
    order_of = dict(pairs(plan, events))
    stands_for = {e["replaces"]: e["pair"] for e in events if e["event"] == "replace"}
    data = planning.as_data(plan)
    return {
        "what": "interleaved window, one fresh process per run",
        "A": plan.a.text,
        "B": plan.b.text,
        "device": ", ".join(d["name"] for d in facts["devices"]) or facts["cpu"],
        "date": plan.created,
        "order_seed": plan.seed,
        "order": [order_of[p] for p in sorted(order_of)],
        "plan": {k: v for k, v in data.items() if k not in ("cwd", "order")},
        "guards": facts["guards"],
        "devices": facts["devices"],
        "dropped": [{"pair": p, "why": why, "replaced_by": stands_for.get(p)}
                    for p, why in sorted(dropped(plan, events).items())],
        "runs": records,
    }


def interrupted(events: Sequence[Event]) -> int:
    """Runs that were started and have no record: the window stopped while they ran, and they ran again."""
    return len([e for e in events if e["event"] == "start"]) - len(runs(events))
