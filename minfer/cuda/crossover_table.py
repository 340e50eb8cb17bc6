"""The table of `minfer crossover`: append-only JSON lines that a run resumes, and the constants that follow from it."""

import difflib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minfer.cuda import dispatch
from minfer.cuda.crossover import Shape
from minfer.errors import UserError

Row = dict[str, Any]
SAME = ("device", "l2_bytes")  # facts that all runs of one table share
NEEDED = ("type", "od", "id", "kernel", "elements", "us", "us_min", "us_max")
GATE_TABLE = "minfer/cuda/dispatch.py"
SLACK = 0.005  # a constant that costs no more than this share above the best is as good: the present one stays


@dataclass
class Table:
    """A table on disk, and what is in it."""

    path: Path
    headers: list[Row]
    rows: list[Row]

    def done(self) -> set[tuple[str, int, int]]:
        """Shapes that need no measuring again."""
        return {(r["type"], r["od"], r["id"]) for r in self.rows}

    def begin(self, facts: Row) -> None:
        """Append a run's header. Raises UserError where the table is another device's."""
        for name in SAME:
            if self.headers and self.headers[0].get(name) != facts[name]:
                raise UserError(f"{self.path}: was measured with {name} {self.headers[0].get(name)!r}, this is "
                                f"{facts[name]!r}; give another --out")  # fmt: skip
        self._append([{"crossover": 1, **facts}])
        self.headers.append(facts)

    def add(self, rows: list[Row]) -> None:
        """Append the lines of a shape, all of them or none."""
        self._append(rows)
        self.rows += rows

    def _append(self, rows: Iterable[Row]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(r) + "\n" for r in rows))
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{self.path}: cannot be written ({reason}); what is there is kept") from None


def open_table(path: Path) -> Table:
    """The table at `path`, empty where there is none. A line that a killed run left half is cut off.

    Raises UserError for a file that is something else.
    """
    if not path.exists():
        return Table(path, [], [])
    text = read(path)
    whole = text[: text.rfind("\n") + 1]
    table = parse(path, whole)
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return table


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a table of `minfer crossover`") from None


def parse(path: Path, text: str) -> Table:
    """The lines of a table. Raises UserError for one that is none, with its number."""
    headers: list[Row] = []
    rows: list[Row] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line)
            (headers if "crossover" in row else rows).append(row)
            if "crossover" not in row and any(name not in row for name in NEEDED):
                raise ValueError("fields are missing")
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: line {number} is not of a table of `minfer crossover` ({error})") from None
    return Table(path, headers, rows)


def run(table: Table, shapes: Sequence[Shape], one: Callable[[Shape], list[Row]], clock: Callable[[], float],
        seconds: float, told: Callable[[int, int], None]) -> int:  # fmt: skip
    """Measure the shapes that the table lacks, for so many seconds; how many are left. An interrupt loses one."""
    done = table.done()
    left = [s for s in shapes if s.key not in done]
    end, total = clock() + seconds, len(left)
    while left and clock() < end:
        table.add(one(left.pop(0)))
        told(total - len(left), total)
    return len(left)


# --- what the constants should be -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A gate and the constant that costs least over the measured shapes."""

    gate: dispatch.Gate
    best: int
    loss_us: float  # of the present constant above the fastest kernel everywhere, each shape once
    best_loss_us: float  # of the best constant
    total_us: float  # of the fastest kernels
    shapes: int

    @property
    def proposed(self) -> int:
        """The best constant; the present one where that is as good within SLACK."""
        near = self.loss_us - self.best_loss_us <= SLACK * self.total_us
        return self.gate.min_elements if near else self.best


def choices(rows: Iterable[Row]) -> list[Choice]:
    """Per gate that a decode matmul's size decides: the constant with the least time over all measured shapes."""
    times: dict[str, dict[tuple[int, int], dict[str, float]]] = {}
    for row in rows:
        if row["us"] is not None:
            times.setdefault(row["type"], {}).setdefault((row["od"], row["id"]), {})[row["kernel"]] = row["us"]
    found = []
    for gate in dispatch.GATES:
        if gate.type in times:
            pairs = list(_pairs(gate, times[gate.type]))
            if pairs:
                found.append(_choose(gate, pairs))
    return found


def _pairs(gate: dispatch.Gate, times: dict[tuple[int, int], dict[str, float]]) -> Iterable[tuple[int, float, float]]:
    """(elements, µs with the gate's kernel, µs without) of each shape where both were measured."""
    assert gate.type is not None
    taken = dispatch.kernel_name(gate, gate.type)
    for (od, id), by in times.items():
        others = [us for kernel, us in by.items() if kernel != taken]
        if taken in by and others:
            yield od * id, by[taken], min(others)


def _choose(gate: dispatch.Gate, pairs: list[tuple[int, float, float]]) -> Choice:
    def cost(constant: int) -> float:
        return sum(taken if elements >= constant else other for elements, taken, other in pairs)

    least = sum(min(taken, other) for _, taken, other in pairs)
    # between two shapes every constant routes alike: the round number above the smaller one stands for all
    sizes = sorted({elements for elements, *_ in pairs})
    candidates = [0, *(_round(a + 1, b) for a, b in itertools.pairwise(sizes)), _round(sizes[-1] + 1, 2 * sizes[-1])]
    best = min(candidates, key=lambda c: (cost(c), c))
    return Choice(gate, best, cost(gate.min_elements) - least, cost(best) - least, least, len(pairs))


def _round(low: int, high: int) -> int:
    """The number with the fewest digits that differ from 0 in [low, high]."""
    for digits in range(len(str(high)), -1, -1):
        unit: int = 10**digits
        if (value := -(-low // unit) * unit) <= high:
            return value
    return low


def proposal(chosen: Iterable[Choice], source: str, device: str, date: str) -> str:
    """A diff of the gate table with the proposed constants; empty where the present ones stand."""
    new = source
    for choice in chosen:
        if choice.proposed != choice.gate.min_elements:
            begin = rf'(    Gate\()\s*("{choice.gate.type}", "[^"]*", True, _ONE, )[\d_]+(, \([^)]*\),) '
            row = begin + r".*?\),\n(?=    Gate\(|\)\n)"
            reason = f"crossover on {device}, {choice.shapes} shapes"
            text = (rf"\g<1>\n        \g<2>{choice.proposed:_}\g<3>\n        "
                    f'"{reason}", "{date}",\n        was={choice.gate.min_elements:_},\n    ),\n')  # fmt: skip
            new = re.sub(row, text, new, count=1, flags=re.S)
    old_lines, new_lines = (text.splitlines(keepends=True) for text in (source, new))
    return "".join(difflib.unified_diff(old_lines, new_lines, f"a/{GATE_TABLE}", f"b/{GATE_TABLE}"))
