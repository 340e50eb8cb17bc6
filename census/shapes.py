"""Which matrices models have, how large they are, and which kernel each takes: from headers alone.

A gate constant fitted through a few shapes is wrong for the shapes between them (report 72), so look at all of them
first: `between` says which shapes an interval holds, `what_if` which layers a changed constant sends elsewhere.

A row is one (file, role, type, od, id). The kernel is what the gate table says, where nothing streams; it is None where
no kernel of minfer multiplies by that tensor: stacked experts, types without one, an embedding that is only looked up.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from census.errors import CensusError
from minfer.cuda import dispatch
from minfer.gguf import QUANTS, SUPPORTED, Tensor

QKV = ("attn_q", "attn_k", "attn_v")
MANY = dispatch.MAX_BATCH + 1  # tokens of a prompt, as opposed to a few


@dataclass(frozen=True)
class Model:
    """A header's tensors under the name that tables show."""

    name: str
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class Shape:
    """A matrix of a model, with the layers that have it; the output matrix and the embedding belong to none."""

    file: str
    role: str
    type: str
    od: int
    id: int
    elements: int  # of one matrix
    bytes: int  # of all of them
    layers: int
    layer_ids: tuple[int, ...]
    block_elements: int  # weights of a quant block
    row_blocks: int  # quant blocks of a row
    kernel: str | None  # one token
    kernel_batch: str | None  # a few tokens
    kernel_prefill: str | None  # a prompt
    gate: str | None  # of one token: its constant and where it comes from

    @property
    def count(self) -> int:
        """Matrices of this shape in the model."""
        return self.layers or 1

    @property
    def key(self) -> tuple[str, int, int]:
        return self.type, self.od, self.id

    def time_us(self, bandwidth: float) -> float:
        """What the bytes of one matrix need at `bandwidth` GB/s."""
        return self.bytes / self.count / bandwidth / 1e3


@dataclass(frozen=True)
class Reroute:
    """A gate constant changed from `old` to `new` elements, and the rows that take another kernel for it."""

    type: str
    old: int
    new: int
    rows: tuple[tuple[Shape, str], ...]  # the row under the old constant, its kernel under the new one
    note: str | None = None


@dataclass
class _Group:
    tensor: Tensor
    nbytes: int = 0
    layers: list[int] = field(default_factory=list)


def shapes(model: Model) -> list[Shape]:
    """The matrices of a model by (role, type, od, id), in the order of the file."""
    tied = not any(t.name == "output.weight" for t in model.tensors)
    groups: dict[tuple[str, str, int, int], _Group] = {}
    for tensor in model.tensors:
        if len(tensor.shape) > 1:
            layer, role = place(tensor.name)
            group = groups.setdefault((role, tensor.type, tensor.rows, tensor.shape[0]), _Group(tensor))
            group.nbytes += tensor.nbytes
            group.layers += [] if layer is None else [layer]
    return [_shape(model.name, role, group, tied) for (role, *_), group in groups.items()]


def place(name: str) -> tuple[int | None, str]:
    """Layer and role: blk.3.attn_q.weight -> (3, attn_q); output.weight -> (None, output)."""
    first, _, rest = name.partition(".")
    number, _, role = rest.partition(".")
    if first == "blk" and number.isdecimal():
        return int(number), role.removesuffix(".weight")
    return None, name.removesuffix(".weight")


def _shape(file: str, role: str, group: _Group, tied: bool) -> Shape:
    tensor, block = group.tensor, QUANTS[group.tensor.type].elements
    od, id = tensor.rows, tensor.shape[0]
    multiplied = len(tensor.shape) == 2 and tensor.type in SUPPORTED and (role != "token_embd" or tied)
    one, few, many = (dispatch.route(tensor.type, od, id, nt) if multiplied else None for nt in (1, 2, MANY))
    return Shape(
        file, role, tensor.type, od, id, od * id, group.nbytes, len(group.layers), tuple(group.layers),
        block_elements=block, row_blocks=id // block,
        kernel=_name(one, tensor.type), kernel_batch=_name(few, tensor.type), kernel_prefill=_name(many, tensor.type),
        gate=None if one is None else f"{one.type or 'any'} >= {one.min_elements:,}: {one.reason}",
    )  # fmt: skip


def _name(gate: dispatch.Gate | None, type: str) -> str | None:
    return None if gate is None else dispatch.kernel_name(gate, type)


def matmuls(model: Model) -> Counter[tuple[str, int, int]]:
    """(type, od, id) -> how often a decode step multiplies by it where nothing streams.

    Where q, k and v of a layer have biases, one type and one row length, one matmul takes their rows together; an
    output that is tied to the embedding counts as the output.
    """
    joined = dict(_joined(model))
    found: Counter[tuple[str, int, int]] = Counter(joined.values())
    for shape in shapes(model):
        if shape.kernel is not None:
            apart = [n for n in shape.layer_ids if n not in joined] if shape.role in QKV else shape.layer_ids
            found[shape.key] += len(apart) if shape.layers else 1
    return +found


def _joined(model: Model) -> Iterator[tuple[int, tuple[str, int, int]]]:
    """(layer, its one matmul) of the layers whose q, k and v are multiplied together."""
    layers: dict[int, dict[str, Tensor]] = {}
    for tensor in model.tensors:
        layer, role = place(tensor.name)
        if layer is not None and role.removesuffix(".bias") in QKV:
            layers.setdefault(layer, {})[role] = tensor
    for layer, by in layers.items():
        if len(by) == 2 * len(QKV) and len({(by[r].type, by[r].shape[0]) for r in QKV}) == 1:
            yield layer, (by[QKV[0]].type, sum(by[r].rows for r in QKV), by[QKV[0]].shape[0])


def filtered(rows: Iterable[Shape], type: str | None, between: tuple[int, int] | None) -> list[Shape]:
    """Rows of that type whose matrices have lo <= elements < hi: what moving a gate from hi to lo would reroute."""
    lo, hi = between or (0, dispatch.ANY)
    return [r for r in rows if type in (None, r.type) and lo <= r.elements < hi]


def what_if(rows: Sequence[Shape], type: str, new: int, old: int | None = None) -> Reroute:
    """Rows whose kernel at one token changes when the gate of `type` moves to `new` elements.

    It moves from `old`, or from where it is. Where it is at `new` already, from where it was before that: which shapes
    the last change of this constant moved. Raises CensusError for a type that has no such gate.
    """
    gate = _gate(type)
    note = None
    if old is None:
        old = gate.min_elements
        if old == new and gate.was is not None:
            old, note = gate.was, f"{type} is at {new:,} since {gate.date}; before, it was at {gate.was:,}"
    moved = []
    for row in rows:
        if row.type == type and row.kernel is not None:
            before, after = (_kernel(row, gate, constant) for constant in (old, new))
            if before != after:
                moved.append((replace(row, kernel=before), after))
    return Reroute(type, old, new, tuple(moved), note)


def _gate(type: str) -> dispatch.Gate:
    gated = {g.type: g for g in dispatch.GATES if g.type is not None}
    if type not in gated:
        known = ", ".join(sorted(t for t in gated if t))
        raise CensusError(f"--what-if {type}: no gate of the table depends on its size (those that do: {known})")
    return gated[type]


def _kernel(row: Shape, gate: dispatch.Gate, constant: int) -> str:
    moved = replace(gate, min_elements=constant)
    table = tuple(moved if g is gate else g for g in dispatch.GATES)
    return dispatch.kernel_name(dispatch.route(row.type, row.od, row.id, 1, gates=table), row.type)


def elements(text: str) -> int:
    """A count as people write it (4e6, 24_000_000). Raises ValueError for what is no whole number of 0 or more."""
    value = float(text)
    if not math.isfinite(value) or value < 0 or value != int(value):
        raise ValueError(text)
    return int(value)
