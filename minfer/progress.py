"""How long work reports itself: a callable that gets (bytes done, bytes in total)."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress

Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """A Progress that says nothing."""


@contextlib.contextmanager
def bar(label: str) -> Iterator[Progress]:
    """A progress bar on stderr; it disappears when the work is done, so that stdout and logs stay clean."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _display(*columns, TimeRemainingColumn()) as display:
        task = display.add_task(label, total=None)
        yield lambda done, total: display.update(task, completed=done, total=total)


@contextlib.contextmanager
def counter(label: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar over `total` runs on stderr, moved on by calling what it yields."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _display(*columns) as display:
        task = display.add_task(label, total=total)
        yield lambda: display.advance(task)


def _display(*columns: ProgressColumn) -> RichProgress:
    console = Console(stderr=True)
    return RichProgress(*columns, console=console, transient=True, disable=not console.is_terminal)
