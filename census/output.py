"""One way out for every report: a table for people, JSON or CSV for programs, a sqlite table to keep.

All four show the same rows. Notes (warnings, definitions) are footnotes of the table and fields of the JSON.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from census import trace as tr

_WIDTH = 150  # columns of a table that does not go to a terminal
_NAME = 64  # longest name in a table; JSON and CSV keep all of it


@dataclass(frozen=True)
class Column:
    """A column: the key of its value in a row, its heading, and how a value is written in the table."""

    key: str
    head: str
    show: Callable[[Any], str]


@dataclass(frozen=True)
class Report:
    """Rows of one command: `rows` are what CSV and --save get, `foot` are lines of totals for the table alone."""

    name: str  # the sqlite table that --save fills
    head: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]
    data: dict[str, Any]  # the JSON object
    foot: list[dict[str, Any]] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    above: "Report | None" = None  # a second table, printed first
    table: list[dict[str, Any]] | None = None  # rows of the table where they are not `rows`


def emit(report: Report, *, as_json: bool, as_csv: bool, save: Path | None = None) -> None:
    """Print a report to standard output as a table, JSON or CSV; `save` also writes its rows into a sqlite file."""
    if save is not None:
        keys = list(dict.fromkeys(key for row in report.rows for key in row))
        tr.save_table(save, report.name, keys, [tuple(_plain(row.get(k)) for k in keys) for row in report.rows])
    if as_json:
        sys.stdout.write(json.dumps(report.data, indent=1) + "\n")
    elif as_csv:
        _write_csv(report)
    else:
        _print_table(report)


def lines(text: Sequence[str]) -> None:
    """Print lines as they are, unwrapped."""
    sys.stdout.write("".join(f"{line}\n" for line in text))
    sys.stdout.flush()


def data(value: Any) -> None:
    """Print a JSON object that is no report."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def _write_csv(report: Report) -> None:
    keys = list(dict.fromkeys(key for row in report.rows for key in row))
    out = csv.DictWriter(sys.stdout, keys, lineterminator="\n")
    out.writeheader()
    out.writerows({k: _plain(v) for k, v in row.items()} for row in report.rows)


def _print_table(report: Report) -> None:
    if report.above:
        _print_table(report.above)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False, markup=False, emoji=False)
    for line in report.head:
        console.print(line, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(report.columns):
        if i == 0:
            table.add_column(column.head, no_wrap=True, overflow="ellipsis")
        else:  # figures are never cut: on a narrow terminal the name gives way
            side: Literal["left", "right"] = "left" if column.show is str else "right"
            table.add_column(column.head, justify=side, min_width=max(map(len, column.head.split("\n"))))
    for row in report.rows if report.table is None else report.table:
        table.add_row(*(column.show(row.get(column.key)) for column in report.columns))
    if report.foot:
        table.add_section()
    for row in report.foot:
        table.add_row(*(column.show(row.get(column.key)) for column in report.columns))
    console.print(table)
    for note in report.notes:
        console.print(f"* {note}", soft_wrap=True)


def name(value: Any) -> str:
    """A name, cut in its middle where it is too long for a table."""
    text = "" if value is None else str(value)
    return text if len(text) <= _NAME else f"{text[: _NAME * 2 // 3]}…{text[-(_NAME - _NAME * 2 // 3 - 1) :]}"


def number(digits: int, *, sign: bool = False) -> Callable[[Any], str]:
    """Writes a number with thousands separators and `digits` decimals; unknown is left empty."""
    return lambda v: "" if v is None else f"{v:{'+' if sign else ''}z,.{digits}f}"  # z: no negative zero


def count(value: Any) -> str:
    """Whole numbers exactly, means with one decimal, unknown as `?`; a text as it is."""
    if value is None or isinstance(value, str):
        return "?" if value is None else value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def percent(value: Any) -> str:
    """A share of 1 in percent; unknown is left empty."""
    return "" if value is None else f"{100 * value:.1f}%"


@contextmanager
def progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error for work that counts itself: call what is yielded with (done, total)."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def working(text: str) -> Iterator[None]:
    """A moving line on standard error while something takes time, where a person looks at it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield
