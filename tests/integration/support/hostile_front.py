"""Front doors in a thread of their own, and a client that may send them any bytes."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import httpx

from kvmesh.app.meta.command import MetaServer
from kvmesh.app.router.command import RouterServer
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import MetaRouterSettings, RouterSettings
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from tests.integration.support.live_router import free_port, serving

Kind = Literal["router", "meta-router"]

# What every API answers, at once: well-formed, whatever the path.
_ANSWER = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}}],
        "content": [{"type": "text", "text": "ok"}],
        "output": [{"type": "message", "role": "assistant", "content": []}],
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }
).encode()


def answer_anything(exchange: Exchange) -> None:
    """Answer as an engine that judges nothing it is sent."""
    if exchange.request.path == "/v1/models":
        exchange.respond(200, b'{"object":"list","data":[{"id":"m","object":"model"}]}')
    else:
        exchange.respond(200, _ANSWER)


class Answer:
    """One answer: its status, 0 for none, its headers and body."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1]) if raw else 0
        pairs = (line.partition(": ") for line in lines[1:])
        self.headers = {name.lower(): value for name, _, value in pairs}


class Front:
    """A front door on a real socket; `server` is in this process."""

    def __init__(self, port: int, server: RouterServer | MetaServer, models: str) -> None:
        self.port = port
        self.server = server
        self.models = models

    def send(
        self,
        body: bytes | Mapping[str, Any],
        headers: Mapping[str, str | bytes] | None = None,
        target: bytes = b"/v1/chat/completions",
        method: str = "POST",
    ) -> Answer:
        """Send one request on a connection of its own."""
        if isinstance(body, Mapping):
            body = json.dumps(body).encode()
        lines = [b"%b %b HTTP/1.1" % (method.encode(), target), b"host: x", b"connection: close"]
        for name, value in (headers or {}).items():
            sent = value if isinstance(value, bytes) else value.encode()
            lines.append(b"%b: %b" % (name.encode(), sent))
        lines.append(b"content-length: %d" % len(body))
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            received: list[bytes] = []
            with contextlib.suppress(ConnectionError):
                while piece := sock.recv(1 << 16):
                    received.append(piece)
        return Answer(b"".join(received))

    def get(self, path: str) -> httpx.Response:
        """GET from the front door."""
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=20)

    def internal_errors(self) -> float:
        """Return how many exceptions nobody handled."""
        lines = self.get("/metrics").text.splitlines()
        counts = (line for line in lines if line.startswith("kvmesh_internal_errors_total"))
        return sum(float(line.rpartition(" ")[2]) for line in counts)


@contextlib.contextmanager
def front(kind: Kind, **settings: Any) -> Iterator[Front]:
    """Run a front door over two engines that answer anything; `settings` are its router's."""
    started: list[Front] = []
    ready, done = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            started.append(await _start(stack, kind, settings))
            ready.set()
            await asyncio.to_thread(done.wait)

    def body() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001  raised where the test waits
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=body)
    thread.start()
    try:
        ready.wait()
        if failures:
            raise failures[0]
        yield started[0]
    finally:
        done.set()
        thread.join()
    if failures:
        raise failures[0]


async def _start(stack: contextlib.AsyncExitStack, kind: Kind, settings: dict[str, Any]) -> Front:
    engines: list[str] = []
    for number in range(2):
        engine = HttpServer(answer_anything)
        await engine.start("127.0.0.1", 0)
        stack.push_async_callback(engine.close)
        engines.append(f"w{number}=http://127.0.0.1:{engine.port}")
    port = free_port()
    own = RouterSettings(
        kv_events=False,
        worker=tuple(engines),
        router_id="r0",
        seed=1,
        http=HttpSettings(http_port=port, drain_s=0.5),
        **settings,
    )
    url = f"http://127.0.0.1:{port}"
    router = RouterServer(own)
    await stack.enter_async_context(serving(router.serve, url))
    if kind == "router":
        return Front(port, router, "m")
    port = free_port()
    meta = MetaServer(
        MetaRouterSettings(
            replica=(f"a={url}", f"b={url.replace('127.0.0.1', 'localhost')}"),
            http=HttpSettings(http_port=port, drain_s=0.5),
        )
    )
    await stack.enter_async_context(serving(meta.serve, f"http://127.0.0.1:{port}"))
    return Front(port, meta, "m")
