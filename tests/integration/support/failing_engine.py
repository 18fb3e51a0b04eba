"""A small pretend engine whose answers a test scripts: what no engine should do, but some will."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer

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
    exchange._channel.reset()


class FailingEngine:
    """Answers prompts as `answer` says, and its probes while `healthy` and `ready`.

    `prompts` are the bodies that came.
    """

    def __init__(self) -> None:
        self.answer: Answer = answer_well
        self.healthy = True
        self.ready = True
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
