"""An engine and its clients in one process: each tick, every open stream is written one chunk, and
the next tick comes when all of them have passed the router. So a router never reads two at once.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any, Final, cast

LENGTH: Final = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
MODELS: Final = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
PAGE: Final = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(MODELS), MODELS)
NOTHING: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
ASKING: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b"
)
PATIENCE_S: Final = 60.0
TOKEN_BYTES: Final = 4
"""Of a prompt: what a token is taken to stand for."""


def event(delta: dict[str, object], prompt: Sequence[int] | None, ids: Sequence[int] | None) -> Any:
    """Return one event as vLLM sends it, in a chunk of HTTP; without ids nobody asked for them."""
    choice: dict[str, object] = {"index": 0, "delta": delta, "logprobs": None}
    choice |= {"finish_reason": None} | ({} if ids is None else {"token_ids": ids})
    whole = {
        "id": "chatcmpl-f2f1d38cbe2b4a4c9b3dd7b4",
        "object": "chat.completion.chunk",
        "created": 1732189026,
        "model": "m",
        "choices": [choice],
    }
    whole |= {} if prompt is None else {"prompt_token_ids": prompt}
    data = b"data: %b\n\n" % json.dumps(whole, separators=(",", ":")).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


class Answer(asyncio.Protocol):
    """One connection of the engine; a stream once a request for one has come."""

    def __init__(self, streams: "list[Answer]") -> None:
        self.transport: asyncio.Transport
        self.with_ids = False
        self._streams = streams
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data = data = self._data + data
        head = data.find(b"\r\n\r\n") + 4
        if head < 4:
            return
        length = LENGTH.search(data, 0, head)
        size = int(length.group(1)) if length else 0
        if len(data) < head + size:
            return
        self._data = b""
        if b'"stream":true' not in data:
            self.transport.write(PAGE if data.startswith(b"GET /v1/models") else NOTHING)
            return
        self.with_ids = b'"return_token_ids":true' in data
        prompt = list(range(size // TOKEN_BYTES)) if self.with_ids else None
        role = event({"role": "assistant", "content": ""}, prompt, None)
        self.transport.write(HEAD + role)
        self._streams.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self in self._streams:
            self._streams.remove(self)


class Client(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, lockstep: "LockStep") -> None:
        self.transport: asyncio.Transport
        self.events = 0
        self._lockstep = lockstep

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"data: ")
        self._lockstep.look()


class LockStep:
    """Streams through the router at a port, to the engine here."""

    def __init__(self) -> None:
        self.url = ""
        self._streams: list[Answer] = []
        self._clients: list[Client] = []
        self._told = 0
        self._all: asyncio.Future[None] | None = None
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Answer(self._streams), "127.0.0.1", 0, backlog=4096
        )
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def open(self, port: int, body: bytes) -> None:
        """Open one more stream, and wait for its first event; all are to have as many events."""
        loop = asyncio.get_running_loop()
        client = Client(self)
        client.events = self._told - 1 if self._clients else 0
        self._told = self._told or 1
        self._clients.append(client)
        await loop.create_connection(lambda: client, "127.0.0.1", port)
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        )
        client.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        await self._wait()

    async def tick(self, number: int) -> None:
        """Pass one token through each stream."""
        token = event({"content": f" word{number % 10}"}, None, [1000 + number])
        plain = event({"content": f" word{number % 10}"}, None, None)
        self._told += 1
        for one in self._streams:
            one.transport.write(token if one.with_ids else plain)
        await self._wait()

    async def leave(self) -> None:
        """Close all streams."""
        for client in self._clients:
            client.transport.close()
        self._clients.clear()
        self._told = 0
        while self._streams:  # noqa: ASYNC110  connections do not tell
            await asyncio.sleep(0.01)

    def look(self) -> None:
        """Go on if all clients have all events."""
        waiting = self._all
        if waiting is not None and not waiting.done() and self._has_all():
            waiting.set_result(None)

    def _has_all(self) -> bool:
        return all(one.events >= self._told for one in self._clients)

    async def _wait(self) -> None:
        if not self._has_all():
            self._all = asyncio.get_running_loop().create_future()
            await asyncio.wait_for(self._all, PATIENCE_S)
