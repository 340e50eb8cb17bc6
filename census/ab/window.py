"""A finished window as the verdict reads it: this tool's window.json, or a recording made elsewhere.

A foreign file needs `runs`, a list of objects with `pair`, `arm` (A, B or A'), `order` and one figure: `value`, or
`avg_ns` or `avg_ts` as llama-bench names them. What such a file does not say is unknown, and the verdict says so.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from census.ab import log
from census.ab import plan as planning
from census.ab.plan import ARMS, Rule
from census.errors import CensusError

_FIGURES = {"value": None, "avg_ns": False, "avg_ts": True}  # key -> is higher better? None: the plan says
_UNITS = {"avg_ns": "ns", "avg_ts": "tok/s"}


@dataclass(frozen=True)
class Run:
    value: float
    resolution: float  # one unit of its last digit
    output_hash: str | None
    switches: dict[str, str] | None
    reported: dict[str, float]
    sm_mhz: float | None  # mean over the run


@dataclass(frozen=True)
class Pair:
    """A pair of runs; `null` is A' where the window has an A/A."""

    number: int
    order: str
    runs: Mapping[str, Run]  # arm -> run
    why: tuple[str, ...]  # why it does not count; empty: it counts

    @property
    def complete(self) -> bool:
        return set(ARMS.findall(self.order)) == set(self.runs) >= {"A", "B"}


@dataclass(frozen=True)
class Window:
    name: str
    a: str  # what arm A is, as text
    b: str
    device: str | None
    date: str | None
    seed: int | None
    metric: str
    unit: str
    rule: Rule
    pairs: tuple[Pair, ...]
    switch: str | None
    guards: Mapping[str, str] | None  # guard -> what could be seen; None: not recorded
    broken: str | None  # how the runs depart from the plan
    warnings: tuple[str, ...]

    @property
    def null(self) -> bool:
        return any("A'" in p.runs for p in self.pairs)


def load(path: Path) -> Window:
    """A window from its file or its folder. Raises CensusError for a file that holds none."""
    if path.is_dir():
        if (path / log.PLAN).exists() and not (path / log.WINDOW).exists():
            raise CensusError(f"{path}: is not finished; go on with `census ab --resume {path}`")
        path = path / log.WINDOW
    return from_data(log.read_json(path), path)


def from_data(data: Mapping[str, Any], path: Path) -> Window:
    """A window from a file's JSON object. Raises CensusError for what is none."""
    rows = data.get("runs")
    if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
        raise CensusError(f"{path}: has no list `runs` of objects with pair, order, arm and a figure")
    if len(models := {str(r.get("model")) for r in rows}) > 1:
        raise CensusError(f"{path}: holds runs of several models ({', '.join(sorted(models))}); give one file each")
    figure = next((k for k in _FIGURES if any(k in r for r in rows)), None)
    if figure is None:
        raise CensusError(f"{path}: its runs have no figure; give them one of {', '.join(_FIGURES)}")
    plan = data.get("plan")
    dropped = {d["pair"]: tuple(d["why"]) for d in data.get("dropped", [])}
    pairs = tuple(_pairs(rows, figure, dropped, path))
    if plan is None:
        rule = Rule(len(pairs), bool(_FIGURES[figure]))
        warnings, metric, unit = _foreign(str(data.get("A")), str(data.get("B"))), figure, _UNITS.get(figure, "")
    else:
        made = planning.from_data({**plan, "cwd": "", "order": data.get("order", ())}, path)
        rule, warnings, metric = made.rule, list(made.warnings), made.metric
        unit = next((str(r["unit"]) for r in rows if r.get("unit")), "")
    return Window(
        path.parent.name if path.name == log.WINDOW else path.name, str(data.get("A", "?")), str(data.get("B", "?")),
        data.get("device"), data.get("date"), data.get("order_seed"), metric, unit, rule, pairs,
        plan["switch"] if plan else None, data.get("guards"), _broken(rows, data.get("order")), tuple(warnings),
    )  # fmt: skip


def _pairs(rows: Sequence[Mapping[str, Any]], figure: str, dropped: Mapping[int, tuple[str, ...]],
           path: Path) -> Iterable[Pair]:
    runs: dict[int, dict[str, Run]] = {}
    orders: dict[int, str] = {}
    for row in rows:
        try:
            pair, arm = row["pair"], str(row["arm"])
            orders.setdefault(pair, str(row["order"]))
        except KeyError as error:
            raise CensusError(f"{path}: a run has no {error}; runs need pair, order, arm and {figure}") from None
        if arm in runs.setdefault(pair, {}):
            raise CensusError(f"{path}: pair {pair} holds two runs of arm {arm}; every arm runs once in a pair")
        if not row.get("failed"):
            runs[pair][arm] = _run(row, figure, path)
    for number in sorted(runs):
        yield Pair(number, orders[number], runs[number], dropped.get(number, ()))


def _run(row: Mapping[str, Any], figure: str, path: Path) -> Run:
    value = row.get(figure)
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise CensusError(f"{path}: pair {row['pair']}, arm {row['arm']}: {figure} is {value!r}; "
                          "ratios need a finite number above 0")
    clocks = [d["sm_mhz"] for d in (row.get("machine") or {}).get("gpus") or () if d["sm_mhz"]]
    resolution = float(row.get("resolution") or (1.0 if isinstance(value, int) else 0.0))
    return Run(float(value), resolution, row.get("output_hash"), row.get("switches"), row.get("reported") or {},
               clocks[0] if clocks else None)


def _broken(rows: Sequence[Mapping[str, Any]], order: Sequence[str] | None) -> str | None:
    """How the runs depart from the order that was drawn: their sequence is the file's."""
    ran: dict[int, list[str]] = {}
    for row in rows:
        ran.setdefault(row["pair"], []).append(str(row["arm"]))
    for number, row in {r["pair"]: r for r in rows}.items():
        drawn = ARMS.findall(str(row["order"]))
        if ran[number] != drawn[: len(ran[number])]:
            return f"pair {number + 1} ran {''.join(ran[number])} where its order is {row['order']}"
        if order is not None and (number >= len(order) or order[number] != row["order"]):
            return f"pair {number + 1} is labelled {row['order']}, which is not the plan's order"
    return None


def _foreign(a: str, b: str) -> list[str]:
    """What a recording without a plan leaves open; its arms are texts, and what looks like NAME=VALUE is a variable."""
    sides = [dict(word.split("=", 1) for word in re.findall(r"\b[A-Z][A-Z0-9_]{2,}=\S*", text)) for text in (a, b)]
    return planning.one_sided(*sides)

