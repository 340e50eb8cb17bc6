"""A plan beside a recorded step: bytes, flops and data flow of every launch, matched launch by launch.

A plan is the JSON of `minfer plan --json` (or of another engine that writes `launches` of the same fields).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.sequence import Step
from census import reconcile, timing
from census.errors import CensusError

_NEEDED = ("kernel", "op", "grid", "block", "bytes_read", "bytes_written", "args")


@dataclass(frozen=True)
class Planned:
    """One launch of a plan."""

    kernel: str
    op: str
    name: str
    layer: int | None
    grid: tuple[int, ...]
    block: tuple[int, ...]
    bytes: int  # read + written
    weight_bytes: int
    flops: int
    inputs: tuple[str, ...]
    out: str
    weights: tuple[str, ...]
    elements: int  # od * id of a matmul, 0 for anything else

    @property
    def key(self) -> tuple[str, str, int | None]:
        """What it computes, whatever kernel does it."""
        return self.op, self.name, self.layer

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


def load(path: Path) -> tuple[Planned, ...]:
    """The launches of a plan file. Raises CensusError for a file that is none."""
    data = timing.load_json(path)
    rows = data.get("launches") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not rows:
        raise CensusError(f"{path}: is no plan; write one with `minfer plan MODEL --json`")
    return of_rows(rows, str(path))


def of_rows(rows: Sequence[dict[str, Any]], source: str) -> tuple[Planned, ...]:
    """The launches of a plan's rows."""
    lacking = next(((i, k) for i, r in enumerate(rows) for k in _NEEDED if k not in r), None)
    if lacking:
        raise CensusError(f"{source}: launch {lacking[0]} has no `{lacking[1]}`; a plan's launches need "
                          f"{', '.join(_NEEDED)}")
    return tuple(_planned(r) for r in rows)


def _planned(row: dict[str, Any]) -> Planned:
    args, params = row["args"], row["args"].get("params", {})
    return Planned(
        str(row["kernel"]), str(row["op"]), str(row.get("name", "")), row.get("layer"), tuple(row["grid"]),
        tuple(row["block"]), int(row["bytes_read"]) + int(row["bytes_written"]), int(row.get("weight_bytes", 0)),
        int(row.get("flops", 0)), tuple(args.get("inputs", ())), str(args.get("out", "")),
        tuple(args.get("weights", ())), int(params.get("od", 0)) * int(params.get("id", 0)),
    )  # fmt: skip


def check(step: Step, plan: Sequence[Planned], source: str) -> None:
    """Raise CensusError unless the recorded step is this plan, launch by launch."""
    rows = [{"kernel": p.kernel, "name": p.name, "layer": p.layer} for p in plan]
    held = reconcile.reconcile(rows, [[x.kernel for x in step.launches]])
    if not held.holds:
        raise CensusError(f"{source}: is not the plan of {step.trace}: {held.differences[0]}; plan with the switches, "
                          "depth and device of the recording")
