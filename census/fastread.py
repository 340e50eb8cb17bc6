"""Columns of a large sqlite file through ADBC, where the extra `fast` is installed.

Python's sqlite3 makes a tuple and an int for every value; ADBC hands over batches of columns, and lets go of the
interpreter while SQLite works, so a thread per part keeps every core busy. The SQL comes from census/trace.py.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """One query and the rows [first, first + rows) of the result that it must fill."""

    query: str
    first: int
    rows: int


def workers() -> int:
    """How many parts are worth reading at once."""
    return min(4, os.cpu_count() or 1)


def read(uri: str, setup: str, parts: Sequence[Part], names: Sequence[str]) -> dict[str, Ints] | None:
    """Run `setup`, then every part, each on a connection of its own; int64 columns by name.

    None where ADBC is not installed, or a column is not all integers: the slow way then knows what to do.
    """
    try:
        import adbc_driver_sqlite.dbapi  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError:
        return None
    out = {name: np.empty(sum(p.rows for p in parts), np.int64) for name in names}
    with ThreadPoolExecutor(len(parts)) as pool:
        done = list(pool.map(lambda part: _fill(uri, setup, part, out), parts))
    return out if all(done) else None


def _fill(uri: str, setup: str, part: Part, out: dict[str, Ints]) -> bool:
    """Read one part into its place; False when it does not fit."""
    import adbc_driver_sqlite.dbapi as adbc

    at, end = part.first, part.first + part.rows
    try:
        with adbc.connect(uri) as db, db.cursor() as cursor:
            cursor.execute(setup)
            cursor.execute(part.query)
            for batch in cursor.fetch_record_batch():
                if at + batch.num_rows > end:
                    return False
                for column, target in zip(batch.columns, out.values(), strict=True):
                    if column.null_count or str(column.type) != "int64":
                        return False
                    target[at : at + batch.num_rows] = column.to_numpy(zero_copy_only=False)
                at += batch.num_rows
    except (adbc.Error, OSError, ValueError):
        return False
    return at == end
