"""How two pretend SGLang workers meet for one request: the prefill half listens, decode asks.

As with the real ones neither answers before both have the same request with the same room.
Source: sglang/srt/disaggregation/{prefill,decode}.py (0.5.23).
"""

import asyncio
from typing import Final

import msgspec
from xxhash import xxh3_64_hexdigest

from kvmesh.errors import RequestError
from kvmesh.transport.http.fetch import HTTP_OK, fetch_ok
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh_lab.mocker.vllm_requests import GenerationRequest

PATIENCE_S: Final = 10.0
ASK_S: Final = 0.01
GONE: Final = 500


class _Room:
    """One prefill that waits for its decode half."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.met = asyncio.Event()


class MeetingPlace:
    """One engine's half. `listens`: it is the prefill half."""

    def __init__(self, host: str, port: int, *, listens: bool) -> None:
        self._host = host
        self._port = port
        self._listens = listens
        self._rooms: dict[int, _Room] = {}
        self._server = HttpServer(self._on_knock)
        self._pool = UpstreamPool()

    async def open(self) -> None:
        """Listen, if it is the prefill half. Raises `TransportError`."""
        if self._listens:
            await self._server.start(self._host, self._port)

    async def close(self) -> None:
        """Meet nobody any more."""
        await self._server.drain(0.0)
        await self._pool.close()

    async def meet(self, request: GenerationRequest, prompt: bytes, request_id: str) -> None:
        """Wait until the other half has the same request.

        Raises `RequestError` without a room, or when nobody comes.
        """
        del request_id
        room, host, port = request.bootstrap_room, request.bootstrap_host, request.bootstrap_port
        if room is None or host is None or port is None:
            raise RequestError("Disaggregated request received without bootstrap room id")
        digest = xxh3_64_hexdigest(prompt)
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self._listens:
                    await self._await_knock(room, port, digest)
                else:
                    await self._knock(f"http://{host}:{port}", room, digest)
        except TimeoutError:
            raise RequestError(f"nobody came to room {room}", status=GONE) from None

    async def _await_knock(self, room: int, port: int, digest: str) -> None:
        if port != self._port:
            raise RequestError(f"bootstrap_port {port} is not this engine's {self._port}")
        if room in self._rooms:
            raise RequestError(f"room {room} is taken")
        waiting = self._rooms[room] = _Room(digest)
        try:
            await waiting.met.wait()
        finally:
            del self._rooms[room]

    async def _knock(self, origin: str, room: int, digest: str) -> None:
        path = f"/room/{room}/{digest}"
        while await fetch_ok(self._pool, origin, path) is None:  # noqa: ASYNC110  the event is another process's
            await asyncio.sleep(ASK_S)

    def _on_knock(self, exchange: Exchange) -> None:
        """Let the decode half in if it has the same prompt."""
        _, room, digest = exchange.request.path.removeprefix("/").split("/")
        waiting = self._rooms.get(int(room))
        if waiting is None or waiting.digest != digest:
            exchange.respond(404, msgspec.json.encode({"room": room}))
            return
        waiting.met.set()
        exchange.respond(HTTP_OK, b"{}")
