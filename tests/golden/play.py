"""A scene played once: what clients were answered, engines were sent, and what is on record.

A scene's lines are plain data, one a request and one for the end; equal code gives equal lines.
"""

import asyncio
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from kvmesh.app.process.running import Stop
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.settings.roles import RouterSettings
from tests.golden.fleet import ENGINE_PORT, ROUTER_PORT, Engine, GoldenRouter, Worker
from tests.golden.virtual_loop import Listening, VirtualLoop, virtual_world

ENOUGH_S: Final = 400.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_UNTOLD: Final = re.compile(
    r"seconds|_bytes|memory|python_|process_|build_info|_lag_|phase|internal_errors|_us_|duration"
)
"""Series that say how long this machine takes, or what it is."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request: sent `at_s`, its client gone after `leaves_s`."""

    at_s: float
    body: dict[str, Any] | bytes
    path: str = "/v1/chat/completions"
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    leaves_s: float | None = None


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """A router's settings, its fleet, and what it is asked."""

    name: str
    settings: RouterSettings
    fleet: tuple[Worker, ...]
    asks: Callable[[], list[Ask]]


class _Client(asyncio.Protocol):
    def __init__(self, *, bare: bool = False) -> None:
        self.data = b""
        self._bare = bare
        self.done = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, end, rest = self.data.partition(b"\r\n\r\n")
        if not end:
            return
        length = _LENGTH.search(head)
        if length is not None:
            whole = self._bare or len(rest) >= int(length.group(1))
        else:
            whole = b"chunked" in head.lower() and rest.endswith(b"0\r\n\r\n")
        if whole:
            self.done.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.done.set()


def play(scene: Scene) -> list[dict[str, Any]]:
    """Return the scene's lines."""
    with virtual_world() as loop:
        asyncio.set_event_loop(loop)
        try:
            return loop.run_until_complete(_play(scene, loop))
        finally:
            asyncio.set_event_loop(None)


async def _play(scene: Scene, loop: VirtualLoop) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    for number, worker in enumerate(scene.fleet):
        held = {one for kept in worker.kept for one in BlockHashes(kept.text, 16).upto(kept.blocks)}
        made = partial(Engine, number, worker, seen, held)
        await loop.create_server(made, sock=Listening(ENGINE_PORT + number))
    router = GoldenRouter(scene.settings, scene.fleet)
    stop = Stop()
    serving = asyncio.ensure_future(router.serve(stop))
    while ROUTER_PORT not in loop.listeners:
        assert not serving.done(), serving.exception()
        await asyncio.sleep(0.01)
    await asyncio.sleep(1.0)
    asks = scene.asks()
    answers = await asyncio.gather(*(_ask(loop, number, ask) for number, ask in enumerate(asks)))
    await asyncio.sleep(2.0)
    lines: list[dict[str, Any]] = []
    for number, (ask, answer) in enumerate(zip(asks, answers, strict=True)):
        name = f"g{number}"
        own = re.compile(rf"\r\nx-request-id: {name}\b")
        mine = [one for one in seen if own.search(one["request"])]
        detail = await _fetch(loop, f"/v1/decisions/{name}")
        lines.append(
            {
                "ask": number,
                "path": ask.path,
                "sent": mine,
                "answer": answer.decode("latin-1"),
                "decision": json.loads(detail) if detail.startswith(b"{") else detail.decode(),
            }
        )
    metrics = (await _fetch(loop, "/metrics")).decode()
    outbox = router.mesh.outbox
    lines.append(
        {
            "end": scene.name,
            "published": [] if outbox is None else [one.hex() for one in outbox.take(64, 4096)],
            "bookings_left": len(router.scheduler.sequences.bookings),
            "metrics": [
                one
                for one in metrics.splitlines()
                if not (one.startswith("#") or one.endswith(" 0.0") or _UNTOLD.search(one))
            ],
        }
    )
    stop.request()
    await serving
    found: list[dict[str, Any]] = json.loads(json.dumps(lines))
    return found


async def _ask(loop: VirtualLoop, number: int, ask: Ask) -> bytes:
    await asyncio.sleep(ask.at_s)
    body = ask.body if isinstance(ask.body, bytes) else json.dumps(ask.body).encode()
    head = f"{ask.method} {ask.path} HTTP/1.1\r\nhost: router\r\nx-request-id: g{number}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in ask.headers)
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    client = _Client(bare=ask.method == "HEAD")
    wire, _ = await loop.create_connection(lambda: client, "router", ROUTER_PORT)
    wire.write(head.encode("latin-1") + b"\r\n" + body)
    try:
        async with asyncio.timeout(ask.leaves_s or ENOUGH_S):
            await client.done.wait()
    except TimeoutError:
        assert ask.leaves_s is not None, f"request {number} is never answered"
    wire.abort()
    return client.data


async def _fetch(loop: VirtualLoop, path: str) -> bytes:
    client = _Client()
    wire, _ = await loop.create_connection(lambda: client, "router", ROUTER_PORT)
    wire.write(f"GET {path} HTTP/1.1\r\nhost: router\r\nconnection: close\r\n\r\n".encode())
    await client.done.wait()
    wire.abort()
    return client.data.partition(b"\r\n\r\n")[2]
