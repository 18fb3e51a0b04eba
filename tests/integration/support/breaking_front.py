"""Fronts of one engine that end its streams in their middle, in any way that an engine may."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx
import msgspec

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh_lab.mocker.bad_reply import ERROR
from kvmesh_lab.mocker.command import Mocker
from tests.integration.support.live_router import engine, mocker_options

_END = b"\n\n"
_REJECTED = b'{"error":{"message":"extra field","type":"x","code":400}}'
_FIELDS = {"ids": ("return_token_ids",), "usage": ("stream_options",), "": ()}


class Break(msgspec.Struct, frozen=True):
    """What happens to one stream behind so many events of output.

    reset: the connection. torn: the same, in the middle of an event. error: an event that says so,
    and the end. end: the end, as of a whole answer. hang: nothing more. die: the engine is gone.
    """

    after: int
    how: Literal["reset", "torn", "error", "end", "hang", "die"] = "reset"


class BreakingFront:
    """One engine as the router sees it. `prompts` are the bodies that came, `heads` their headers.

    What it `rejects` is answered 400: bodies that ask for ids, for usage, for either, or all.
    `held`: streams whose prompt is ids wait until it is set. `left`: streams whose client went
    away.
    """

    def __init__(self, engine: Mocker, breaks: deque[Break]) -> None:
        self.prompts: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.rejects: Literal["", "ids", "usage", "both", "all"] = ""
        self.healthy = True
        self.held: asyncio.Event | None = None
        self.left = 0
        self.server = HttpServer(self._serve)
        self._breaks = breaks
        self._client = httpx.AsyncClient(base_url=engine.url, timeout=60)
        self._closing: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def close(self) -> None:
        """End; nothing happens to one that is gone."""
        if self._closing is None:
            self._die()
        assert self._closing is not None
        await self._closing
        await self._client.aclose()

    def _serve(self, exchange: Exchange) -> None:
        asked = exchange.request
        if asked.method == "GET":
            if self.healthy:
                exchange.scope.start(self._get(exchange))
            return
        body = json.loads(asked.body)
        self.prompts.append(body)
        headers = asked.head.headers()
        self.heads.append({name.decode(): value.decode() for name, value in headers})
        fields = _FIELDS.get(self.rejects, ("return_token_ids", "stream_options"))
        if self.rejects == "all" or any(name in body for name in fields):
            exchange.respond(400, _REJECTED)
            return
        found = self._breaks.popleft() if self._breaks else None
        exchange.on_disconnect = self._leave
        exchange.scope.start(self._pass(exchange, found, late=isinstance(body.get("prompt"), list)))

    def _leave(self) -> None:
        self.left += 1

    async def _get(self, exchange: Exchange) -> None:
        answer = await self._client.get(exchange.request.path)
        exchange.respond(answer.status_code, answer.content)

    async def _pass(self, exchange: Exchange, found: Break | None, *, late: bool) -> None:
        if late and self.held is not None:
            await self.held.wait()
        asked = exchange.request
        async with self._client.stream("POST", asked.path, content=asked.body) as answer:
            if answer.status_code != httpx.codes.OK or not _streams(answer):
                exchange.respond(answer.status_code, await answer.aread())
                return
            exchange.start(200, ((b"content-type", b"text/event-stream"),))
            events, held = 0, b""
            async for data in answer.aiter_bytes():
                *whole, held = (held + data).split(_END)
                for event in whole:
                    if found is not None and events == found.after:
                        await self._break(exchange, found, event)
                        return
                    exchange.write(event + _END)
                    events += b'"choices":[{' in event and b'"role"' not in event
        exchange.end()

    async def _break(self, exchange: Exchange, found: Break, event: bytes) -> None:
        exchange.on_disconnect = None
        match found.how:
            case "reset":
                exchange.abort()
            case "torn":
                exchange.write(event[: len(event) // 2])
                exchange.abort()
            case "error":
                exchange.write(b"data: %b\n\ndata: [DONE]\n\n" % ERROR)
                exchange.end()
            case "end":
                exchange.end()
            case "hang":
                self.healthy = False
                await asyncio.Event().wait()
            case "die":
                exchange.abort()
                self._die()

    def _die(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self.server.close())


def _streams(answer: httpx.Response) -> bool:
    return "text/event-stream" in str(answer.headers.get("content-type"))


@contextlib.asynccontextmanager
async def breaking_fronts(
    count: int, *breaks: Break, **options: Any
) -> AsyncIterator[list[BreakingFront]]:
    """Yield fronts of one engine; the streams meet the `breaks` in the order in which they come."""
    plan = deque(breaks)
    async with engine(mocker_options(16, 4096, **options)) as behind:
        fronts = [BreakingFront(behind, plan) for _ in range(count)]
        try:
            for front in fronts:
                await front.server.start("127.0.0.1", 0)
            yield fronts
        finally:
            for front in fronts:
                await front.close()
