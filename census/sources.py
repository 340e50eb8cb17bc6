"""Any form of a trace to an open one: sqlite, sqlite.gz, a folder of parquet tables, or an .nsys-rep report."""

import gzip
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from census import trace as tr
from census.errors import CensusError
from census.schema import TABLES
from census.trace import Trace

# What a folder is searched for. A parquet export has no suffix of its own: it is a folder with tables in it.
SUFFIXES = (".sqlite", ".sqlite.gz", ".nsys-rep")


def open_source(source: str | Path) -> Trace:
    """Open a trace in any of its forms. Raises CensusError for anything else, and where a needed tool is missing."""
    path = Path(source)
    if is_parquet(path):
        return tr.from_tables(path, _parquet_tables(path))
    if path.name.endswith(".gz") and path.is_file():
        return _through_copy(path, _gunzip)
    if path.suffix == ".nsys-rep" and path.is_file():
        return _through_copy(path, _nsys_export)
    return tr.open_trace(path)


def is_parquet(path: Path) -> bool:
    """Whether a path is a folder with parquet tables in it."""
    return path.is_dir() and any(path.glob("*.parquet"))


def _through_copy(path: Path, make: Any) -> Trace:
    """Open a temporary sqlite file made from the source; it lives as long as the trace."""
    # sqlite needs to seek, and nsys writes files only: both forms go through a file that nobody else sees.
    holder = tempfile.TemporaryDirectory(prefix="census-")
    copy = Path(holder.name) / "trace.sqlite"
    try:
        make(path, copy)
        return replace(tr.open_trace(copy), path=path, file=copy, holder=holder)
    except CensusError as err:
        holder.cleanup()
        # The user named another file than the one that failed.
        raise CensusError(str(err).replace(str(copy), str(path))) from None


def _gunzip(path: Path, copy: Path) -> None:
    try:
        with gzip.open(path) as src, copy.open("wb") as dst:
            shutil.copyfileobj(src, dst, 1 << 20)
    except (OSError, EOFError) as err:
        raise CensusError(f"{path}: not a complete gzip file ({err})") from None


def _nsys_export(path: Path, copy: Path) -> None:
    if shutil.which("nsys") is None:
        raise CensusError(f"{path}: reading a report needs nsys on PATH; where it is, run "
                          f"`nsys export --type sqlite {path.name}` and give the .sqlite file")
    done = subprocess.run(["nsys", "export", "--type", "sqlite", "--output", str(copy), str(path)],
                          capture_output=True, text=True)
    if done.returncode or not copy.exists():
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise CensusError(f"{path}: nsys export failed: {lines[-1]}")


def _parquet_tables(folder: Path) -> Iterator[tuple[str, list[str], Iterator[Sequence[Any]]]]:
    """(table, columns, rows) of the tables that a census reads."""
    try:
        import pyarrow
        import pyarrow.parquet as pq
    except ImportError:
        raise CensusError(f"{folder}: reading parquet needs pyarrow; pip install 'launch-census[parquet]'") from None
    # Other tables of an export (samples, OS events) can be far larger and are never read.
    wanted = {name for names in TABLES.values() for name in names}
    for file in sorted(folder.glob("*.parquet")):
        if file.stem not in wanted:
            continue
        try:
            opened = pq.ParquetFile(file)
            yield file.stem, list(opened.schema_arrow.names), _rows(opened)
        except (pyarrow.ArrowException, OSError) as err:
            raise CensusError(f"{file}: not a readable parquet table ({err})") from None


def _rows(opened: Any) -> Iterator[Sequence[Any]]:
    for batch in opened.iter_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
