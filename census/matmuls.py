"""A trace's matmuls told apart by the weights they read: launches of a step walked along the model's layers.

A kernel's name and grid say its type and rows, not its row length, and one layer has several matrices alike (attn_q,
attn_output, ffn_down). Their order says which is which: a decode step multiplies by q, k, v, then the attention's
output, then gate and up, then down, layer by layer, and by the output at its end. A launch that fits the next stage
while gate or up is still to come has read both (fused SwiGLU). Where k and v are alike, the first is called k. What
fits nowhere keeps no tensor and is counted.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from census import activity, attribution, launches, ledger, ranges, sources
from census import steps as cut
from census import trace as tr
from census.activity import KERNEL, REPLAY
from census.errors import CensusError
from census.ledger import Row, Total
from census.shapes import Model, place
from minfer.gguf import QUANT_BY_ID, Tensor

STAGES = (("attn_q", "attn_k", "attn_v", "attn_qkv"), ("attn_output",), ("ffn_gate", "ffn_up"), ("ffn_down",))
SHORT_ROW = 2048  # llama.cpp's mul_mat_vec_q takes four of them a block
OTHER, UNKNOWN = "other work", "matmul of no tensor"
_FLOATS = {"__half": "F16", "half": "F16", "__nv_bfloat16": "BF16", "nv_bfloat16": "BF16", "float": "F32"}


@dataclass(frozen=True)
class Matmul:
    """What a kernel's name and grid say. `per_block`: the rows that a block computes; others follow for short rows."""

    type: str
    blocks: int
    per_block: tuple[int, ...]

    def fits(self, weights: Sequence[Tensor]) -> bool:
        """Whether this launch can have multiplied by these weights together."""
        rows = sum(w.rows for w in weights)
        sizes = self.per_block if weights[0].shape[0] < SHORT_ROW else self.per_block[:1]
        return all(w.type == self.type for w in weights) and any(-(-rows // n) == self.blocks for n in sizes)


# a kernel's name, without its grid -> its type's text, and rows a block: one row a kernel that is known
KERNELS: tuple[tuple[re.Pattern[str], Callable[[str], str], tuple[int, ...]], ...] = (
    (re.compile(r"^(?:void )?mul_mat_vec_q<\(ggml_type\)(\d+)"), lambda t: QUANT_BY_ID[int(t)].name, (1, 4)),
    (re.compile(r"^(?:void )?mul_mat_vec_f?<(\w+)"), lambda t: _FLOATS[t], (1,)),
    (re.compile(r"^mmvq_(\w+)$"), str.upper, (1,)),
    (re.compile(r"^matmul_(\w+)_f32$"), str.upper, (8,)),
)
_SHAPE = re.compile(r"(?P<name>.*) grid (?P<x>\d+)x(?P<y>\d+)x(?P<z>\d+) block \S+$")


def parse(shape: str) -> Matmul | None:
    """The matmul behind a key of `--by shape`; None for every other kernel."""
    found = _SHAPE.match(shape)
    for pattern, kind, per_block in KERNELS if found else ():
        assert found
        if match := pattern.match(found["name"]):
            try:
                return Matmul(kind(match[1]), int(found["x"]), per_block)
            except KeyError:  # a type that is none of ggml's
                return None
    return None


def stages(model: Model) -> list[list[Tensor]]:
    """The model's weights in the order in which a step multiplies by them, those of a stage together."""
    layers: dict[int, dict[str, Tensor]] = {}
    ends: dict[str, Tensor] = {}
    for tensor in model.tensors:
        layer, role = place(tensor.name)
        if len(tensor.shape) == 2:
            (ends if layer is None else layers.setdefault(layer, {}))[role] = tensor
    found = [[by[r] for r in stage if r in by] for _, by in sorted(layers.items()) for stage in STAGES]
    last = ends.get("output") or ends.get("token_embd")
    return [s for s in found if s] + ([[last]] if last else [])


def assign(sequence: Iterable[Matmul], model: Model) -> list[tuple[Tensor, ...]]:
    """The weights that each launch of a step read; empty for one that fits nowhere."""
    left = [list(s) for s in stages(model)]
    done: list[tuple[Tensor, ...]] = []
    at = 0
    for launch in sequence:
        taken, stage = _take(launch, left, at)
        if taken and stage > at and done and left[at]:
            done[-1] = _with_rest(done[-1], left[at])
        at = stage
        done.append(taken)
    return done


def _take(launch: Matmul, left: list[list[Tensor]], at: int) -> tuple[tuple[Tensor, ...], int]:
    """The weights of this stage, or else the next, that the launch fits; and the stage it is in then."""
    for stage in range(at, min(at + 2, len(left))):
        together = tuple(left[stage])
        for choice in (together, *((w,) for w in together)):
            if choice and launch.fits(choice):
                left[stage] = [w for w in together if w not in choice]
                return choice, stage
    return (), at


def _with_rest(last: tuple[Tensor, ...], rest: list[Tensor]) -> tuple[Tensor, ...]:
    """A launch that read gate or up read both when the other never came."""
    alike = [w for w in rest if last and (w.type, w.shape) == (last[0].type, last[0].shape)]
    both = {place(w.name)[1] for w in (*last, *alike)} == set(STAGES[2])
    return (*last, *alike) if both else last


@dataclass(frozen=True)
class Line:
    """A ledger row of one (role, type, od, id), or of work that is no matmul."""

    role: str
    type: str | None
    od: int | None
    id: int | None
    bytes: int | None  # of the weights, a launch
    row: Row

    @property
    def gbs(self) -> float | None:
        """Bytes of the weights over exposed time."""
        us = self.row.exposed_us_per_launch
        return self.bytes / us / 1e3 if self.bytes and us else None


@dataclass(frozen=True)
class ByTensor:
    """A ledger by the weights; rows, gaps and residual add up to the step as in every ledger."""

    trace: str
    model: str
    device: str | None
    bandwidth_gbs: float | None  # as the driver advertises it, where the trace says so
    steps: cut.Steps
    lines: tuple[Line, ...]
    total: Total
    warnings: tuple[str, ...]


def of_file(path: str, model: Model, steps: str = "auto") -> ByTensor:
    """The matmuls of a trace by the model's tensors. Raises CensusError for a trace without steps or matmuls."""
    trace = sources.open_source(path)
    try:
        act = activity.load(trace)
        joined, spans = launches.join(trace, act), ranges.load(trace)
        found = cut.find(trace, act, joined, spans, steps)
        shapes = attribution.keys(trace, act, joined, spans, "shape")
        code, groups, warnings = _code(act, found, shapes, model)
        rows, total = ledger.close(act, found, code, tuple(map(str, range(len(groups)))))
        device = trace.devices[0] if trace.devices else None
        bandwidth = device.bandwidth / 1e9 if device and device.bandwidth else None
        lines = tuple(_line(groups[int(row.key)], row) for row in rows)
        name = device.name if device else None
        return ByTensor(path, model.name, name, bandwidth, found, lines, total, (*trace.warnings, *warnings))
    finally:
        tr.close(trace)


Group = tuple[str, str | None, int | None, int | None, int | None]  # role, type, od, id, bytes


def _code(act: activity.Activity, found: cut.Steps, shapes: attribution.Keys,
          model: Model) -> tuple[np.ndarray, list[Group], tuple[str, ...]]:  # fmt: skip
    """A group's number for every piece of work, and the groups; steps that launch alike are walked once."""
    if not found.count:
        raise CensusError(f"--model needs steps, and there are none: {found.reason}; try --steps lag")
    known = [parse(text) for text in shapes.text]
    matmul = np.array([m is not None for m in known])[shapes.code] & (act.kind == KERNEL) & (found.of >= 0)
    groups: dict[Group, int] = {(OTHER, None, None, None, None): 0}
    code, odd = np.zeros(len(act), np.int64), 0
    cache: dict[bytes, list[int]] = {}
    where = np.flatnonzero(matmul)
    if not len(where):
        whole = (act.kind[found.of >= 0] == REPLAY).any()
        why = "kernels inside graph replays are not in this trace; record with --cuda-graph-trace=node" if whole else (
            "no kernel of the steps is a matmul that is known here; see --by kernel")  # fmt: skip
        raise CensusError(f"--model: {why}")
    for step in range(found.count):
        mine = where[found.of[where] == step]
        sequence = shapes.code[mine]
        if (key := sequence.tobytes()) not in cache:
            weights = assign([m for m in (known[c] for c in sequence) if m is not None], model)
            cache[key] = [groups.setdefault(_group(w), len(groups)) for w in weights]
            odd += sum(not w for w in weights)
        code[mine] = cache[key]
    notes = (f"{odd} matmuls fit no tensor of {model.name}: is it the model of this trace?",) if odd else ()
    return code, list(groups), notes


def _group(weights: tuple[Tensor, ...]) -> Group:
    if not weights:
        return UNKNOWN, None, None, None, None
    roles = "+".join(place(w.name)[1].removeprefix("attn_").removeprefix("ffn_") if len(weights) > 1
                     else place(w.name)[1] for w in weights)  # fmt: skip
    od = sum(w.rows for w in weights)
    return roles, weights[0].type, od, weights[0].shape[0], sum(w.nbytes for w in weights)


def _line(group: Group, row: Row) -> Line:
    role, type, od, id, nbytes = group
    return Line(role, type, od, id, nbytes, replace(row, key=f"{role} {type} {od}x{id}" if type else role))
