"""A relay in front of an engine: it tells prompts that a router sends of its own accord from those
of clients, and does to the former what a bad engine would.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Literal

import httpx
import msgspec

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer

How = Literal["well", "hang", "500", "rubbish", "slow"]
SLOW_S = 1.2


class Relay:
    """Passes requests on to the engine at `engine`. `came` has one letter for each prompt: w for
    one that a router sent to warm the engine, c for a client's. `warm` are the bodies of the
    former, `how` is how these are answered. It sleeps as vLLM does: it wakes with an empty cache.
    """

    def __init__(self, engine: str) -> None:
        self.came = ""
        self.warm: list[bytes] = []
        self.how: How = "well"
        self.sleeps = False
        self.server = HttpServer(self._serve)
        self._engine = httpx.AsyncClient(base_url=engine, timeout=60)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def forget(self) -> None:
        """Begin to count anew."""
        self.came, self.how = "", "well"
        self.warm.clear()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._engine.aclose()
        await self.server.close()

    def _serve(self, exchange: Exchange) -> None:
        task = asyncio.ensure_future(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        request, how = exchange.request, "well"
        if request.path in {"/sleep", "/wake_up", "/is_sleeping"}:
            await self._sleep(request.path)
            exchange.respond(200, msgspec.json.encode({"is_sleeping": self.sleeps}))
            return
        if self.sleeps and request.method == "POST":
            exchange.respond(503, b"{}")  # of a replica that does not know it yet
            return
        if request.method == "POST" and request.path.startswith("/v1/"):
            warm = exchange.request_id.startswith(b"warm-")
            self.came += "w" if warm else "c"
            if warm:
                self.warm.append(request.body)
                how = self.how
        if how == "hang":
            return
        if how in {"500", "rubbish"}:
            exchange.respond(500 if how == "500" else 200, b"<html>no</html>")
            return
        await asyncio.sleep(SLOW_S if how == "slow" else 0.0)
        await self._pass_on(exchange)

    async def _pass_on(self, exchange: Exchange) -> None:
        request = exchange.request
        left_out = {b"host", b"content-length", b"connection"}
        headers = [one for one in request.headers if one[0] not in left_out]
        try:
            answer = await self._engine.request(
                request.method, request.target.decode(), content=request.body, headers=headers
            )
        except httpx.HTTPError:
            exchange.channel.reset()
            return
        exchange.respond(answer.status_code, answer.content)

    async def _sleep(self, path: str) -> None:
        if path == "/sleep":
            self.sleeps = True
            while not (await self._engine.post("/reset_prefix_cache")).json()["success"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # requests still run
        elif path == "/wake_up":
            self.sleeps = False


@contextlib.asynccontextmanager
async def relay(engine: str) -> AsyncIterator[Relay]:
    """Serve in front of an engine until the block ends."""
    made = Relay(engine)
    await made.server.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.close()
