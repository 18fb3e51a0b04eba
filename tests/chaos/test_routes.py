"""The machinery of partitions itself: what is cut is cut, and servers find no other way."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from tests.chaos.mesh import ChaosMesh, MeshSize

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

POLL_S = 0.05
DEADLINE_S = 30.0


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncGenerator[ChaosMesh]:
    """Yield a mesh of which only the servers run, all routes up."""
    mesh = ChaosMesh(tmp_path, MeshSize(servers=3))
    mesh.routes.start()
    try:
        for server in mesh.servers:
            await server.start()
        await wait_peers(mesh, {0: {"n1", "n2"}, 1: {"n0", "n2"}, 2: {"n0", "n1"}})
        yield mesh
    finally:
        for server in mesh.servers:
            await server.stop()
        mesh.routes.stop()


async def peers(server: NatsServer) -> set[str]:
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{server.monitoring_url}/routez")
    routes: list[dict[str, Any]] = json.loads(answer.content).get("routes") or []
    return {route["remote_name"] for route in routes}


async def wait_peers(mesh: ChaosMesh, wanted: dict[int, set[str]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = {number: await peers(mesh.servers[number]) for number in wanted}
            if found == wanted:
                return
            await asyncio.sleep(POLL_S)


class Ear:
    """Hears at one server what is said at any."""

    def __init__(self, mesh: ChaosMesh, home: int) -> None:
        self.received: list[bytes] = []
        self.connection = NatsConnection(NatsOptions(url=mesh.servers[home].url, name="ear"))
        self._updates = asyncio.Event()

    async def listen(self) -> None:
        await self.connection.connect()
        await NatsBus(self.connection).subscribe("said", self._receive)
        await self.connection.flush()

    async def wait(self, data: bytes) -> float:
        """Wait until that was heard; return when, by the loop's clock."""
        async with asyncio.timeout(DEADLINE_S):
            while data not in self.received:
                self._updates.clear()
                await self._updates.wait()
        return asyncio.get_running_loop().time()

    def _receive(self, subject: str, data: bytes) -> None:
        del subject
        self.received.append(data)
        self._updates.set()


async def test_a_cut_server_finds_no_other_way_until_each_route_is_healed(
    mesh: ChaosMesh,
) -> None:
    mesh.routes.cut(0)
    await wait_peers(mesh, {0: set(), 1: {"n2"}, 2: {"n1"}})
    # Long enough for servers to try what they were told of each other.
    await asyncio.sleep(3.0)
    assert await peers(mesh.servers[0]) == set()

    mesh.routes.heal(0, [1])
    await wait_peers(mesh, {0: {"n1"}, 1: {"n0", "n2"}, 2: {"n1"}})
    await asyncio.sleep(3.0)
    assert await peers(mesh.servers[0]) == {"n1"}

    mesh.routes.heal()
    await wait_peers(mesh, {0: {"n1", "n2"}})


async def test_a_held_route_delivers_late_what_a_cut_one_loses(mesh: ChaosMesh) -> None:
    far, near = Ear(mesh, 0), Ear(mesh, 1)
    await far.listen()
    await near.listen()
    bus = NatsBus(near.connection)
    async with asyncio.timeout(DEADLINE_S):
        while not far.received:
            bus.publish("said", b"hello")
            await asyncio.sleep(POLL_S)

    mesh.routes.hold(0)
    bus.publish("said", b"held")
    await near.wait(b"held")
    assert b"held" not in far.received
    mesh.routes.heal()
    await far.wait(b"held")
    mesh.routes.slow(0.5)
    bus.publish("said", b"slow")
    logged_s = await near.wait(b"slow")
    received_s = await far.wait(b"slow")

    assert received_s - logged_s >= 0.4
    for ear in (far, near):
        await ear.connection.close()
