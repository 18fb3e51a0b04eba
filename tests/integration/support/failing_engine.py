"""A small pretend engine whose answers a test scripts, and a client: what neither should do, but
some will.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer

RESET = struct.pack("ii", 1, 0)
Answer = Callable[[Exchange], None]


def answer_well(exchange: Exchange) -> None:
    """Answer as vLLM would: one token, streamed or not."""
    body = json.loads(exchange.request.body)
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    if body.get("stream"):
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        chunk = {"choices": [{"index": 0, "delta": {"content": "ok"}}]}
        exchange.write(b"data: %b\n\n" % json.dumps(chunk).encode())
        exchange.write(b"data: [DONE]\n\n")
        exchange.end()
        return
    message = {"role": "assistant", "content": "ok"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    whole = {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}
    exchange.respond(200, json.dumps({**whole, "usage": usage}).encode())


def answer_status(status: int, *headers: tuple[bytes, bytes]) -> Answer:
    """Return what answers at once with an error."""

    def answer(exchange: Exchange) -> None:
        error = {"message": "CUDA error", "type": "x", "code": status}
        exchange.respond(status, json.dumps({"error": error}).encode(), headers=headers)

    return answer


def never_answer(exchange: Exchange) -> None:
    """Keep the request."""
    del exchange


def close_unanswered(exchange: Exchange) -> None:
    """End the connection as an engine does that dies of the request."""
    exchange.channel.reset()


class FailingEngine:
    """Answers prompts as `answer` says, and its probes while `healthy` and `ready`.

    `prompts` are the bodies that came. `lists`: it tells its models.
    """

    def __init__(self) -> None:
        self.answer: Answer = answer_well
        self.healthy = True
        self.ready = True
        self.lists = True
        self.prompts: list[dict[str, Any]] = []
        self.health_asked = 0
        self.server = HttpServer(self.serve)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def serve(self, exchange: Exchange) -> None:
        path = exchange.request.path
        if exchange.request.method == "POST":
            self.prompts.append(json.loads(exchange.request.body))
            self.answer(exchange)
        elif path == "/v1/models":
            if not self.lists:
                return
            exchange.respond(200, b'{"object":"list","data":[{"id":"m","object":"model"}]}')
        elif path == "/ready" and self.ready:
            exchange.respond(200, b"{}")
        elif path == "/ready":
            pass
        elif path == "/health":
            self.health_asked += 1
            if self.healthy:
                exchange.respond(200, b"{}")
        else:
            exchange.respond(404, b"{}")


@contextlib.asynccontextmanager
async def failing_engines(count: int) -> AsyncIterator[list[FailingEngine]]:
    """Yield engines that serve, all well at first."""
    engines = [FailingEngine() for _ in range(count)]
    try:
        for engine in engines:
            await engine.server.start("127.0.0.1", 0)
        yield engines
    finally:
        await asyncio.gather(*(engine.server.close() for engine in engines))


def request_bytes(body: bytes, path: str, *headers: str, length: int | None = None) -> bytes:
    """Return a whole POST; `length` announces another length than the body has."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: a",
        "content-type: application/json",
        f"content-length: {len(body) if length is None else length}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, url: str) -> "RawClient":
        """Connect to a router."""
        where = urlsplit(url)
        return cls(*await asyncio.open_connection(where.hostname, where.port))

    async def send(self, data: bytes) -> None:
        """Send as it is; no error where the other side has answered and closed."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def status(self) -> int:
        """Return the status that is answered, 0 when the connection ends before."""
        try:
            line = await asyncio.wait_for(self._reader.readline(), 20)
        except ConnectionError:
            return 0
        return int(line.split()[1]) if line else 0

    async def until(self, text: bytes) -> None:
        """Read on until `text` came."""
        await asyncio.wait_for(self._reader.readuntil(text), 20)

    async def rest(self) -> bytes:
        """Read to the end of the connection."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self._reader.read(), 20)
        return b""

    def reset(self) -> None:
        """Close with a TCP reset."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._writer.transport.abort()

    def close(self) -> None:
        """Close."""
        self._writer.close()


async def exchange(url: str, body: Any, *headers: str, path: str = "/v1/chat/completions") -> int:
    """Return the status of one request, read to its end."""
    client = await RawClient.connect(url)
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    await client.send(request_bytes(data, path, "connection: close", *headers))
    status = await client.status()
    await client.rest()
    client.close()
    return status
