"""An engine's own launch log -> the nsys export schema, for machines without a profiler or a GPU.

The log is JSON lines: a head, then `["range", text, start, end]` in the order ranges close and
`["launch", kernel, grid, block, start, end]` in the order launches return; times in ns of one monotonic clock. A host
backend runs its kernels inside the call, so a launch's API call and its execution are the same interval.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from census.errors import CensusError
from census.schema import EXPORT_TABLES, NVTX_DOMAIN, NVTX_PUSH_POP

PRODUCT = "launch-census in-process recorder (the device is the CPU; launches as the engine logged them)"
SCHEMA = "3.20.3"
LAUNCH_CALL = "host_launch"  # stands where a CUDA trace has cudaLaunchKernel
DOMAIN_ID = 1


@dataclass(frozen=True)
class Launch:
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    start: int  # ns
    end: int


@dataclass(frozen=True)
class Log:
    pid: int
    tid: int
    device: str
    ranges: tuple[tuple[str, int, int], ...]  # text, start, end
    launches: tuple[Launch, ...]


def read_log(path: Path) -> Log:
    """Read a launch log; a last line cut short by a killed engine is left out. Raises CensusError for another file."""
    try:
        head, *lines = path.read_text(encoding="utf-8").split("\n")
        first = json.loads(head)
        if first.get("log") != "minfer-launches" or first.get("version") != 1:
            raise ValueError
    except (OSError, ValueError, AttributeError):
        raise CensusError(f"{path}: not a launch log of version 1; was it written by minfer?") from None
    rows = [json.loads(line) for line in lines[:-1]]
    ranges = tuple((r[1], r[2], r[3]) for r in rows if r[0] == "range")
    launches = tuple(Launch(r[1], tuple(r[2]), tuple(r[3]), r[4], r[5]) for r in rows if r[0] == "launch")
    return Log(first["pid"], first["tid"], first["device"], ranges, launches)


def export_tables(log: Log, version: str) -> dict[str, list[tuple[Any, ...]]]:
    """Rows for `trace.write_export`, times counted from the first event. `version`: of this recorder."""
    starts = [r[1] for r in log.ranges] + [x.start for x in log.launches]
    zero = min(starts, default=0)
    texts = {text: i for i, text in enumerate(_texts(log))}
    tid = log.pid << 24 | log.tid & 0xFFFFFF
    return {
        "META_DATA_EXPORT": _meta(version),
        "StringIds": [(i, text) for text, i in texts.items()],
        "TARGET_INFO_GPU": [_row("TARGET_INFO_GPU", vmId=0, id=0, name=log.device, isDiscrete=0)],
        "TARGET_INFO_CUDA_DEVICE": [(0, 0, log.pid)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [_kernel(i, x, texts, log.pid, zero) for i, x in enumerate(log.launches)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            (x.start - zero, x.end - zero, 0, tid, i + 1, texts[LAUNCH_CALL], 0, None)
            for i, x in enumerate(log.launches)
        ],
        "NVTX_EVENTS": [_nvtx(tid, texts, 0, None, NVTX_DOMAIN, "minfer")]
        + [_nvtx(tid, texts, s - zero, e - zero, NVTX_PUSH_POP[0], text) for text, s, e in log.ranges],
    }


def _texts(log: Log) -> Iterable[str]:
    ordered = [LAUNCH_CALL, "minfer", *(x.kernel for x in log.launches), *(r[0] for r in log.ranges)]
    return dict.fromkeys(ordered)


def _meta(version: str) -> list[tuple[Any, ...]]:
    major, minor, micro = SCHEMA.split(".")
    parts = {"": SCHEMA, "_MAJOR": major, "_MINOR": minor, "_MICRO": micro}
    rows = [("EXPORT_PRODUCT_NAME", PRODUCT), ("EXPORT_PRODUCT_VERSION", version)]
    return [*rows, *((f"EXPORT_SCHEMA_VERSION{k}", v) for k, v in parts.items())]


def _kernel(index: int, x: Launch, texts: dict[str, int], pid: int, zero: int) -> tuple[Any, ...]:
    name = texts[x.kernel]
    shape = dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), x.grid + x.block, strict=True))
    # columns of a GPU that a host kernel has no value for are 0 where the schema forbids null
    return _row(
        "CUPTI_ACTIVITY_KIND_KERNEL", start=x.start - zero, end=x.end - zero, deviceId=0, contextId=1, streamId=0,
        correlationId=index + 1, globalPid=pid << 24, demangledName=name, shortName=name, registersPerThread=0,
        staticSharedMemory=0, dynamicSharedMemory=0, localMemoryPerThread=0, localMemoryTotal=0, gridId=index + 1,
        **shape,
    )  # fmt: skip


def _nvtx(tid: int, texts: dict[str, int], start: int, end: int | None, kind: int, text: str) -> tuple[Any, ...]:
    return _row(
        "NVTX_EVENTS", start=start, end=end, eventType=kind, globalTid=tid, textId=texts[text], domainId=DOMAIN_ID
    )


def _row(table: str, **values: Any) -> tuple[Any, ...]:
    return tuple(values.get(column) for column, _ in EXPORT_TABLES[table])
