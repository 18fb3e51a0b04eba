"""Two sites under load: their link cut and healed, a router and a server of one killed."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from kvmesh.errors import TransportError
from tests.chaos.answers.truth import MODEL, Truth
from tests.chaos.clients import Clients, Prompts
from tests.chaos.oracle import disagreements, held_blocks, status_of
from tests.chaos.process import MeshProcess, fixed_ports
from tests.integration.support.two_sites import (
    ENGINE,
    Site,
    TwoSites,
    status,
    two_sites,
    until_usable,
)
from tests.integration.support.waiting import until_ready

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(300)]

REST_S = 40.0
STAYS = "a"
"""The site at which the requests with a residency are to be served."""


class Storm:
    """Load at the doors of two sites, more at the first, and requests that must stay at `STAYS`.

    `where` counts by door and site where these were served, or the status of their refusal.
    """

    def __init__(self, sites: TwoSites, reference: str, seed: int) -> None:
        self.sites = sites
        self.where = Counter[tuple[str, str]]()
        self._truth = Truth(reference)
        self._clients = {
            one.name: Clients(
                one.url, random.Random(seed + n), self._truth, count, Prompts(longer=4)
            )
            for n, (one, count) in enumerate(((sites.a, 14), (sites.b, 3)))
        }
        self._stopping = False
        self._staying: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for one in self._clients.values():
            one.start()
        self._staying = [asyncio.create_task(self._stay(one)) for one in self._both()]

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._staying, *(one.stop() for one in self._clients.values()))

    async def close(self) -> None:
        await self.stop()
        for one in self._clients.values():
            await one.close()
        await self._truth.close()

    def outcomes(self) -> dict[str, dict[str, int]]:
        """Return how often each end was seen, by the door."""
        return {name: dict(one.outcomes) for name, one in self._clients.items()}

    def wrong(self) -> list[str]:
        """Return what must never happen, in words."""
        found = [what for one in self._clients.values() for what in one.wrong]
        for (door, where), count in self.where.items():
            if where != (STAYS if door == STAYS else "403"):
                found.append(f"{count} that must stay at {STAYS}, asked of {door}: {where}")
        return found

    def _both(self) -> tuple[Site, Site]:
        return self.sites.a, self.sites.b

    async def _stay(self, site: Site) -> None:
        headers = {"x-kvmesh-residency": STAYS}
        async with httpx.AsyncClient(base_url=site.url, timeout=60.0) as client:
            number = 0
            while not self._stopping:
                number += 1
                text = f"stays {number} " * 200
                turn = {"role": "user", "content": text}
                body = {"model": MODEL, "max_tokens": 4, "messages": [turn]}
                answer = await client.post("/v1/chat/completions", json=body, headers=headers)
                served = answer.headers.get("x-kvmesh-site", "")
                ok = answer.status_code == httpx.codes.OK
                self.where[site.name, served if ok else str(answer.status_code)] += 1
                await asyncio.sleep(0.1)

    async def differences(self) -> list[str]:
        """Return what is wrong at either site; at rest, the empty list."""
        found: list[str] = []
        async with httpx.AsyncClient(timeout=30.0) as client:
            for site in self._both():
                (engine,) = site.named("engine")
                try:
                    statuses = {
                        f"{site.name}: {one.url}": await status_of(one.url, client)
                        for one in site.named("router")
                    }
                    truth = {
                        one["worker"]: await held_blocks(engine, 0, client)
                        for one in next(iter(statuses.values()))["workers"]
                    }
                    others = (await status(site))["sites"]["sites"]
                except (httpx.HTTPError, ValueError) as error:
                    return [f"somebody at {site.name} does not answer: {error!r}"]
                found += disagreements(statuses, truth)
                found += [f"no engine at {site.name}"] * (not truth)
                found += [one["why_not"] for one in others if one["why_not"]]
        return found


async def the_link_is_cut(storm: Storm) -> None:
    await storm.sites.cut()
    await asyncio.sleep(6.0)
    await storm.sites.heal()


async def the_link_is_silent(storm: Storm) -> None:
    await storm.sites.cut(silent=True)
    await asyncio.sleep(6.0)
    await storm.sites.heal()


async def a_router_dies(storm: Storm) -> None:
    for site in (storm.sites.a, storm.sites.b):
        router = site.named("router")[0]
        router.kill()
        await asyncio.sleep(3.0)
        router.start()
        async with httpx.AsyncClient(timeout=10) as client:
            await until_ready(client, router.url)


async def a_server_dies(storm: Storm) -> None:
    for site in (storm.sites.a, storm.sites.b):
        site.server.kill()
        await asyncio.sleep(2.0)
        async with asyncio.timeout(30):
            while not site.server.program.runs():
                with contextlib.suppress(TransportError):
                    await site.server.start()
        await asyncio.sleep(2.0)


Happening = Callable[[Storm], Awaitable[None]]


@pytest.fixture
async def reference(tmp_path: Path) -> AsyncIterator[str]:
    """Run an engine that nothing strikes, which says what answers must be."""
    port, events, replay = fixed_ports(3)
    feeds = ("--kv-events-port", str(events), "--kv-replay-port", str(replay))
    url = f"http://127.0.0.1:{port}"
    process = MeshProcess(
        "reference", url, ("mocker", "--http-port", str(port), *feeds), tmp_path / "reference.log"
    )
    process.start()
    yield url
    process.kill()


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(2, 5))]
)
@pytest.mark.parametrize(
    "happening", [the_link_is_cut, the_link_is_silent, a_router_dies, a_server_dies]
)
async def test_no_request_of_either_site_fails_when(
    tmp_path: Path, reference: str, happening: Happening, seed: int
) -> None:
    async with two_sites(tmp_path, *ENGINE, routers=2) as sites:
        await until_usable(sites.a, "b")
        await until_usable(sites.b, "a")
        storm = Storm(sites, reference, seed)
        storm.start()
        try:
            await asyncio.sleep(3.0)
            await happening(storm)
            healed_s = time.monotonic()
            await asyncio.sleep(3.0)
            trips = len((await status(sites.a))["sites"]["trips"])
            await storm.stop()
            until_s = time.monotonic() + REST_S
            while (wrong := await storm.differences()) and time.monotonic() < until_s:  # noqa: ASYNC110  routers are asked
                await asyncio.sleep(0.2)
        finally:
            await storm.close()
        print(  # noqa: T201
            f"{happening.__name__}, seed {seed}: {storm.outcomes()}; {dict(storm.where)}; "
            f"{trips} of the last overseas; at rest {time.monotonic() - healed_s:.1f} s after"
        )

    assert storm.wrong() + wrong == []
    assert [set(seen) for seen in storm.outcomes().values()] == [{"whole"}, {"whole"}]
