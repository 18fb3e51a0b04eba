"""Engines join, are warmed, drain and die under load: no request fails, all agree afterwards."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.chaos.clients import Prompts
from tests.chaos.mesh import ChaosMesh, MeshSize, running_mesh
from tests.chaos.rounds import witnessed
from tests.chaos.storm import Storm

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(300)]

SIZE = MeshSize(ranks=(1, 1, 1), blocks=6000, speedup=1.0, router_options=("--warm-share", "0.5"))
"""Engines so slow, and so much allowed, that a newcomer is warmed for a second or more."""

FILL_S = 6.0
LONGER = 8
"""Prompts below 256 tokens are not kept. Each round has others, since what is cached everywhere
earns no budget.
"""

LATEST_S = 40.0
POLL_S = 0.03
NEWCOMER = 2
LEAVER = 1


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh"), SIZE) as mesh:
        yield mesh


class Seen:
    """What routers say of the workers."""

    def __init__(self, mesh: ChaosMesh, client: httpx.AsyncClient) -> None:
        self._mesh = mesh
        self._client = client

    async def worker(self, router: int, worker: str) -> dict[str, Any]:
        """Return a router's row of a worker, {} while the one or the other is not there."""
        try:
            answer = await self._client.get(f"{self._mesh.routers[router].url}/v1/status")
            rows = answer.raise_for_status().json()["workers"]
        except httpx.HTTPError:
            return {}
        return next((one for one in rows if one["worker"] == worker), {})

    async def until(
        self,
        worker: str,
        right: Callable[[dict[str, Any]], bool],
        routers: tuple[int, ...] = (0, 1),
    ) -> None:
        """Wait until these routers say so of a worker."""
        deadline_s = time.monotonic() + LATEST_S
        for router in routers:
            while not right(row := await self.worker(router, worker)):
                assert time.monotonic() < deadline_s, f"r{router} says of {worker}: {row}"
                await asyncio.sleep(POLL_S)

    async def warmed_tokens(self, router: int) -> float:
        """Return how much a router had newcomers compute, 0 while it is not there."""
        try:
            text = (await self._client.get(f"{self._mesh.routers[router].url}/metrics")).text
        except httpx.HTTPError:
            return 0.0
        lines = [one for one in text.splitlines() if one.startswith("kvmesh_warmed_tokens_total ")]
        return float(lines[0].split()[1]) if lines else 0.0

    async def until_warmed(self, before: list[float]) -> int:
        """Wait until a router has had the newcomer compute something more; return its number."""
        deadline_s = time.monotonic() + LATEST_S
        while time.monotonic() < deadline_s:
            for router, tokens in enumerate(before):
                if await self.warmed_tokens(router) > tokens:
                    return router
            await asyncio.sleep(POLL_S)
        pytest.fail("nobody warms the newcomer")


def is_usable(row: dict[str, Any]) -> bool:
    """Return whether it is given requests."""
    return bool(row) and bool(row["usable"])


Happening = Callable[[ChaosMesh, Seen, Storm], Awaitable[None]]


async def play(mesh: ChaosMesh, seed: int, happening: Happening) -> None:
    """Play one round: fill the caches, have it happen, and see that nobody had less than a whole
    answer.
    """
    await mesh.heal()
    async with witnessed(mesh) as rounds, httpx.AsyncClient(timeout=30.0) as client:
        seen = Seen(mesh, client)

        async def happen(storm: Storm) -> None:
            await happening(mesh, seen, storm)

        rng, prompts = random.Random(seed), Prompts(LONGER, f" of {happening.__name__} {seed}")
        told = await rounds.play(seed, rng, happen, rest_s=LATEST_S, prompts=prompts)
        print(f"seed {seed}: {told}", *rounds.history, sep="\n  ")  # noqa: T201
        assert rounds.outcomes.keys() == {"whole"}, rounds.outcomes


async def leave(mesh: ChaosMesh, seen: Seen, storm: Storm) -> None:
    """Have the newcomer be away while the others' caches fill."""
    mesh.sidecars[NEWCOMER].stop()
    mesh.engines[NEWCOMER].stop()
    await seen.until(f"w{NEWCOMER}", lambda row: not is_usable(row))
    storm.report("the newcomer is away")
    await asyncio.sleep(FILL_S)


async def join(mesh: ChaosMesh, seen: Seen, storm: Storm) -> int:
    """Have it join with an empty cache, and wait until it is being warmed; return by whom."""
    before = [await seen.warmed_tokens(router) for router in range(len(mesh.routers))]
    mesh.engines[NEWCOMER].start()
    mesh.sidecars[NEWCOMER].start()
    lead = await seen.until_warmed(before)
    why = (await seen.worker(lead, f"w{NEWCOMER}")).get("why_not")
    storm.report(f"r{lead} warms the newcomer ({why or 'it serves already'})")
    return lead


async def a_newcomer_dies(mesh: ChaosMesh, seen: Seen, storm: Storm) -> None:
    await leave(mesh, seen, storm)
    await join(mesh, seen, storm)
    mesh.engines[NEWCOMER].kill()
    storm.report("SIGKILL the newcomer")
    await asyncio.sleep(1.0)
    mesh.engines[NEWCOMER].start()
    await seen.until(f"w{NEWCOMER}", is_usable)
    storm.report("the newcomer serves")


async def the_one_that_warms_dies(mesh: ChaosMesh, seen: Seen, storm: Storm) -> None:
    await leave(mesh, seen, storm)
    lead = await join(mesh, seen, storm)
    mesh.routers[lead].kill()
    storm.report(f"SIGKILL r{lead}")
    await seen.until(f"w{NEWCOMER}", is_usable, (1 - lead,))
    storm.report(f"the newcomer serves at r{1 - lead}")
    mesh.routers[lead].start()
    await seen.until(f"w{NEWCOMER}", is_usable)


async def one_that_drains_dies(mesh: ChaosMesh, seen: Seen, storm: Storm) -> None:
    worker = f"w{LEAVER}"
    async with httpx.AsyncClient(base_url=mesh.routers[0].url, timeout=30.0) as client:
        deadline_s = time.monotonic() + LATEST_S
        while not (await seen.worker(0, worker)).get("active_requests"):
            assert time.monotonic() < deadline_s, "nothing to drain"
            await asyncio.sleep(POLL_S)
        answer = await client.post("/admin/drain", json={"worker": worker, "draining": True})
        assert answer.status_code == httpx.codes.ACCEPTED, answer.text
        await seen.until(worker, lambda row: not is_usable(row), (0,))
        mesh.engines[LEAVER].kill()
        storm.report(f"SIGKILL {worker}, which drains")
        await asyncio.sleep(1.0)
        mesh.engines[LEAVER].start()
        await asyncio.sleep(2.0)
        assert not is_usable(await seen.worker(0, worker)), "it drains until it is told otherwise"
        await client.post("/admin/drain", json={"worker": worker, "draining": False})
        await seen.until(worker, is_usable)
        storm.report(f"{worker} is used again")
        await seen.until(worker, lambda row: row.get("active_requests", 0) > 0, (0,))


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.chaos) for n in range(2, 6))]
)
@pytest.mark.parametrize(
    "happening", [a_newcomer_dies, the_one_that_warms_dies, one_that_drains_dies]
)
async def test_no_request_fails_when(mesh: ChaosMesh, happening: Happening, seed: int) -> None:
    await play(mesh, seed, happening)
