"""The table of `minfer crossover` joined with models: which matmuls the gates send to the slower kernel, at what cost.

A kernel counts as slower where every round of it was slower than every round of the other: medians that differ by
less than their spreads are no reason to change a gate.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from census.errors import CensusError
from census.shapes import Model, matmuls
from minfer.cuda import dispatch

Key = tuple[str, int, int]  # type, od, id
FIELDS = ("type", "od", "id", "kernel", "grid", "us", "us_min", "us_max", "gbs", "share")


@dataclass(frozen=True)
class Timed:
    """A kernel on a shape: µs per launch, median and range over the rounds."""

    kernel: str
    us: float
    us_min: float
    us_max: float
    gbs: float
    share: float | None  # of the read bandwidth


@dataclass(frozen=True)
class Measured:
    """A shape with the kernels that were timed on it; `grid`: of the regular grid only, not of a model."""

    type: str
    od: int
    id: int
    grid: bool
    kernels: Mapping[str, Timed]

    @property
    def key(self) -> Key:
        return self.type, self.od, self.id

    @property
    def chosen(self) -> Timed | None:
        """What the present gates choose; None where that kernel has no time."""
        return self.kernels.get(dispatch.kernel_name(dispatch.route(self.type, self.od, self.id, 1), self.type))

    @property
    def fastest(self) -> Timed:
        return min(self.kernels.values(), key=lambda t: t.us)

    @property
    def loss_us(self) -> float:
        """What the present gates cost a launch of this shape above its fastest kernel; 0 where the spreads overlap."""
        chosen, fastest = self.chosen, self.fastest
        return chosen.us - fastest.us if chosen and chosen.us_min > fastest.us_max else 0.0


@dataclass(frozen=True)
class Table:
    """What one device measured."""

    path: str
    facts: Mapping[str, Any]  # the first run's header
    shapes: Mapping[Key, Measured]


@dataclass(frozen=True)
class Loss:
    """A model's decode matmuls under the present gates."""

    model: str
    matmuls: int  # a step
    measured: int  # of them, in the table
    us: float  # a step, measured ones
    loss_us: float
    slower: Mapping[Key, int]  # shapes on the slower kernel, launches a step


def read(path: Path) -> Table:
    """The table. Raises CensusError for a file that is none."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        facts = next(r for r in lines if "crossover" in r)
        rows = [r for r in lines if "crossover" not in r]
        found: dict[Key, dict[str, Timed]] = {}
        grids: dict[Key, bool] = {}
        for row in rows:
            type, od, id, kernel, grid, us, *spread = (row[name] for name in FIELDS)
            grids[type, od, id] = grid
            if us is not None:
                found.setdefault((type, od, id), {})[kernel] = Timed(kernel, us, *spread)
    except OSError as error:
        raise CensusError(f"{path}: cannot be read ({error.strerror or error}); give a crossover table") from None
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise CensusError(f"{path}: not a table of `minfer crossover` ({error or 'no header'})") from None
    if not found:
        raise CensusError(f"{path}: no kernel has a time in it; run `minfer crossover` on a GPU")
    return Table(str(path), facts, {key: Measured(*key, grids[key], by) for key, by in found.items()})


def losses(table: Table, models: Iterable[Model]) -> list[Loss]:
    """What the present gates cost each model a step, most first."""
    return sorted((_loss(table, m) for m in models), key=lambda x: -x.loss_us)


def _loss(table: Table, model: Model) -> Loss:
    steps = matmuls(model)
    timed = {key: (count, table.shapes[key], table.shapes[key].chosen) for key, count in steps.items()
             if key in table.shapes}  # fmt: skip
    known = [(count, shape, chosen) for count, shape, chosen in timed.values() if chosen is not None]
    return Loss(
        model.name, steps.total(), sum(count for count, *_ in known), sum(c * chosen.us for c, _, chosen in known),
        sum(count * shape.loss_us for count, shape, _ in known),
        {shape.key: count for count, shape, _ in known if shape.loss_us},
    )  # fmt: skip


def slower(table: Table) -> list[Measured]:
    """Every measured shape that the present gates send to the slower kernel; of models first, by loss."""
    return sorted((s for s in table.shapes.values() if s.loss_us), key=lambda s: (s.grid, -s.loss_us))
