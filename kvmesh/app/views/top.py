"""`kvmesh top`: what the dashboard shows, live in a terminal."""

import asyncio
import contextlib
import sys
from dataclasses import dataclass, replace
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from kvmesh.app.process.running_mesh import find_url
from kvmesh.app.views.ask import ask_with
from kvmesh.app.views.top_view import WINDOW_S, draw
from kvmesh.errors import TransportError
from kvmesh.settings.types import Flat
from kvmesh.transport.http.upstream.client import UpstreamPool


@dataclass(frozen=True, kw_only=True)
class TopOptions:
    """What to watch. A dataclass, since the command line is made from it."""

    url: str = ""
    """Base URL of a router or meta-router, without /v1; default: the mesh of a running `kvmesh up`,
    else http://127.0.0.1:8000."""
    interval_s: Annotated[float, Parameter(validator=Number(gte=0.1))] = 1.0
    """Seconds between two looks."""
    requests: Annotated[int, Parameter(validator=Number(gte=0, lte=100))] = 10
    """Newest requests listed."""
    once: bool = False
    """Print the present and end, as it also does when the output is no terminal."""
    api_key: str = ""
    """Sent as bearer token."""


def command(options: Annotated[TopOptions, Flat] | None = None) -> None:
    """Show workers, replicas, traffic and the newest requests, live in the terminal."""
    given = options or TopOptions()
    chosen = replace(given, url=find_url(given.url))
    console = Console()
    with contextlib.suppress(KeyboardInterrupt):
        if chosen.once or not sys.stdout.isatty():
            asyncio.run(show_once(chosen, console))
        else:
            asyncio.run(watch(chosen, console))


async def show_once(options: TopOptions, console: Console) -> None:
    """Print the present. Raises `TransportError`."""
    async with contextlib.aclosing(_Source(options)) as source:
        console.print(await source.check())


async def watch(options: TopOptions, console: Console) -> None:
    """Draw the state every `interval_s`; while no process answers, show that above the last
    picture.
    """
    with Live(console=console, screen=True, auto_refresh=False) as live:
        async with contextlib.aclosing(_Source(options)) as source:
            while True:
                live.update(await source.show_or_report(), refresh=True)
                await asyncio.sleep(options.interval_s)


class _Source:
    """Asks one process for its overview, over one connection."""

    def __init__(self, options: TopOptions) -> None:
        self._options = options
        self._pool = UpstreamPool()
        self._last: RenderableType = Text()
        self._since = 0

    async def check(self) -> RenderableType:
        """Return the present, drawn. Raises `TransportError`.

        Time is the other side's: it is first asked for all seconds that it keeps.
        """
        options = self._options
        overview = await ask_with(
            self._pool,
            options.url,
            api_key=options.api_key,
            since=self._since,
            limit=options.requests,
        )
        self._since = int(overview.now) - WINDOW_S - 1
        self._last = draw(overview, overview.seconds, rows=options.requests)
        return self._last

    async def show_or_report(self) -> RenderableType:
        """Return the present, or the last known with why there is none."""
        try:
            return await self.check()
        except TransportError as error:
            return Group(Text(f"{error}; trying again", "bold red"), self._last)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._pool.close()
