"""Servers of the broker are parted under load, HTTP is whole: nothing may be refused."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from tests.chaos.clients import Clients
from tests.chaos.mesh import ChaosMesh, MeshSize
from tests.chaos.process import MeshProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTED_S = 20.0
AFTER_S = 30.0
# Every sidecar at n2, a router at each, the front door at n0: whichever server is cut off, somebody
# hears no worker, and for n0 and n2 the front door hears no router with workers.
SIZE = MeshSize(servers=3, routers=3, speedup=4.0, homes=(2, 2, 0, 1, 2, 0))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosMesh]:
    mesh = ChaosMesh(tmp_path_factory.mktemp("mesh"), SIZE)
    try:
        asyncio.run(mesh.start())
        yield mesh
    finally:
        asyncio.run(mesh.stop())


class Load:
    """Clients of every door at once; `failed` says what was not answered in full, by door."""

    def __init__(self, mesh: ChaosMesh) -> None:
        self._doors: list[tuple[MeshProcess, Clients]] = [
            (door, Clients(door.url, random.Random(number), count=2))
            for number, door in enumerate((mesh.front, *mesh.routers))
        ]

    async def during(self, seconds: float) -> dict[str, dict[str, int]]:
        """Let everybody ask for so long; return the outcomes of each door."""
        for _, clients in self._doors:
            clients.outcomes.clear()
            clients.start()
        await asyncio.sleep(seconds)
        await asyncio.gather(*(clients.stop() for _, clients in self._doors))
        return {door.name: dict(clients.outcomes) for door, clients in self._doors}

    async def close(self) -> None:
        await asyncio.gather(*(clients.close() for _, clients in self._doors))


def failed(outcomes: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the doors whose clients got less than whole answers."""
    return {door: seen for door, seen in outcomes.items() if seen.keys() != {"whole"}}


@pytest.mark.parametrize("server", [0, 1, 2])
@pytest.mark.parametrize("how", ["cut"])
async def test_a_route_partition_refuses_nothing(mesh: ChaosMesh, server: int, how: str) -> None:
    await mesh.heal()
    load = Load(mesh)
    try:
        before = await load.during(1.0)
        (mesh.routes.cut if how == "cut" else mesh.routes.hold)(server)
        parted = await load.during(PARTED_S)
        mesh.routes.heal()
        after = await load.during(AFTER_S)
    finally:
        mesh.routes.heal()
        await load.close()

    print(f"n{server} parted: {parted}; healed: {after}")  # noqa: T201
    assert failed(before) == {}
    assert failed(parted) == {}
    assert failed(after) == {}
