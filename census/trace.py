"""Open a recorded trace: any nsys sqlite export becomes one TEMP view per concept, read into numpy columns.

The only module that speaks SQL. It opens read-only, takes text that is not UTF-8, never trusts row order or the
presence of a table (tables are created lazily, or all at once and empty), and says what the export lacks.
It does not interpret: steps, exposed time and ranges are made from these columns elsewhere.
"""

import os
import re
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from census import fastread
from census.errors import CensusError
from census.schema import (
    COLUMNS,
    EXPORT_TABLES,
    NVTX_DOMAIN,
    NVTX_PUSH_POP,
    NVTX_START_END,
    SAFE_META,
    TABLES,
    Column,
)

Ints = NDArray[np.int64]

_FAST_ROWS = 100_000  # below this the start of the other driver costs more than it saves
_SECRET_NAME = re.compile(r"(?i)host_?name|user_?name|^user$|^logname$|^hostname$|:host$|^home$")
_SECRET_VALUE = re.compile(r"\b(?:USER|LOGNAME|HOSTNAME)=([\w.-]+)")  # in a recorded environment
_STRING_IDS = ("demangledName", "shortName", "mangledName", "nameId", "textId")  # columns that refer to StringIds
_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True)
class Device:
    """One GPU (or, from the in-process recorder, the CPU) as the export describes it. Unknown is None."""

    id: int  # of the machine
    cuda: int  # CUDA's number for it in a process that sees all GPUs
    name: str
    sms: int | None
    bandwidth: int | None  # bytes per second, as advertised by the driver
    memory: int | None  # bytes


@dataclass(frozen=True)
class Trace:
    """An open export. `rows` counts every concept that holds data; a concept not in it is absent or empty."""

    path: Path  # as the user named it
    file: Path | None  # the sqlite file behind it; None: in memory
    db: sqlite3.Connection
    rows: dict[str, int]
    product: str | None
    version: str | None
    schema: str | None
    graph_mode: str | None  # "Node", "Graph" or None where the export does not say
    devices: tuple[Device, ...]
    warnings: list[str] = field(default_factory=list)  # grows while columns are read
    holder: Any = None  # keeps a temporary copy of the file alive


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn SQLite's complaints about a damaged file into one line."""
    try:
        yield
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as err:  # the last: a damaged table or column name
        raise CensusError(f"{path}: cannot be read as sqlite ({err}); export it again with `nsys export`") from None


def quote(identifier: str) -> str:
    """An SQL identifier, safe for any column name found in a file."""
    return '"' + identifier.replace('"', '""') + '"'


def check_file(path: Path) -> None:
    """Refuse with one line what cannot be an export: missing, a folder, empty, not sqlite, cut short."""
    if not path.exists():
        raise CensusError(f"{path}: no such file; give an nsys sqlite export")
    if path.is_dir():
        raise CensusError(f"{path}: is a folder without parquet tables; give a .sqlite file or a parquetdir export")
    with path.open("rb") as f:
        head = f.read(100)
    if len(head) < 100 or not head.startswith(_MAGIC):
        raise CensusError(f"{path}: not an sqlite file; make one with `nsys export --type sqlite REPORT.nsys-rep`")
    # Bytes 16-17 page size (1 means 65536), 24 change counter, 28 pages, 92 the counter that makes 28 valid.
    page = struct.unpack(">H", head[16:18])[0]
    size = (65536 if page == 1 else page) * struct.unpack(">I", head[28:32])[0]
    if head[24:28] == head[92:96] and path.stat().st_size < size:
        raise CensusError(f"{path}: truncated, {path.stat().st_size} bytes of {size}; copy or export it again")


def open_trace(path: Path | str) -> Trace:
    """Open an export read-only and make its views. Raises CensusError for anything that is not a readable export."""
    path = Path(path)
    check_file(path)
    with _reading(path):
        return replace(from_connection(path, _connect(path)), file=path)


def _uri(path: Path | None) -> str:
    return f"{path.resolve().as_uri()}?mode=ro" if path else ":memory:"


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(_uri(path), uri=True)
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")  # Windows exports hold other encodings
    return db


def from_tables(path: Path, tables: Iterable[tuple[str, list[str], Iterable[Sequence[Any]]]]) -> Trace:
    """A trace from (table, columns, rows) of an export that is not sqlite; held in memory."""
    db = sqlite3.connect(":memory:")
    with _reading(path):
        for table, names, rows in tables:
            db.execute(f"CREATE TABLE {quote(table)} ({', '.join(map(quote, names))})")
            db.executemany(f"INSERT INTO {quote(table)} VALUES ({', '.join('?' * len(names))})", rows)
        return from_connection(path, db)


def from_connection(path: Path, db: sqlite3.Connection) -> Trace:
    """Views and facts over an open database that holds nsys' tables."""
    with _reading(path):
        made = [concept for concept, view in _views(db).items() if db.execute(view)]
        rows = {c: int(db.execute(f"SELECT count(*) FROM {c}").fetchone()[0]) for c in made}
        export, capture = _pairs(db, rows, "meta_export"), _pairs(db, rows, "meta_capture")
        devices = _devices(db, rows)
    mode = next((v for k, v in capture.items() if k.endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE")), None)
    if mode is None and "replays" in rows:
        mode = "Graph"
    return Trace(path, None, db, rows, export.get("EXPORT_PRODUCT_NAME"), export.get("EXPORT_PRODUCT_VERSION"),
                 export.get("EXPORT_SCHEMA_VERSION"), mode, devices)


def close(trace: Trace) -> None:
    """Close the file, and remove the temporary copy that some forms of a trace are read through."""
    trace.db.close()
    if trace.holder is not None:
        trace.holder.cleanup()


def _tables(db: sqlite3.Connection) -> list[tuple[str]]:
    return db.execute("SELECT name FROM main.sqlite_master WHERE type IN ('table', 'view')").fetchall()


def _table_columns(db: sqlite3.Connection, table: str) -> Iterator[str]:
    return (row[1] for row in db.execute(f"PRAGMA main.table_info({quote(table)})"))


def _spellings(concept: str) -> Iterator[str]:
    return (table + suffix for table in TABLES[concept] for suffix in ("", "_V2", "_V3"))


def _views(db: sqlite3.Connection) -> dict[str, str]:
    """concept -> the statement that makes its TEMP view, over the first table that can serve it and is not empty."""
    found = {name: list(_table_columns(db, name)) for (name,) in _tables(db)}
    views = {}
    for concept in TABLES:
        for table in _spellings(concept):
            select = _select(concept, found.get(table, []))
            source = f"main.{quote(table)}"
            if select and db.execute(f"SELECT EXISTS (SELECT 1 FROM {source})").fetchone()[0]:
                views[concept] = f"CREATE TEMP VIEW {concept} AS SELECT rowid AS row, {select} FROM {source}"
                break
    return views


def _select(concept: str, has: list[str]) -> str | None:
    """The view's SELECT list for a table with the columns `has`; None when a needed column is missing."""
    parts = [_expression(col, has) for col in COLUMNS if col.concept == concept]
    return None if not has or None in parts else ", ".join(p for p in parts if p)


def _expression(col: Column, has: list[str]) -> str | None:
    present = [quote(c) for c in col.candidates if c in has]
    if not present:
        return None if col.fallback is None else f"{col.fallback} AS {quote(col.name)}"
    terms = present + ([col.fallback] if col.fallback not in (None, "NULL", "start") else [])
    value = terms[0] if len(terms) == 1 else f"COALESCE({', '.join(terms)})"
    return f"{value} AS {quote(col.name)}"


def _pairs(db: sqlite3.Connection, rows: dict[str, int], concept: str) -> dict[str, str]:
    if concept not in rows:
        return {}
    return {str(k): str(v) for k, v in db.execute(f"SELECT name, value FROM {concept}")}


def _devices(db: sqlite3.Connection, rows: dict[str, int]) -> tuple[Device, ...]:
    if "devices" not in rows:
        return ()
    found = db.execute("SELECT id, cuda, name, sms, bandwidth, memory FROM devices ORDER BY id").fetchall()
    return tuple(Device(i, c, str(name), *rest) for i, c, name, *rest in found if isinstance(i, int))


def columns(trace: Trace, concept: str, *names: str) -> dict[str, Ints]:
    """Columns of a concept as int64 arrays of one length, in the file's row order; empty when the concept is absent.

    Rows in which one of them is not an integer are left out, counted in `trace.warnings`.
    """
    rows = trace.rows.get(concept, 0)
    if not rows:
        return {n: np.empty(0, np.int64) for n in names}
    fast = _fast_columns(trace, concept, names) if rows >= _FAST_ROWS and trace.file else None
    if fast is not None:
        return fast
    with _reading(trace.path):
        try:
            return _integers(trace.db.execute(_query(concept, names)), names, rows)
        except (TypeError, ValueError):  # a NULL or a text among them: slower, but only then
            return _clean_integers(trace, concept, names)


def _fast_columns(trace: Trace, concept: str, names: Sequence[str]) -> dict[str, Ints] | None:
    with _reading(trace.path):
        low, high = trace.db.execute(f"SELECT min(row), max(row) FROM {concept}").fetchone()
        view = _views(trace.db)[concept]
    rows = trace.rows[concept]
    # Without holes in the row numbers a part's place in the result is known before it is read.
    cuts = fastread.workers() if high - low + 1 == rows else 1
    edges = [rows * i // cuts for i in range(cuts + 1)]
    parts = [fastread.Part(f"{_query(concept, names)} WHERE row >= {low + a} AND row < {low + b}" if cuts > 1 else
                           _query(concept, names), a, b - a) for a, b in pairwise(edges)]
    return fastread.read(_uri(trace.file), view, parts, names)


def _query(concept: str, names: Sequence[str]) -> str:
    return f"SELECT {', '.join(quote(n) for n in names)} FROM {concept}"


def _integers(cursor: Iterable[Sequence[int]], names: Sequence[str], rows: int = -1) -> dict[str, Ints]:
    flat = np.fromiter(chain.from_iterable(cursor), np.int64, rows * len(names) if rows >= 0 else -1)
    table = flat.reshape(-1, len(names))
    return {n: np.ascontiguousarray(table[:, i]) for i, n in enumerate(names)}


def _clean_integers(trace: Trace, concept: str, names: Sequence[str]) -> dict[str, Ints]:
    where = " AND ".join(f"typeof({quote(n)}) = 'integer'" for n in names)
    got = _integers(trace.db.execute(f"{_query(concept, names)} WHERE {where}"), names)
    lost = trace.rows[concept] - len(got[names[0]])
    note = f"{lost} of {trace.rows[concept]} rows of {concept} left out: {', '.join(names)} must all be integers"
    if note not in trace.warnings:
        trace.warnings.append(note)
    return got


def records(trace: Trace, concept: str, *names: str) -> list[tuple[Any, ...]]:
    """Rows of a small concept (nvtx, diagnostics) as tuples, whatever their types."""
    if concept not in trace.rows:
        return []
    with _reading(trace.path):
        return trace.db.execute(f"SELECT {', '.join(quote(n) for n in names)} FROM {concept}").fetchall()


def strings(trace: Trace, ids: Iterable[int]) -> dict[int, str]:
    """The text of the given string ids; an id without one is left out."""
    if "strings" not in trace.rows:
        return {}
    wanted = [int(i) for i in ids]
    if len(wanted) > 10_000:  # cheaper to read the table once than to ask so often
        keep = set(wanted)
        return {i: str(v) for i, v in records(trace, "strings", "id", "value") if i in keep}
    with _reading(trace.path):
        rows = (trace.db.execute("SELECT id, value FROM strings WHERE id = ?", (i,)).fetchone() for i in wanted)
        return {row[0]: str(row[1]) for row in rows if row}


def save_table(path: Path, name: str, keys: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
    """Write rows as table `name` into a sqlite file, made if missing; replaces that table, all or nothing."""
    if path.exists() and path.stat().st_size:
        check_file(path)
    with _reading(path):
        db = sqlite3.connect(path)
        try:
            with db:
                db.execute(f"DROP TABLE IF EXISTS {quote(name)}")
                db.execute(f"CREATE TABLE {quote(name)} ({', '.join(map(quote, keys))})")
                db.executemany(f"INSERT INTO {quote(name)} VALUES ({', '.join('?' * len(keys))})", rows)
        finally:
            db.close()


def write_export(path: Path | str, tables: dict[str, list[tuple[Any, ...]]]) -> None:
    """Write an export of schema 3.20.3: every table of EXPORT_TABLES, filled with `tables[name]`, in column order.

    Atomic: the file appears complete or not at all. Raises CensusError for a table that EXPORT_TABLES does not know.
    """
    path = Path(path)
    unknown = sorted(set(tables) - set(EXPORT_TABLES))
    if unknown:
        raise CensusError(f"{path}: no export table {unknown[0]}; known are {', '.join(EXPORT_TABLES)}")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _reading(part):
            _write_tables(part, tables)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _write_tables(path: Path, tables: dict[str, list[tuple[Any, ...]]]) -> None:
    db = sqlite3.connect(path)
    try:
        db.execute("PRAGMA journal_mode = OFF")  # a half file is thrown away, so nothing needs undoing
        db.execute("PRAGMA synchronous = OFF")
        for table, spec in EXPORT_TABLES.items():
            db.execute(f"CREATE TABLE {table} ({', '.join(f'{quote(c)} {t}' for c, t in spec)})")
            db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(spec))})", tables.get(table, []))
        db.commit()
    finally:
        db.close()


def secrets(trace: Trace) -> set[str]:
    """Host and user names that the export knows of, from every table of (name, value) rows."""
    found: set[str] = set()
    with _reading(trace.path):
        for (table,) in _tables(trace.db):
            if not {"name", "value"} <= set(_table_columns(trace.db, table)):
                continue
            rows = trace.db.execute(f"SELECT name, value FROM main.{quote(table)}")
            for name, value in rows:
                found |= {str(value)} if _SECRET_NAME.search(str(name)) else set(_SECRET_VALUE.findall(str(value)))
    return {text for text in found if len(text) > 2}


def write_copy(trace: Trace, out: Path, keep: dict[str, tuple[str, ...]], mask: Callable[[Any], Any],
               since: int | None = None) -> dict[str, int]:  # fmt: skip
    """Write the listed columns of the listed tables into a new sqlite file, every text passed through `mask`.

    Device work and API calls that start before `since` (ns) are left out.
    Of META_DATA tables only the names in SAFE_META stay, of NVTX only ranges and domains, of StringIds only what the
    kept columns refer to. Returns rows per table. Atomic.
    """
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with _reading(part):
            counts = _copy_tables(trace.db, part, keep, mask, since)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return counts


def _copy_tables(src: sqlite3.Connection, part: Path, keep: dict[str, tuple[str, ...]],
                 mask: Callable[[Any], Any], since: int | None) -> dict[str, int]:
    present = {t: {c: kind for c, kind in _typed_columns(src, t) if c in keep[t]} for (t,) in _tables(src) if t in keep}
    present = {t: cols for t, cols in present.items() if cols}
    names = [f"SELECT {quote(c)} FROM main.{quote(t)}" for t, cols in present.items() for c in cols if c in _STRING_IDS]
    where = {
        "NVTX_EVENTS": f"eventType IN {(*NVTX_PUSH_POP, *NVTX_START_END, NVTX_DOMAIN)}",
        "StringIds": f"id IN ({' UNION '.join(names) or 'NULL'})",
    } | {t: " OR ".join(f"name LIKE '{like}'" for like in SAFE_META) for t in present if "META_DATA" in t}
    if since is not None:
        # ranges and node births stay: later replays are attributed through them
        work = [t for concept in ("kernels", "replays", "copies", "sets", "api") for t in TABLES[concept]]
        where |= {t: f"start >= {since:d}" for t in work if "start" in present.get(t, {})}
    out = sqlite3.connect(part)
    try:
        counts = {}
        for table, cols in present.items():
            listed = ", ".join(map(quote, cols))
            rows = src.execute(f"SELECT {listed} FROM main.{quote(table)} WHERE {where.get(table, '1')}")
            out.execute(f"CREATE TABLE {quote(table)} ({', '.join(f'{quote(c)} {k}' for c, k in cols.items())})")
            done = out.executemany(f"INSERT INTO {quote(table)} VALUES ({', '.join('?' * len(cols))})",
                                   ([mask(v) for v in row] for row in rows))
            counts[table] = done.rowcount
        out.commit()
        return counts
    finally:
        out.close()


def _typed_columns(db: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    """(column, declared type without constraints) of a table; only the types that an export uses."""
    rows = db.execute(f"PRAGMA main.table_info({quote(table)})").fetchall()
    return [(row[1], row[2] if row[2] in ("INTEGER", "TEXT", "REAL") else "") for row in rows]
