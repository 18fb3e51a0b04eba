"""`GET /admin/trace`: the last requests as a Mooncake trace, for who may change the router."""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

from kvmesh.app.front.front import Routes
from kvmesh.core.insight.trace_ring import TraceRing, TraceRow, mooncake_lines
from kvmesh.core.insight.weight_search import LoggedFleet
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request

PATH: Final = "/admin/trace"
LINES_A_TURN: Final = 64


class TracePage:
    """Answers in slices: a trace may have 100,000 lines. Ids tell nothing of prompts or hashes.

    `log` returns the requests of `ring` and what served them; `check` raises `RequestError` for one
    who may not have it.
    """

    def __init__(
        self,
        ring: TraceRing,
        log: Callable[[], tuple[list[TraceRow], LoggedFleet]],
        check: Callable[[Request, str], None],
        bucket: str,
    ) -> None:
        self._ring = ring
        self._log = log
        self._check = check
        self._bucket = bucket

    def mount(self, routes: Routes) -> None:
        """Serve the path."""
        routes.add("GET", PATH, self._show)

    def _show(self, exchange: Exchange) -> None:
        self._check(exchange.request, PATH)
        # Tools read the block size in the name.
        name = f"{self._bucket}_b{self._ring.block_tokens}.jsonl"
        quoted = name.encode("ascii", "replace").replace(b'"', b"?")
        exchange.start(
            200,
            (
                (b"content-type", b"application/jsonl"),
                (b"content-disposition", b'attachment; filename="%b"' % quoted),
                (b"cache-control", b"no-store"),
                (b"x-request-id", exchange.request_id),
            ),
        )
        if exchange.request.method == "HEAD":
            exchange.end()
            return
        exchange.scope.start(self._send(exchange))

    async def _send(self, exchange: Exchange) -> None:
        room = asyncio.Event()
        room.set()
        exchange.on_pause, exchange.on_resume = room.clear, room.set
        rows, fleet = self._log()
        lines = mooncake_lines(rows, self._ring.block_tokens, fleet)
        while part := b"".join(islice(lines, LINES_A_TURN)):
            exchange.write(part)
            await asyncio.sleep(0)
            await room.wait()
        exchange.end()
