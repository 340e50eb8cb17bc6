"""From a planned launch to a kernel's arguments: the same for every machine that executes the kernels.

Arrays are numpy's or CuPy's; nothing here launches. A kernel's argument row (kernels.py) says what it takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minfer.cuda.weights import joined
from minfer.plan import Launch, Plan, Ref

POISON = 0xFF  # bytes of fresh scratch: NaN as f32, so a value nobody wrote cannot pass for a result


@dataclass(frozen=True)
class Buffers:
    """Where a program's values are. Regions, scratch and weights belong to the device, the rest to the program."""

    weights: dict[str, Any]  # uint8, padded blocks (weights.py)
    regions: dict[str | int, Any]  # (n_ctx, cols) of the KV type
    scratch: dict[str, Any]  # uint8
    slots: list[Any]  # f32, flat
    inputs: dict[str | int, Any]  # int32 (nt,)

    def locate(self, ref: Ref) -> Any:
        """The array behind a reference; a slot's flat from its offset on."""
        if ref.kind == "slot":
            return self.slots[int(ref.key)][ref.offset : ref.offset + ref.rows * ref.cols]
        if ref.kind == "input":
            return self.inputs[ref.key]
        return self.regions[ref.key] if ref.kind == "region" else self.scratch[str(ref.key)]


def arguments(launch: Launch, row: str, buffers: Buffers) -> list[Any]:
    """The launch's arguments in the order of a kernel's argument row: arrays, and int32 or float32 scalars."""
    words, weights = row.split(), launch.args.weights
    if "w0" in words and "w1" not in words:  # a matrix of several weights' rows, which lie one after the other
        weights = (joined(weights),)
    return [_argument(launch, word, weights, buffers) for word in words]


def _argument(launch: Launch, word: str, weights: tuple[str, ...], buffers: Buffers) -> Any:
    args = launch.args
    if word[:2] in ("i:", "f:"):
        return (np.int32 if word[0] == "i" else np.float32)(args.params[word[2:]])
    if word in buffers.scratch:
        return buffers.scratch[word][: args.params.get(f"{word}_bytes")]
    if word in buffers.inputs:
        return buffers.inputs[word]
    if word in ("k", "v"):
        return buffers.locate(args.regions["kv".index(word)])
    if word == "out":
        return buffers.locate(args.out)
    if word.startswith("w"):
        return buffers.weights[weights[int(word[1:])]]
    return buffers.locate(args.inputs[int(word.removeprefix("in"))])


def written_regions(plan: Plan) -> dict[str | int, tuple[int, int]]:
    """Region -> (rows, cols) of every KV region that the plan writes."""
    found = [r for x in plan.launches for r in _regions_of(x)]
    return {r.key: (r.rows, r.cols) for r in found}


def _regions_of(launch: Launch) -> Sequence[Ref]:
    out = launch.args.out
    return [*launch.args.regions, *([out] if out.kind == "region" else [])]


def scratch_needs(plan: Plan) -> dict[str, int]:
    """Scratch name -> bytes that the plan's launches need of it."""

    def most(name: str) -> int:
        return max((x.args.params.get(name, 0) for x in plan.launches), default=0)

    needs = {name: most(f"{name}_bytes") for name in ("q8", "quads", "partial", "counters", "aux", "ring")}
    return {name: nbytes for name, nbytes in needs.items() if nbytes} | {"pos": 4 * plan.n_tokens}


def fresh_scratch(name: str) -> int:
    """The byte that new scratch is filled with; counters must begin at zero."""
    return 0 if name in ("counters", "aux", "ring") else POISON


def check_planes(plan: Plan) -> None:
    """Every launch that reads activations in scratch must find those it was planned on: written last, none since."""
    held: dict[str, str] = {}
    for launch in plan.launches:
        for plane in ("q8", "quads"):
            reads, writes = (launch.args.params.get(f"{plane}_{side}") for side in ("reads", "writes"))
            if reads is not None and reads != held.get(plane):
                what = f"{launch.kernel} {launch.name} reads the {plane} of {reads}"
                raise AssertionError(f"{what}, the buffer holds {held.get(plane)}")
            if writes is not None:
                held[plane] = writes
