"""A running mesh whose streams are deleted, or whose JetStream has no room left."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.errors import TransportError
from kvmesh.transport.nats.jetstream.api import ApiError, JetStream
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from tests.chaos.process import fixed_ports
from tests.integration.support import waiting
from tests.integration.support.small_mesh import WITHIN_S, SmallMesh, answer_with, running

pytestmark = pytest.mark.integration

PROMPT = "A long shared context, word after word. " * 40
EVENTS, META, SNAPSHOTS = "KVMESH_EVENTS_default", "KV_kvmesh_meta", "OBJ_kvmesh_snapshots_default"
SESSIONS = "KV_kvmesh_sessions_default"
ROOM = 8 * 1024**2


class SickMesh:
    """A mesh, its server, and a client of both."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        port = fixed_ports(1)[0]
        self.server = self.server_with(ROOM, port)
        self.mesh = SmallMesh(
            folder,
            self.server.url,
            *("--stream-max-bytes", str(1024**2), "--session-affinity", "soft"),
            *("--snapshot-interval-s", "1"),
        )
        self.http = httpx.AsyncClient()
        self._asked = 0
        self.jetstream = JetStream(NatsConnection(NatsOptions(url=self.server.url)))

    def server_with(self, room: int, port: int) -> NatsServer:
        config = f"jetstream {{ max_file_store: {room} }}"
        log = self._folder / "nats.log"
        return NatsServer(self._folder / "store", port=port, config=config, log_path=log)

    async def ask(self, prompt: str = PROMPT) -> httpx.Response:
        body = {"model": "mock", "prompt": prompt, "max_tokens": 3}
        headers = {"x-kvmesh-session": prompt[:9].strip()}
        url = f"{self.mesh.router.url}/v1/completions"
        return await self.http.post(url, json=body, headers=headers)

    async def status(self) -> dict[str, Any]:
        answer = await self.http.get(f"{self.mesh.router.url}/v1/status")
        status: dict[str, Any] = answer.json()["mesh"]
        return status

    async def created(self, stream: str) -> str:
        return (await self.jetstream.stream_info(stream)).created

    async def is_used(self, stream: str) -> bool:
        """Return whether something is written there, while other prompts come in."""
        self._asked += 1
        assert (await self.ask(f"{self._asked} {PROMPT}")).status_code == 200
        return (await self.jetstream.stream_info(stream)).state.messages > 0

    async def blocks(self) -> int:
        """Return how many blocks the router knows of by events."""
        return sum((await self.status())["blocks"].values())

    async def has_read_all(self) -> bool:
        """Return whether the router knows of all that is stored."""
        stored = (await self.jetstream.stream_info(EVENTS)).state.last_seq
        applied: int = (await self.status())["applied_sequence"]
        return applied == stored

    async def knows_more_than(self, blocks: int) -> bool:
        return await self.blocks() > blocks

    async def make_room(self, how: str) -> None:
        if how == "purge":
            await self.jetstream.purge("ballast", {})
            return
        await self.server.stop()
        self.server = self.server_with(4 * ROOM, self.server.port)
        await self.server.start()

    async def takes_snapshots(self) -> bool:
        """Return whether the router stored snapshots of what is in the journal now."""
        mesh = await self.status()
        newest = mesh["snapshotter"]["newest"]
        return bool(newest) and newest["created"] == mesh["created"]

    async def stop(self) -> None:
        await self.server.stop()

    def said(self) -> str:
        return self.mesh.said(self.mesh.router)


@pytest.fixture
async def sick(tmp_path: Path) -> AsyncIterator[SickMesh]:
    sick = SickMesh(tmp_path)
    await sick.server.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(sick.stop)
        sick.http = await stack.enter_async_context(running(*sick.mesh.all()))
        await answer_with(sick.http, sick.mesh.front, "/ready", 200)
        connection = sick.jetstream.connection
        await connection.connect()
        stack.push_async_callback(connection.close)
        assert (await sick.ask()).status_code == 200
        for stream in (EVENTS, META, SNAPSHOTS, SESSIONS):
            await until(partial(sick.is_used, stream), f"{stream} is used")
        yield sick


async def until(check: Callable[[], Awaitable[bool]], what: str) -> None:
    async def holds() -> bool:
        with contextlib.suppress(TransportError):
            return await check()
        return False

    await waiting.until(holds, WITHIN_S, what)


async def test_a_deleted_stream_is_made_anew_and_used(sick: SickMesh) -> None:
    for number, stream in enumerate((EVENTS, META, SNAPSHOTS, SESSIONS), 1):
        before = await sick.created(stream)
        await sick.jetstream.delete_stream(stream)

        async def is_back(stream: str = stream, before: str = before) -> bool:
            return await sick.created(stream) != before

        await until(is_back, f"{stream} is there again")
        for each in (EVENTS, META, SNAPSHOTS, SESSIONS):
            await until(partial(sick.is_used, each), f"{each} is used")
        await until(sick.takes_snapshots, "snapshots are taken")
        assert sick.said().count("stream was deleted and is made again") == number, sick.said()
    await answer_with(sick.http, sick.mesh.router, "/ready", 200)


async def fill(jetstream: JetStream) -> None:
    """Put into a stream of our own what the server has room for."""
    await jetstream.ensure_stream({"name": "ballast", "subjects": ["ballast"]})
    for size in (256 * 1024, 4096, 1, 1):
        with contextlib.suppress(ApiError):
            while True:
                await jetstream.publish("ballast", bytes(size))


async def test_a_mesh_goes_on_without_room_and_uses_it_when_there_is_some(sick: SickMesh) -> None:
    for relief in ("purge", "restart"):
        await starve_and_relieve(sick, relief)


async def starve_and_relieve(sick: SickMesh, relief: str) -> None:
    before = len(sick.said())
    await fill(sick.jetstream)
    await until(sick.has_read_all, "the router reads what was stored before")
    known = await sick.blocks()
    warning = f"JetStream: writes to {META}: insufficient resources (code 10023)"
    await answer_with(sick.http, sick.mesh.router, "/ready", 200, warning)
    for number in range(5):
        assert (await sick.ask(f"{relief} {number} {PROMPT}")).status_code == 200
    assert await sick.blocks() == known
    assert "JetStream refuses" in sick.mesh.said(sick.mesh.sidecar)

    await sick.make_room(relief)
    await until(partial(sick.knows_more_than, known + 5 * 80), "events of meanwhile are stored")

    async def is_over() -> bool:
        ready = await sick.http.get(f"{sick.mesh.router.url}/ready")
        return ready.status_code == 200 and "JetStream" not in ready.text

    await until(is_over, "the warning is gone")
    about = [line for line in sick.said()[before:].splitlines() if f"writes to {META}" in line]
    assert ["no more" in line for line in about] == [False, True], sick.said()
