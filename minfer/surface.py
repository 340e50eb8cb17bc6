"""The surface of a switch: everything in the plan that it changes, found by planning twice, not by reading docs.

`off` is the plan with the switch at 0, `on` with it at 1. Printed before an A/B starts: a switch that also flips
another arm shows here (report 72).
"""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minfer import switches
from minfer.devices import Where
from minfer.engine import plan_step
from minfer.errors import UserError
from minfer.gguf import GGUF
from minfer.plan import Launch, Plan

TOTALS = ("bytes_read", "bytes_written", "flops", "weight_bytes")


def surface(gguf: GGUF, where: Where, switch: str, depth: int = 0) -> dict[str, Any]:
    """What `switch` changes in a greedy decode step. Raises UserError for a switch that no plan depends on."""
    check_switch(switch)
    off, on = (plan_step(gguf, _with(where, switch, value), depth) for value in (False, True))
    kernels = {**off.by_kernel(), **on.by_kernel()}
    rows = [{"kernel": k, "off": off.by_kernel().get(k, 0), "on": on.by_kernel().get(k, 0)} for k in kernels]
    count = {"off": len(off.launches), "on": len(on.launches)}
    return {
        "switch": switch,
        "device": where.device,
        "launches_per_step": count | {"delta": count["on"] - count["off"]},
        "rows": sorted((r for r in rows if r["off"] != r["on"]), key=lambda r: r["off"] - r["on"]),
        "totals": {name: {"off": off.totals()[name], "on": on.totals()[name]} for name in TOTALS},
        "layers": _changed_layers(off, on),
        "geometry": _geometry(off, on),
    }


def check_switch(switch: str) -> None:
    """Raise UserError unless `switch` is one that a plan depends on."""
    able = [name for name, row in switches.SWITCHES.items() if row.plan]
    if switch not in able:
        near = difflib.get_close_matches(switch, able, n=1)
        hint = f"did you mean {near[0]}?" if near else f"give one of {', '.join(able)}"
        raise UserError(f"switch {switch} changes no plan: {hint}")


def _with(where: Where, switch: str, value: bool) -> Where:
    off = where.options.off - {switch} | ({switch} if value else set())
    return replace(where, options=replace(where.options, off=frozenset(off)))


def _changed_layers(off: Plan, on: Plan) -> list[int]:
    """Layers whose sequence of kernels differs."""

    def sequence(launches: Sequence[Launch], layer: int) -> list[str]:
        return [x.kernel for x in launches if x.layer == layer]

    layers = sorted({x.layer for x in off.launches if x.layer is not None})
    return [i for i in layers if sequence(off.launches, i) != sequence(on.launches, i)]


def _geometry(off: Plan, on: Plan) -> list[dict[str, Any]]:
    """Kernels that both plans launch in other grids or blocks."""

    def shapes(plan: Plan, kernel: str) -> set[tuple[Any, Any]]:
        return {(x.grid, x.block) for x in plan.launches if x.kernel == kernel}

    both = sorted(set(off.by_kernel()) & set(on.by_kernel()))
    pairs = ((k, shapes(off, k), shapes(on, k)) for k in both)
    return [{"kernel": k, "off": sorted(a - b), "on": sorted(b - a)} for k, a, b in pairs if a != b]
