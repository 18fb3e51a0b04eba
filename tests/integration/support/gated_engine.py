"""An engine whose prefills end when the test says so."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer

EVENTS = ((b"content-type", b"text/event-stream"),)
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class GatedEngine:
    """Serves /v1/models, and streams that begin at `let_go`. `seen` are the requests' ids.

    `cards` are further fields of its models by name, `paths` all paths asked for; what is neither
    of these two is answered `{"path": ...}`.
    """

    def __init__(self, *models: str) -> None:
        self.models = models or ("mock",)
        self.cards: dict[str, dict[str, object]] = {}
        self.seen: list[str] = []
        self.paths: list[str] = []
        self.left: list[str] = []
        self.url = ""
        self._waiting: deque[Exchange] = deque()
        self.server = HttpServer(self._serve)

    @property
    def waiting(self) -> int:
        """Return how many streams have not begun."""
        return len(self._waiting)

    def let_go(self) -> None:
        """Answer the oldest stream that waits, wholly."""
        exchange = self._waiting.popleft()
        exchange.start(200, EVENTS)
        exchange.write(CHUNK + DONE)
        exchange.end()

    def _serve(self, exchange: Exchange) -> None:
        path = exchange.request.path
        self.paths.append(path)
        if path == "/v1/models":
            models = [{"id": name, **self.cards.get(name, {})} for name in self.models]
            exchange.respond(200, msgspec.json.encode({"object": "list", "data": models}))
        elif path == "/v1/chat/completions":
            self.seen.append(exchange.request_id.decode())
            self._waiting.append(exchange)
            exchange.on_disconnect = lambda: self._lose(exchange)
        else:
            exchange.respond(200, msgspec.json.encode({"path": path}))

    def _lose(self, exchange: Exchange) -> None:
        self._waiting.remove(exchange)
        self.left.append(exchange.request_id.decode())


@contextlib.asynccontextmanager
async def gated_engine(*models: str) -> AsyncIterator[GatedEngine]:
    """Serve an engine until the block ends."""
    engine = GatedEngine(*models)
    await engine.server.start("127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{engine.server.port}"
    try:
        yield engine
    finally:
        await asyncio.wait_for(engine.server.close(), 60)
