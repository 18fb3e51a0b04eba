"""Progress bars of a simulation."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Watch = Callable[[int], None]
"""Hears how many requests of a run have ended."""


class Bars:
    """One progress bar per run; silent without a terminal."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def watch(self, name: str, total: int) -> Watch:
        """Return what to tell how far the run called `name` is."""
        progress = self._progress
        if progress is None:
            return _ignore
        bar: TaskID = progress.add_task(name, total=total)

        def show(done: int) -> None:
            progress.update(bar, completed=done)

        return show


def _ignore(done: int) -> None:
    del done


@contextmanager
def draw_bars(console: Console, *, enabled: bool) -> Generator[Bars]:
    """Draw bars on a terminal, while inside."""
    if not (enabled and console.is_terminal):
        yield Bars(None)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)
