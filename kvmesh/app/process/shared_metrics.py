"""The one page of metrics of several processes behind one port."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kvmesh.app.process.place import Place
from kvmesh.errors import RequestError

ASK_S: Final = 2.0
MOST_PAGE_BYTES: Final = 16 << 20


class SharedMetrics:
    """Tells the other processes this one's metrics, and puts theirs beside its own. `page` makes
    those that a query asks for, or raises `RequestError` while there is no time for that.
    """

    def __init__(self, place: Place, page: Callable[[str], bytes]) -> None:
        self._place = place
        self._page = page

    async def serve(self, stack: contextlib.AsyncExitStack) -> None:
        """Be asked by the others until `stack` ends."""
        path = self._place.page_path(self._place.number)
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()  # of the process that was this one before  # noqa: ASYNC240
        server = await asyncio.start_unix_server(self._answer, path)
        stack.callback(server.close)

    async def page(self, query: str) -> bytes:
        """Return one page of all processes that answer, each with its label `process`. Raises
        `RequestError` where this one does not.
        """
        mine = self._place.number
        asked = [number for number in range(self._place.count) if number != mine]
        pages = dict(
            zip(
                asked,
                await asyncio.gather(*(self._ask(number, query) for number in asked)),
                strict=True,
            )
        )
        pages[mine] = self._page(query)
        return merge_pages(dict(sorted(pages.items())))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, RequestError):
            query = (await reader.readline()).decode()
            writer.write(self._page(query.strip()))
            await writer.drain()

    async def _ask(self, number: int, query: str) -> bytes:
        """Return the page of another process; nothing while that is dead, or starts."""
        try:
            async with asyncio.timeout(ASK_S):
                reader, writer = await asyncio.open_unix_connection(self._place.page_path(number))
                with contextlib.closing(writer):
                    writer.write(f"{query}\n".encode())
                    return await reader.read(MOST_PAGE_BYTES)
        except (OSError, TimeoutError):
            return b""


def merge_pages(pages: Mapping[int, bytes]) -> bytes:
    """Return pages of Prometheus' text format as one, each sample with a label `process`.

    Source: Prometheus, "Exposition formats": the lines of one metric form one group.
    """
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for number, page in pages.items():
        label, family = b'process="%d"' % number, b""
        for line in page.splitlines():
            if line.startswith(b"#"):
                family = line.split(b" ", 3)[2]
                kept = heads.setdefault(family, [])
                if line not in kept:
                    kept.append(line)
            elif line:
                name, brace, rest = line.partition(b"{")
                if not brace:
                    name, _, value = line.partition(b" ")
                    rest = b"} " + value
                comma = b"" if rest.startswith(b"}") else b","
                samples.setdefault(family, []).append(b"".join((name, b"{", label, comma, rest)))
    lines = [line for family, head in heads.items() for line in (*head, *samples.get(family, ()))]
    return b"\n".join(lines) + b"\n"
