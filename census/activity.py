"""All work of a device on one time line, and what each piece of it adds: exposed time and the gap before it.

A duration is not time: a kernel launched early (programmatic dependent launch) or on another stream waits inside
its own duration. Exposed time is what a launch adds to the union of everything the device does, so exposed times
plus gaps are the wall clock, exactly, in integer nanoseconds.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from census import trace as tr
from census.errors import CensusError
from census.schema import COPY_KINDS
from census.trace import Ints, Trace

KERNEL, COPY, SET, REPLAY = range(4)  # REPLAY: a whole graph, kernels inside not visible
CONCEPTS = {KERNEL: "kernels", COPY: "copies", SET: "sets", REPLAY: "replays"}
# What the `name` column means per kind: a string id, a copy kind, nothing, a graph id.
_NAME_COLUMN = {KERNEL: "name", COPY: "kind", SET: "bytes", REPLAY: "graph"}
_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Activity:
    """Device work sorted by device, then start. All arrays have one entry per piece of work; times in ns."""

    start: Ints
    end: Ints
    device: NDArray[np.int32]
    pid: Ints  # nsys' serialized process id, without its thread bits
    corr: Ints  # -1 unknown
    name: NDArray[np.int32]  # see _NAME_COLUMN
    node: Ints  # graph node id, 0 when launched eagerly
    kind: NDArray[np.int8]
    source: NDArray[np.int32]  # position in the columns of its concept, as `trace.columns` returns them
    exposed: Ints
    gap: Ints  # idle time of the device just before this piece
    reach: Ints  # latest end on the device up to and including this piece

    def __len__(self) -> int:
        return len(self.start)


def load(trace: Trace) -> Activity:
    """Read kernels, copies, sets and whole-graph replays. Raises CensusError when the device did nothing."""
    parts = [_read(trace, kind) for kind in CONCEPTS]
    cols = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    del parts
    _to_machine_devices(trace, cols)
    if not np.isin(cols["kind"], (KERNEL, REPLAY)).any():
        raise CensusError(f"{trace.path}: holds no kernels; {_why_no_kernels(trace)}")
    order = _order(cols["device"], cols["start"])
    if order is not None:
        for key in cols:  # one column at a time: five million rows are held once, not twice
            cols[key] = cols[key][order]
    exposed, gap, reach = _expose(cols["device"], cols["start"], cols["end"])
    return Activity(**cols, exposed=exposed, gap=gap, reach=reach)


def _read(trace: Trace, kind: int) -> dict[str, NDArray]:
    has_node = kind != REPLAY
    names = ["start", "end", "device", "pid", "corr", _NAME_COLUMN[kind], *(["node"] if has_node else [])]
    got = tr.columns(trace, CONCEPTS[kind], *names)
    n = len(got["start"])
    cols: dict[str, NDArray] = {
        "start": got["start"], "end": got["end"],
        "device": got["device"].astype(np.int32), "pid": got["pid"] >> 24, "corr": got["corr"],
        "name": np.zeros(n, np.int32) if kind == SET else got[_NAME_COLUMN[kind]].astype(np.int32),
        "node": got["node"] if has_node else np.zeros(n, np.int64),
        "kind": np.full(n, kind, np.int8), "source": np.arange(n, dtype=np.int32),
    }
    return _drop_untimed(trace, cols) if kind == REPLAY else cols


def _drop_untimed(trace: Trace, cols: dict[str, NDArray]) -> dict[str, NDArray]:
    """CUPTI writes 0, 0 for a replay it could not time, and INT_MAX as the device of one that starts on the host."""
    timed = (cols["start"] != 0) | (cols["end"] != 0)
    if not timed.all():
        trace.warnings.append(f"{int((~timed).sum())} graph replays carry no time and are left out")
    host_first = cols["device"] == _INT_MAX
    if host_first.any():
        trace.warnings.append(f"{int(host_first.sum())} graph replays begin on the host; counted on device 0")
        cols["device"][host_first] = 0
    return {key: col[timed] for key, col in cols.items()}


def _to_machine_devices(trace: Trace, cols: dict[str, NDArray]) -> None:
    """CUDA numbers the GPUs of each process from 0: turn the numbers into the machine's, where the export has them."""
    table = tr.columns(trace, "cuda_devices", "gpu", "cuda", "pid")
    process = cols["pid"] & 0xFFFFFF
    known = np.zeros(len(process), np.bool_)
    device = cols["device"].copy()
    for gpu, cuda, pid in zip(*(table[c].tolist() for c in ("gpu", "cuda", "pid")), strict=True):
        mine = (process == pid) & (cols["device"] == cuda)
        device[mine], known[mine] = gpu, True
    if known.all():
        cols["device"] = device
        return
    pairs, _ = factor((cols["pid"] << 8) | (cols["device"] & 0xFF))
    shared = len(pairs) - len(np.unique(cols["device"]))
    if shared:
        trace.warnings.append("several processes use one device number and the export does not say whether it is one "
                              "GPU: taken for one")


def _order(device: NDArray, start: Ints) -> NDArray | None:
    """The permutation that sorts by device, then start; None when the rows are already in that order."""
    if (device[1:] == device[:-1]).all():
        return None if (start[1:] >= start[:-1]).all() else np.argsort(start, kind="stable")
    return np.lexsort((start, device))


def _expose(device: NDArray, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Exposed ns, gap ns before, and running latest end, device by device."""
    exposed, gap, reach = np.zeros_like(start), np.zeros_like(start), np.empty_like(start)
    cuts = np.flatnonzero(np.diff(device, prepend=device[0] - 1, append=device[-1] + 1))
    for lo, hi in pairwise(cuts):
        np.maximum.accumulate(end[lo:hi], out=reach[lo:hi])
        before = reach[lo : hi - 1]
        exposed[lo] = max(0, end[lo] - start[lo])
        np.clip(end[lo + 1 : hi] - np.maximum(start[lo + 1 : hi], before), 0, None, out=exposed[lo + 1 : hi])
        np.clip(start[lo + 1 : hi] - before, 0, None, out=gap[lo + 1 : hi])
    return exposed, gap, reach


def factor(values: NDArray) -> tuple[NDArray, NDArray[np.int64]]:
    """Distinct values, sorted, and the index of each value among them.

    Small numbers go through a table and long runs through their heads: five million rows are not sorted.
    """
    low = int(values.min()) if len(values) else 0
    span = int(values.max()) - low + 1 if len(values) else 0
    if span == 1:
        return values[:1], np.zeros(len(values), np.int64)
    if 0 < span <= len(values) + (1 << 16):
        offset = (values - low).astype(np.int64)
        present = np.zeros(span, np.bool_)
        present[offset] = True
        return np.flatnonzero(present) + low, (np.cumsum(present) - 1)[offset]
    heads = run_heads(values)
    distinct, code = np.unique(values[heads], return_inverse=True)
    return distinct, np.repeat(code.reshape(-1), np.diff(heads, append=len(values)))


def run_heads(*columns: NDArray) -> NDArray[np.int64]:
    """Where any column differs from the row before; row 0 is always among them."""
    head = np.zeros(len(columns[0]), np.bool_)
    head[:1] = True
    for values in columns:
        head[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(head)


def _why_no_kernels(trace: Trace) -> str:
    held = ", ".join(f"{n} {c}" for c, n in trace.rows.items() if c in ("api", "nvtx", "copies", "sets"))
    return (f"it has {held}; " if held else "") + "record with `nsys profile -t cuda,nvtx --cuda-graph-trace=node`"


def kernel_name(demangled: str) -> str:
    """A kernel's name without return type and argument list: `void f<(int)1>(const T *)` -> `f<(int)1>`."""
    text = demangled.removeprefix("void ")
    depth = 0
    for i, char in enumerate(text):
        if char == "<":
            depth += 1
        elif char == ">":
            depth = max(0, depth - 1)
        elif char == "(" and depth == 0 and i and not text.startswith("(anonymous namespace)", i):
            return text[:i]
    return text


def family_name(name: str) -> str:
    """A kernel name without template arguments: `f<(int)1>` -> `f`."""
    out, depth = [], 0
    for char in name.replace("<unnamed>", "(unnamed)"):
        depth += char == "<"
        if not depth:
            out.append(char)
        depth = max(0, depth - (char == ">"))
    return "".join(out)


def work_name(trace: Trace, kind: int, name: int, text: dict[int, str]) -> str:
    """What a ledger calls a piece of work: the kernel's name, `[memcpy host to device]`, `[graph 2]`."""
    if kind == KERNEL:
        return kernel_name(text.get(name, f"unnamed kernel {name}"))
    if kind == COPY:
        return f"[{COPY_KINDS.get(name, f'memcpy kind {name}')}]"
    return "[memset]" if kind == SET else f"[graph {name}: kernels inside not visible]"
