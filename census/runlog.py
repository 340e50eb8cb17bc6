"""An engine's own launch log -> the nsys export schema, for machines without a profiler or a GPU.

The log is JSON lines: a head, then `["range", text, start, end]` in the order ranges close and
`["launch", kernel, grid, block, start, end]` in the order launches return; times in ns of one monotonic clock. A host
backend runs its kernels inside the call, so a launch's API call and its execution are the same interval.

What it shares with cuptilog.py, the log of an engine that records its GPU, is here: reading lines, rows of tables.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from census.errors import CensusError
from census.schema import EXPORT_TABLES, NVTX_DOMAIN, NVTX_PUSH_POP

PRODUCT = "launch-census in-process recorder (the device is the CPU; launches as the engine logged them)"
SCHEMA = "3.20.3"
LAUNCH_CALL = "host_launch"  # stands where a CUDA trace has cudaLaunchKernel
DOMAIN_ID = 1

Row = tuple[Any, ...]
Tables = dict[str, list[Row]]


@dataclass(frozen=True)
class Head:
    """Of one thread of one process: a log's first line."""

    pid: int
    tid: int
    device: str

    @property
    def global_pid(self) -> int:
        return self.pid << 24

    def global_tid(self, tid: int) -> int:
        """nsys' serialized id of a thread of this process."""
        return self.pid << 24 | tid & 0xFFFFFF


@dataclass(frozen=True)
class Range:
    text: str
    start: int  # ns
    end: int


@dataclass(frozen=True)
class Launch:
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    start: int  # ns
    end: int


@dataclass(frozen=True)
class Log:
    head: Head
    ranges: tuple[Range, ...]
    launches: tuple[Launch, ...]


class Texts(dict[str, int]):
    """The string table: a text's id is made when it is first asked for."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]

    def rows(self) -> list[Row]:
        return [(i, text) for text, i in self.items()]


def read_lines(path: Path, kind: str) -> tuple[Head, list[list[Any]]]:
    """Head and lines of a log; a last line cut short by a killed engine is left out. Raises CensusError otherwise."""
    try:
        head, *lines = path.read_text(encoding="utf-8").split("\n")
        first = json.loads(head)
        if first.get("log") != kind or first.get("version") != 1:
            raise ValueError
        return Head(first["pid"], first["tid"], first["device"]), [json.loads(line) for line in lines[:-1]]
    except (OSError, ValueError, AttributeError, KeyError):
        raise CensusError(f"{path}: not a log of kind {kind}, version 1; was it written by minfer?") from None


def ranges_of(lines: Iterable[Sequence[Any]]) -> tuple[Range, ...]:
    """The ranges among a log's lines."""
    return tuple(Range(*line[1:4]) for line in lines if line[0] == "range")


def read_log(path: Path) -> Log:
    """Read a launch log. Raises CensusError for another file."""
    head, lines = read_lines(path, "minfer-launches")
    launches = (Launch(x[1], tuple(x[2]), tuple(x[3]), x[4], x[5]) for x in lines if x[0] == "launch")
    return Log(head, ranges_of(lines), tuple(launches))


def export_tables(log: Log, version: str) -> Tables:
    """Rows for `trace.write_export`, times counted from the first event. `version`: of this recorder."""
    zero = min([x.start for x in log.ranges] + [x.start for x in log.launches], default=0)
    texts, tid = Texts(), log.head.global_tid(log.head.tid)
    tables = {
        "META_DATA_EXPORT": meta(PRODUCT, version),
        "TARGET_INFO_GPU": [row("TARGET_INFO_GPU", vmId=0, id=0, name=log.head.device, isDiscrete=0)],
        "TARGET_INFO_CUDA_DEVICE": [(0, 0, log.head.pid)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [_kernel(i, x, texts, log.head, zero) for i, x in enumerate(log.launches)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            api(x.start - zero, x.end - zero, tid, i + 1, texts[LAUNCH_CALL]) for i, x in enumerate(log.launches)
        ],
        "NVTX_EVENTS": nvtx(log.head, log.ranges, texts, zero),
    }
    return tables | {"StringIds": texts.rows()}


def meta(product: str, version: str) -> list[Row]:
    """Who made the export, in which schema."""
    major, minor, micro = SCHEMA.split(".")
    parts = {"": SCHEMA, "_MAJOR": major, "_MINOR": minor, "_MICRO": micro}
    rows = [("EXPORT_PRODUCT_NAME", product), ("EXPORT_PRODUCT_VERSION", version)]
    return [*rows, *((f"EXPORT_SCHEMA_VERSION{k}", v) for k, v in parts.items())]


def api(start: int, end: int, tid: int, corr: int, name: int, returned: int = 0) -> Row:
    """An API call. `tid`: global; `name`: a text's id."""
    return row("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, eventClass=0, globalTid=tid, correlationId=corr,
               nameId=name, returnValue=returned)  # fmt: skip


def nvtx(head: Head, ranges: Iterable[Range], texts: Texts, zero: int) -> list[Row]:
    """The domain `minfer` and its push/pop ranges, all of the head's thread."""
    common = {"globalTid": head.global_tid(head.tid), "domainId": DOMAIN_ID}
    domain = row("NVTX_EVENTS", start=0, eventType=NVTX_DOMAIN, textId=texts["minfer"], **common)
    return [domain, *(
        row("NVTX_EVENTS", start=x.start - zero, end=x.end - zero, eventType=NVTX_PUSH_POP[0], textId=texts[x.text],
            **common)
        for x in ranges
    )]  # fmt: skip


def shape(grid: Iterable[int], block: Iterable[int]) -> dict[str, int]:
    """The columns of a launch's grid and block."""
    names = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    return dict(zip(names, (*grid, *block), strict=True))


def row(table: str, **values: Any) -> Row:
    """A row of an export table from the columns that are known; the others are null."""
    return tuple(values.get(column) for column, _ in EXPORT_TABLES[table])


def _kernel(index: int, x: Launch, texts: Texts, head: Head, zero: int) -> Row:
    name = texts[x.kernel]
    # columns of a GPU that a host kernel has no value for are 0 where the schema forbids null
    return row(
        "CUPTI_ACTIVITY_KIND_KERNEL", start=x.start - zero, end=x.end - zero, deviceId=0, contextId=1, streamId=0,
        correlationId=index + 1, globalPid=head.global_pid, demangledName=name, shortName=name, registersPerThread=0,
        staticSharedMemory=0, dynamicSharedMemory=0, localMemoryPerThread=0, localMemoryTotal=0, gridId=index + 1,
        **shape(x.grid, x.block),
    )  # fmt: skip
