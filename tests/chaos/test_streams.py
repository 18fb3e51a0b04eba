"""Engines and routers are killed under streams for minutes: none is cut, no token is lost or twice.

`KVMESH_STORM_S=40 pytest tests/chaos/test_streams.py -s` for a first look.
"""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from statistics import quantiles

import httpx
import pytest

from tests.chaos.mesh import ChaosMesh, MeshSize
from tests.chaos.process import MeshProcess
from tests.integration.support.told_stream import FORMS, Told, form, tell

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(1200)]

STORM_S = float(os.environ.get("KVMESH_STORM_S", "240"))
STREAMS = 12
TOKENS = 500
AGAIN = frozenset({"chat with tools", "chat with stop strings"})
"""Forms whose whole answer is made again: the gap is as long as that takes."""

APART_S = 6.0
"""Between two kills: a stream meets one or two."""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosMesh]:
    size = MeshSize(routers=3, ranks=(1, 1, 1), blocks=4096, speedup=1.0)
    mesh = ChaosMesh(tmp_path_factory.mktemp("mesh"), size)
    try:
        asyncio.run(mesh.start())
        yield mesh
    finally:
        asyncio.run(mesh.stop())


class Storm:
    """Streams at the front door, one after the other, while engines and routers are killed."""

    def __init__(
        self, mesh: ChaosMesh, client: httpx.AsyncClient, truth: httpx.AsyncClient
    ) -> None:
        self.streams = 0
        self.wrong: list[str] = []
        self.gaps_s: dict[str, list[float]] = {"from ids": [], "again": []}
        self._mesh = mesh
        self._client = client
        self._truth = truth
        self._rng = random.Random(1)
        self._end_s = time.monotonic() + STORM_S
        self._killed: list[tuple[float, str]] = []

    async def ask(self, number: int) -> None:
        """Ask for streams until the time is up."""
        while time.monotonic() < self._end_s:
            self.streams += 1
            name = self._rng.choice(list(FORMS))
            path, body = form(name, self.streams, TOKENS)
            before = await tell(self._truth, path, body)
            began_s = last_s = time.monotonic()
            longest_s = 0.0

            def look(told: Told) -> None:
                nonlocal last_s, longest_s
                del told
                now = time.monotonic()
                last_s, longest_s = now, max(longest_s, now - last_s)

            told = await tell(self._client, path, body, look)
            members = {told.head.get("x-kvmesh-worker", ""), told.head.get("x-kvmesh-router", "")}
            if any(at_s > began_s and one in members for at_s, one in self._killed):
                self.gaps_s["again" if name in AGAIN else "from ids"].append(longest_s)
            if told.said != before.said:
                self.wrong.append(f"client {number}, {name}: {told.said} != {before.said}")

    async def kill(self) -> None:
        """Kill one after the other, and start it again."""
        engines = {f"w{number}": one for number, one in enumerate(self._mesh.engines)}
        routers = {f"r{number}": one for number, one in enumerate(self._mesh.routers)}
        victims: list[tuple[str, MeshProcess]] = [*engines.items(), *routers.items()]
        while time.monotonic() < self._end_s - APART_S:
            name, victim = self._rng.choice(victims)
            self._killed.append((time.monotonic(), name))
            victim.kill()
            await asyncio.sleep(APART_S / 6)
            await self._mesh.heal()
            await asyncio.sleep(self._rng.uniform(0.5, 1.0) * APART_S)


async def test_streams_survive_a_storm_of_kills(mesh: ChaosMesh) -> None:
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=mesh.front.url, timeout=60, limits=limits) as client,
        httpx.AsyncClient(base_url=mesh.reference.url, timeout=60, limits=limits) as truth,
    ):
        storm = Storm(mesh, client, truth)
        await asyncio.gather(storm.kill(), *(storm.ask(number) for number in range(STREAMS)))

    print(f"{storm.streams} streams, {len(storm.wrong)} of them wrong")  # noqa: T201
    for way, gaps_s in storm.gaps_s.items():
        p90_s = quantiles(gaps_s, n=10)[-1] if len(gaps_s) > 1 else 0.0
        print(f"{len(gaps_s)} cut and gone on {way}, gap p90 {p90_s:.2f} s")  # noqa: T201
    assert storm.wrong == []
    assert any(storm.gaps_s.values())
