"""What a piece of device work is charged to: its kernel, shape, stream, or the NVTX range it was launched from.

A replayed kernel was launched once, while its graph was captured: its layer and op are the ranges open at the
birth of its node (followed back through originalGraphNodeId to the captured one). Its step is the replay's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from census import ranges
from census import trace as tr
from census.activity import CONCEPTS, KERNEL, Activity, factor, family_name, work_name
from census.errors import CensusError
from census.launches import Launches, moments
from census.ranges import NONE, Ranges
from census.steps import step_ranges
from census.trace import Ints, Trace

_NO_RANGE = "(no range)"


@dataclass(frozen=True)
class Keys:
    """A code per piece of work and the text of each code."""

    code: NDArray[np.int64]
    text: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def check(by: str) -> None:
    """Raise CensusError unless `by` is a key a ledger can be grouped by."""
    if by not in KEYS:
        raise CensusError(f"--by {by}: unknown key; allowed are {', '.join(KEYS)}")


def keys(trace: Trace, act: Activity, launches: Launches, spans: Ranges, by: str) -> Keys:
    """Key every piece of work by one of KEYS."""
    return KEYS[by](trace, act, launches, spans)


def _kernel(trace: Trace, act: Activity, launches: Launches, spans: Ranges) -> Keys:
    """Kernel name with its template arguments; copies and sets by their kind."""
    # Kind in the low two bits: a copy kind, a graph id and a string id may be the same number.
    distinct, code = factor((act.name.astype(np.int64) << 2) | act.kind)
    text = tr.strings(trace, (distinct[(distinct & 3) == KERNEL] >> 2).tolist())
    return _merge(code, [work_name(trace, int(d) & 3, int(d) >> 2, text) for d in distinct])


def _merge(code: NDArray[np.int64], names: list[str]) -> Keys:
    """Codes with equal text become one (two string ids may hold one name)."""
    text = tuple(dict.fromkeys(names))
    at = {name: i for i, name in enumerate(text)}
    return Keys(np.array([at[name] for name in names], np.int64)[code], text)


def _family(trace: Trace, act: Activity, launches: Launches, spans: Ranges) -> Keys:
    kernels = _kernel(trace, act, launches, spans)
    return _merge(kernels.code, [name if name.startswith("[") else family_name(name) for name in kernels.text])


def _shape(trace: Trace, act: Activity, launches: Launches, spans: Ranges) -> Keys:
    """Kernel name with grid and block."""
    kernels = _kernel(trace, act, launches, spans)
    shape = tr.columns(trace, "kernels", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
    is_kernel = act.kind == KERNEL
    table = np.zeros((len(act), 7), np.int64)  # kernel, grid x y z, block x y z; all 0 for copies and sets
    table[:, 0] = kernels.code
    table[is_kernel, 1:] = np.stack(list(shape.values()), axis=1)[act.source[is_kernel]]
    distinct, code = np.unique(table, axis=0, return_inverse=True)
    names = [f"{kernels.text[k]} grid {gx}x{gy}x{gz} block {bx}x{by}x{bz}" if gx else kernels.text[k]
             for k, gx, gy, gz, bx, by, bz in distinct.tolist()]
    return _merge(code.reshape(-1), names)


def _stream(trace: Trace, act: Activity, launches: Launches, spans: Ranges) -> Keys:
    stream = np.zeros(len(act), np.int64)  # read here only: no other ledger needs it
    for kind, concept in CONCEPTS.items():
        mine = act.kind == kind
        stream[mine] = tr.columns(trace, concept, "stream")["stream"][act.source[mine]]
    distinct, code = factor((act.device.astype(np.int64) << 32) | (stream & 0xFFFFFFFF))
    return Keys(code, tuple(f"device {int(d) >> 32} stream {int(d) & 0xFFFFFFFF}" for d in distinct))


def _layer(trace: Trace, act: Activity, launches: Launches, spans: Ranges) -> Keys:
    found = [ranges.layer_number(text) for text in spans.text]
    wanted = np.array([f is not None for f in found], np.bool_)
    return _by_range(trace, act, launches, spans, wanted, [f"layer {f}" for f in found], "(no layer)")


def _op(trace: Trace, act: Activity, launches: Launches, spans: Ranges) -> Keys:
    """The innermost range that is neither a layer nor a step."""
    step, _ = step_ranges(spans, None)
    # `layer 3` is a layer and nothing else; `layers.3.mlp` names a layer too, and is an op inside it.
    layer = np.array([ranges.layer_number(text) == text.split()[-1] if text else True for text in spans.text], np.bool_)
    return _by_range(trace, act, launches, spans, ~step & ~layer, list(spans.text), "(no op)")


def _range(trace: Trace, act: Activity, launches: Launches, spans: Ranges) -> Keys:
    """The innermost range of any kind; the running number of a step is left out."""
    step, _ = step_ranges(spans, None)
    names = [text.rstrip("0123456789") + "#" if s else text for text, s in zip(spans.text, step, strict=True)]
    return _by_range(trace, act, launches, spans, np.ones(len(spans), np.bool_), names, _NO_RANGE)


def _by_range(trace: Trace, act: Activity, launches: Launches, spans: Ranges, wanted: NDArray[np.bool_],
              names: list[str], nothing: str) -> Keys:
    near = ranges.nearest_where(spans, wanted)
    found = ranges.innermost(spans, *moments(launches), near)
    warnings = _from_births(trace, act, spans, near, found)
    label = np.array([ranges.label(n) for n in names] + [nothing], object)
    distinct, code = factor(np.where(found == NONE, len(spans), found))
    merged = _merge(code, [str(label[d]) for d in distinct])
    return Keys(merged.code, merged.text, warnings)


def _from_births(trace: Trace, act: Activity, spans: Ranges, near: NDArray, found: NDArray) -> tuple[str, ...]:
    """Overwrite `found` for replayed work with the range at its node's birth; says how many have no birth."""
    replayed = np.flatnonzero(act.node != 0)
    if not len(replayed) or not len(spans):
        return ()
    # Node ids repeat in every replay, and between processes: look each (node, process) up once.
    nodes, code = factor(act.node[replayed])
    pids, owner = factor(act.pid[replayed])
    distinct, pair = factor(code * len(pids) + owner)
    births = _births(trace)
    tid, time = np.full(len(distinct), -1, np.int64), np.zeros(len(distinct), np.int64)
    for i, d in enumerate(distinct.tolist()):
        tid[i], time[i] = births.get((int(pids[d % len(pids)]), int(nodes[d // len(pids)])), (-1, 0))
    at_birth = ranges.innermost(spans, tid, time, near)
    found[replayed] = np.where(tid[pair] >= 0, at_birth[pair], found[replayed])
    lost = int((tid[pair] < 0).sum())
    return (f"{lost} replayed launches have no recorded node birth; charged to the range of their replay",) if lost \
        else ()


def _births(trace: Trace) -> dict[tuple[int, int], tuple[int, int]]:
    """(process, node) -> (thread, ns) of the launch call that made it, followed back to the captured node."""
    rows: dict[str, Ints] = tr.columns(trace, "births", "time", "tid", "node", "origin")
    own = {}
    for time, tid, node, origin in zip(*(rows[c].tolist() for c in ("time", "tid", "node", "origin")), strict=True):
        own[(tid >> 24, node)] = (tid, time, origin)

    def first(key: tuple[int, int]) -> tuple[int, int]:
        seen = {key}  # a damaged export may hold a circle
        while (origin := (key[0], own[key][2])) in own and origin not in seen:
            seen.add(origin)
            key = origin
        return own[key][:2]

    return {key: first(key) for key in own}


# A new way to group a ledger is a function above and a line here; `--by`, its help and its errors read this table.
KEYS: dict[str, Callable[[Trace, Activity, Launches, Ranges], Keys]] = {
    "kernel": _kernel, "family": _family, "shape": _shape, "op": _op, "layer": _layer, "range": _range,
    "stream": _stream,
}
