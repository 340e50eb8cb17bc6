"""The recorded traces, unpacked once per test run, and tiny hand-built ones. Tests hold their own SQL."""

import atexit
import gzip
import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data"
PUBLIC = Path(__file__).parents[3] / "shared" / "data" / "public"
_TEMP = Path(tempfile.mkdtemp(prefix="census-tests-"))
atexit.register(shutil.rmtree, _TEMP, ignore_errors=True)

OURS = (
    "llamacpp-qwen2-14b-h200", "llamacpp-qwen2-14b-h200-nofusion", "llamacpp-qwen2-14b-h200-wholegraph",
    "probe-nsys2025.3-graphnodes", "probe-nsys2023.4-graphnodes", "probe-nsys2025.3-wholegraph",
)
THEIRS = (
    "llm-forward-x10-a100", "llm-forward-nvtx-a100", "compiled-wholegraph-a100", "tiny-known-answer",
    "empty-tables-2022", "two-processes", "oldest-no-metadata",
)
WINDOW = DATA / "window-llamacpp-fusion-14b-h200.json"
BENCH = DATA / "llama-bench-qwen2-14b-h200.json"


def trace(name: str) -> Path:
    """A recorded trace as a plain sqlite file; skips the test, visibly, where a public one is not there."""
    packed = (DATA if name in OURS else PUBLIC) / f"{name}.sqlite.gz"
    if not packed.exists():
        pytest.skip(f"{packed} is not on this machine: public traces stay outside the repository")
    return _unpack(packed)


@cache
def _unpack(packed: Path) -> Path:
    out = _TEMP / packed.name.removesuffix(".gz")
    with gzip.open(packed) as src, out.open("wb") as dst:
        shutil.copyfileobj(src, dst)
    return out


def sql(path: Path, query: str) -> list[tuple]:
    """Rows of a query of the test's own."""
    with closing(sqlite3.connect(path)) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return db.execute(query).fetchall()


def change(path: Path, *statements: str) -> Path:
    """Run statements on a file that the test owns."""
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)
    return path


PID = 7 << 24  # a serialized process id, as nsys writes it
TID = PID | 5  # a thread of it


def build(path: Path, *, kernels=(), api=(), nvtx=(), births=(), copies=(), replays=(), names=()) -> Path:
    """A hand-built export.

    kernels (start, end, device, stream, correlation, name, node, gridX); api (start, end, correlation, name);
    nvtx (start, end, type, text, domain); births (time, node, origin); copies (start, end, correlation, kind);
    replays (start, end, correlation, graph). Names are strings, made into ids here.
    """
    used = [*names, *(k[5] for k in kernels), *(a[3] for a in api)]
    ids = {name: i + 1 for i, name in enumerate(dict.fromkeys(used))}
    tables = {
        "StringIds": ("id INTEGER PRIMARY KEY, value TEXT", [(i, n) for n, i in ids.items()]),
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            "start, end, deviceId, streamId, correlationId, globalPid, demangledName, graphNodeId, gridX, gridY, gridZ,"
            " blockX, blockY, blockZ",
            [(s, e, d, st, c, PID, ids[n], node, g, 1, 1, 32, 1, 1) for s, e, d, st, c, n, node, g in kernels]),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("start, end, globalTid, correlationId, nameId",
                                        [(s, e, TID, c, ids[n]) for s, e, c, n in api]),
        "NVTX_EVENTS": ("start, end, eventType, text, domainId, globalTid, endGlobalTid, textId",
                        [(*row, TID, None, None) for row in nvtx]),
        "CUDA_GRAPH_NODE_EVENTS": ("start, globalTid, graphNodeId, originalGraphNodeId",
                                   [(t, TID, n, o) for t, n, o in births]),
        "CUPTI_ACTIVITY_KIND_MEMCPY": ("start, end, deviceId, streamId, correlationId, globalPid, copyKind, bytes",
                                       [(s, e, 0, 1, c, PID, k, 8) for s, e, c, k in copies]),
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("start, end, deviceId, streamId, correlationId, globalPid, graphId",
                                            [(s, e, 0, 1, c, PID, g) for s, e, c, g in replays]),
    }
    with closing(sqlite3.connect(path)) as db, db:
        for table, (columns, rows) in tables.items():
            if rows:
                db.execute(f"CREATE TABLE {table} ({columns})")
                db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    return path


def kernel(start: int, end: int, *, device=0, stream=1, corr=-1, name="k", node=None, grid=1) -> tuple:
    """A kernel row for `build`, times in ns."""
    return (start, end, device, stream, corr, name, node, grid)
