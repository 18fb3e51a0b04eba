"""The progress bar of a replay, with the figures one waits for."""

import asyncio
from bisect import insort
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from kvmesh_lab.report.outcome import RequestOutcome, percentile

REFRESH_S: Final = 0.25


class RunProgress:
    """What is known of a run while it goes on."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.sent = 0
        self.done = 0
        self.failed = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._ttft_ms: list[float] = []

    def take(self, outcome: RequestOutcome) -> None:
        """Fold one finished request. O(requests) moves of 8 bytes."""
        self.done += 1
        if outcome.error:
            self.failed += 1
            return
        self._prompt_tokens += outcome.prompt_tokens
        self._cached_tokens += outcome.cached_tokens
        if outcome.ttft_ms is not None:
            insort(self._ttft_ms, outcome.ttft_ms)

    def describe(self) -> str:
        """Return the figures as one short line."""
        parts = [f"{self.sent - self.done} open"]
        if self._prompt_tokens:
            parts.append(f"hit {self._cached_tokens / self._prompt_tokens:.1%}")
        if self._ttft_ms:
            p50, p90 = percentile(self._ttft_ms, 0.5), percentile(self._ttft_ms, 0.9)
            parts.append(f"TTFT p50 {p50:.0f} p90 {p90:.0f} ms")
        if self.failed:
            parts.append(f"[red]{self.failed} failed[/red]")
        return " · ".join(parts)


@asynccontextmanager
async def show_progress(
    console: Console, name: str, state: RunProgress, *, enabled: bool
) -> AsyncGenerator[None]:
    """Keep a bar of `state` on the console's terminal; nothing at all when it is none.

    Drawn four times a second by this event loop: rich's own thread would take turns of the
    processor away from the clock of the requests.
    """
    if not (enabled and console.is_terminal):
        yield
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        bar = progress.add_task(name, total=state.total, figures="")

        def draw() -> None:
            progress.update(bar, completed=state.done, figures=state.describe())
            progress.refresh()

        async def keep_drawing() -> None:
            while True:
                draw()
                await asyncio.sleep(REFRESH_S)

        drawing = asyncio.create_task(keep_drawing())
        try:
            yield
        finally:
            drawing.cancel()
            draw()
