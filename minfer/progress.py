"""How long work reports itself: a callable that gets (bytes done, bytes in total)."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress

Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """A Progress that says nothing."""


@contextlib.contextmanager
def bar(label: str) -> Iterator[Progress]:
    """A progress bar on stderr; it disappears when the work is done, so that stdout and logs stay clean."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with RichProgress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as display:
        task = display.add_task(label, total=None)
        yield lambda done, total: display.update(task, completed=done, total=total)
