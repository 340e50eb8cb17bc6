"""The log of an engine that recorded its own GPU through CUPTI -> the nsys export schema.

JSON lines: a head, the engine's ranges as in runlog.py, and what CUPTI saw, one clock for all of them:

    ["kernel", mangled name, grid, block, start, end, *where, registers, static, dynamic, local bytes]
    ["memcpy", copy kind, bytes, start, end, *where, source kind, destination kind]
    ["memset", value, bytes, start, end, *where, memory kind]
    ["api", name, start, end, thread, correlation id, returned]
    ["node", time, thread, node, original]      ["note", text]      ["end", records dropped]

`where` is device, context, stream, correlation id, graph node id. A replayed kernel finds its layer and op as in an
nsys trace: through the birth of its node, followed from the clone back to the captured node.
"""

import ctypes
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from census.activity import family_name
from census.errors import CensusError
from census.runlog import Head, Row, Tables, Texts, api, meta, nvtx, ranges_of, read_lines, row, shape

PRODUCT = "launch-census in-process recorder (CUPTI)"
MODE = ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node")
NODE_CREATION = 77  # nsys' event class
WARNING, TARGET_TIME, INJECTION = 2, 1, 1  # of nsys' diagnostics: severity, timestamp type, source
_WHERE = ("deviceId", "contextId", "streamId", "correlationId", "graphNodeId")
_STARTS = {"range": 2, "kernel": 4, "memcpy": 3, "memset": 3, "api": 2, "node": 1}  # place of the time in a line


def export_tables(path: Path, version: str) -> Tables:
    """Rows for `trace.write_export`, times counted from the first event. Raises CensusError for another file."""
    head, lines = read_lines(path, "minfer-cupti")
    zero = min((x[_STARTS[x[0]]] for x in lines if x[0] in _STARTS), default=0)
    texts, made = Texts(), dict[str, list[Row]]()
    devices = sorted({_where(x)["deviceId"] for x in lines if x[0] in ("kernel", "memcpy", "memset")}) or [0]
    for line in lines:
        if line[0] in _ROWS:
            table, make = _ROWS[line[0]]
            made.setdefault(table, []).append(make(line, head, texts, zero))
    made["NVTX_EVENTS"] = nvtx(head, ranges_of(lines), texts, zero)
    return made | {
        "META_DATA_EXPORT": meta(PRODUCT, version),
        "META_DATA_CAPTURE": [MODE],
        # the log names one device, the one that the engine ran on; the driver numbers it
        "TARGET_INFO_GPU": [
            row("TARGET_INFO_GPU", vmId=0, id=i, cuDevice=i, name=head.device, isDiscrete=1) for i in devices
        ],
        "TARGET_INFO_CUDA_DEVICE": [(i, i, head.pid) for i in devices],
        "DIAGNOSTIC_EVENT": [
            row("DIAGNOSTIC_EVENT", timestamp=0, timestampType=TARGET_TIME, source=INJECTION, severity=WARNING,
                text=text, globalPid=head.global_pid)
            for text in _complaints(lines)
        ],
        "StringIds": texts.rows(),
    }  # fmt: skip


def _complaints(lines: list[list[Any]]) -> Iterator[str]:
    yield from (line[1] for line in lines if line[0] == "note")
    end = next((line for line in lines if line[0] == "end"), None)
    if end is None:
        yield "the log has no end: the engine was killed, and CUPTI's last buffers of records are lost"
    elif end[1]:
        yield f"{end[1]} records dropped: CUPTI had no buffer for them"


def _where(line: list[Any]) -> dict[str, int]:
    first = 6 if line[0] == "kernel" else 5
    return dict(zip(_WHERE, line[first : first + 5], strict=True))


def _common(line: list[Any], head: Head, zero: int) -> dict[str, int | None]:
    """Columns of every piece of device work."""
    where = _where(line)
    start = _STARTS[line[0]]
    times = {"start": line[start] - zero, "end": line[start + 1] - zero}
    return {**where, **times, "graphNodeId": where["graphNodeId"] or None, "globalPid": head.global_pid}


def _kernel(line: list[Any], head: Head, texts: Texts, zero: int) -> Row:
    _, mangled, grid, block, *_ = line
    registers, static, dynamic, local = line[11:15]
    name = demangled(mangled)
    return row(
        "CUPTI_ACTIVITY_KIND_KERNEL", **_common(line, head, zero), demangledName=texts[name],
        shortName=texts[_short(name)], mangledName=texts[mangled], registersPerThread=registers,
        staticSharedMemory=static, dynamicSharedMemory=dynamic, localMemoryPerThread=local, localMemoryTotal=0,
        gridId=0, **shape(grid, block),
    )  # fmt: skip


def _memcpy(line: list[Any], head: Head, texts: Texts, zero: int) -> Row:
    _, kind, size, *_ = line
    return row("CUPTI_ACTIVITY_KIND_MEMCPY", **_common(line, head, zero), copyKind=kind, bytes=size, srcKind=line[10],
               dstKind=line[11])  # fmt: skip


def _memset(line: list[Any], head: Head, texts: Texts, zero: int) -> Row:
    _, value, size, *_ = line
    return row("CUPTI_ACTIVITY_KIND_MEMSET", **_common(line, head, zero), value=value, bytes=size, memKind=line[10])


def _api(line: list[Any], head: Head, texts: Texts, zero: int) -> Row:
    _, name, start, end, tid, corr, returned = line
    return api(start - zero, end - zero, head.global_tid(tid), corr, texts[name], returned)


def _node(line: list[Any], head: Head, texts: Texts, zero: int) -> Row:
    _, time, tid, node, original = line
    return row("CUDA_GRAPH_NODE_EVENTS", start=time - zero, end=time - zero, eventClass=NODE_CREATION,
               globalTid=head.global_tid(tid), nameId=texts["Graph Node Creation"], graphNodeId=node,
               originalGraphNodeId=original or None)  # fmt: skip


_ROWS: dict[str, tuple[str, Callable[[list[Any], Head, Texts, int], Row]]] = {
    "kernel": ("CUPTI_ACTIVITY_KIND_KERNEL", _kernel),
    "memcpy": ("CUPTI_ACTIVITY_KIND_MEMCPY", _memcpy),
    "memset": ("CUPTI_ACTIVITY_KIND_MEMSET", _memset),
    "api": ("CUPTI_ACTIVITY_KIND_RUNTIME", _api),
    "node": ("CUDA_GRAPH_NODE_EVENTS", _node),
}


def require_work(path: Path, tables: Tables) -> None:
    """Raise CensusError where CUPTI recorded no kernel: it was switched on for a run that used no GPU."""
    if not tables.get("CUPTI_ACTIVITY_KIND_KERNEL"):
        raise CensusError(f"{path}: CUPTI recorded no kernel; did the engine run on the GPU?")


@functools.cache
def demangled(name: str) -> str:
    """A C++ symbol as nsys writes it; a name that is none, or a machine without libstdc++, leaves it as it is."""
    if not name.startswith("_Z"):
        return name
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return name
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int(-1)
    text = demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value or not text:
        return name
    try:
        return ctypes.string_at(text).decode("utf-8", "replace")
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        free(text)


def _short(name: str) -> str:
    """The function's own name: no return type, namespace, template or parameters."""
    return family_name(name).split("(")[0].split("::")[-1].split(" ")[-1] or name
