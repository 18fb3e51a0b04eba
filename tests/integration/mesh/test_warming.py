"""An engine joins a mesh of three routers and is warmed by one of them, on a real nats-server."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.chaos.mesh import BUCKET, ChaosMesh, MeshSize
from tests.chaos.process import MeshProcess
from tests.integration.support.relayed_engine import How, Relay, relay
from tests.integration.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SHARED = 3
ASKED = 500
"""Prompts after which enough may be spent."""

SHARE = 0.03
WARMED = "kvmesh_warmed_tokens_total"
LONGEST_S = 10.0
LEAST_RATIO = 0.8
FIRST = SHARED
"""Of the newcomer's requests the first are looked at: one behind each shared prompt."""


class Sent(msgspec.Struct):
    worker: str
    prompt: int
    cached: int


class Fleet:
    """Three routers, two engines that serve, a third one behind a relay, and somebody who asks."""

    def __init__(self, mesh: ChaosMesh, folder: Path, relayed: Relay) -> None:
        self.mesh = mesh
        self.relay = relayed
        self.engine = mesh.engines[-1]
        worker = ("worker", "--engine-url", relayed.url, "--bucket", BUCKET, "--worker-id", "late")
        nats = ("--nats-url", mesh.nats_url)
        self.sidecar = MeshProcess("late", relayed.url, (*worker, *nats), folder / "late.log")
        self.routers = list(mesh.routers)
        self.sent: list[Sent] = []
        self.failed: list[str] = []
        self.client = httpx.AsyncClient(timeout=30)

    async def ask(self, number: int, worker: str = "") -> None:
        """Ask a question behind one of the shared prompts."""
        router = self.routers[number // SHARED % len(self.routers)]
        shared = f"{number % SHARED} are the rules of this house. " * 50
        prompt = f"{shared} Question {number}: {f'why {number}? ' * 100}"
        body = {"model": "mock", "max_tokens": 1, "prompt": prompt}
        headers = {"x-kvmesh-worker-id": worker} if worker else {}
        url = f"{router.url}/v1/completions"
        answer = await self.client.post(url, json=body, headers=headers)
        if answer.status_code != 200:
            self.failed.append(answer.text)
            return
        usage = answer.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        worker = answer.headers["x-kvmesh-worker"]
        self.sent.append(Sent(worker, usage["prompt_tokens"], cached))

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Ask one question after the other as long as the block lasts: one of the two engines is
        always idle, else a newcomer would be let in to help.
        """

        async def ask_on() -> None:
            for number in count():
                with contextlib.suppress(httpx.TransportError):  # of a router that is killed
                    await self.ask(number)

        task = asyncio.ensure_future(ask_on())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def figure(self, router: MeshProcess, name: str) -> float:
        text = (await self.client.get(f"{router.url}/metrics")).text
        found = [one for one in text.splitlines() if one.startswith(f"{name} ")]
        return float(found[0].split()[-1])

    async def figures(self, name: str) -> list[float]:
        return [await self.figure(router, name) for router in self.routers]

    async def sender(self) -> MeshProcess | None:
        """Return the replica that has sent the newcomer something."""
        warmed = zip(await self.figures(WARMED), self.routers, strict=True)
        return next((router for tokens, router in warmed if tokens), None)

    async def row(self, router: MeshProcess) -> dict[str, Any] | None:
        status = (await self.client.get(f"{router.url}/v1/status")).json()
        rows: list[dict[str, Any]] = [one for one in status["workers"] if one["worker"] == "late"]
        return rows[0] if rows else None

    async def used(self) -> list[bool]:
        """Return whether each router uses the newcomer."""
        rows = [await self.row(router) for router in self.routers]
        return [row is not None and row["usable"] for row in rows]

    async def join(self) -> float:
        """Return after how long every router uses the newcomer, from when the first hears of it."""
        self.engine.start()
        self.sidecar.start()
        seen_s: float = await until(self._first)
        await self.until_used()
        return time.monotonic() - seen_s

    async def until_used(self, *, by_all: bool = True) -> None:
        async def agree() -> bool:
            return all(one is by_all for one in await self.used())

        await until(agree)

    async def earn(self) -> None:
        """Wait until enough more may be spent."""
        asked = len(self.sent)
        await until(lambda: len(self.sent) >= asked + ASKED, 120.0)

    async def _first(self) -> float:
        rows = [await self.row(router) for router in self.routers]
        return time.monotonic() if any(rows) else 0.0

    def computed(self) -> int:
        return sum(one.prompt - one.cached for one in self.sent)

    def hits(self, sent: Sequence[Sent]) -> float:
        return sum(one.cached for one in sent) / sum(one.prompt for one in sent)

    async def ratio(self) -> float:
        """Return the newcomer's hits of its first requests by those of the fleet meanwhile.

        The others hold all that is shared, so that those few requests are sent to it by name.
        """
        begun = len(self.sent)
        for number in range(FIRST):
            await self.ask(2_000_000 + begun + number, "late")
        own = [one for one in self.sent[begun:] if one.worker == "late"]
        return self.hits(own) / self.hits(self.sent[begun:])


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    mesh = ChaosMesh(tmp_path, MeshSize(routers=3, ranks=(1, 1, 1), blocks=16_384))
    mesh.sidecars.pop()
    try:
        await mesh.start()
        async with relay(mesh.engines[-1].url) as relayed:
            made = Fleet(mesh, tmp_path, relayed)
            try:
                async with made.asking():
                    await made.earn()
                    yield made
            finally:
                made.sidecar.kill()
                await made.client.aclose()
    finally:
        await mesh.stop()


def check(fleet: Fleet, took_s: float, ratio: float, warmed: list[float]) -> None:
    """Have one replica warmed the newcomer before it served, within the budget, and well."""
    assert took_s < LONGEST_S
    assert fleet.relay.came.startswith("w" * SHARED), fleet.relay.came[:20]
    assert "cw" not in fleet.relay.came
    assert ratio >= LEAST_RATIO
    assert sum(one > 0.0 for one in warmed) == 1
    assert sum(warmed) <= SHARE * fleet.computed()
    assert not fleet.failed


async def test_one_of_three_replicas_warms_who_joins_and_restarts(fleet: Fleet) -> None:
    took_s, ratio = await fleet.join(), await fleet.ratio()
    check(fleet, took_s, ratio, await fleet.figures(WARMED))

    fleet.engine.kill()
    await fleet.until_used(by_all=False)
    await fleet.earn()
    fleet.relay.forget()
    took_s, ratio = await fleet.join(), await fleet.ratio()
    check(fleet, took_s, ratio, await fleet.figures(WARMED))


@pytest.mark.nightly
async def test_one_of_three_replicas_warms_who_wakes(fleet: Fleet) -> None:
    """On an idle machine: on a busy one routers let it in before all is sent."""
    await fleet.join()
    slept = await fleet.client.post(f"{fleet.routers[1].url}/sleep?worker=late")
    await fleet.until_used(by_all=False)
    await fleet.earn()
    fleet.relay.forget()
    await fleet.client.post(f"{fleet.routers[1].url}/wake_up?worker=late")
    took_s, ratio = await fleet.join(), await fleet.ratio()
    check(fleet, took_s, ratio, await fleet.figures(WARMED))
    assert slept.status_code == 200


async def test_the_next_replica_warms_and_nobody_waits_long_where_the_sender_dies(
    fleet: Fleet,
) -> None:
    fleet.relay.how = "slow"
    joined = asyncio.ensure_future(fleet.join())
    first = await until(fleet.sender)
    first.kill()
    fleet.routers.remove(first)

    took_s = await joined
    asked = len(fleet.sent)
    await until(lambda: len(fleet.sent) > asked + FIRST)

    assert took_s < LONGEST_S + 1.0
    assert not fleet.failed


@pytest.mark.parametrize("how", ["hang", "500", "rubbish", "slow"])
async def test_a_newcomer_that_answers_badly_is_let_in_in_time(fleet: Fleet, how: How) -> None:
    fleet.relay.how = how

    took_s = await fleet.join()
    asked = len(fleet.sent)
    await until(lambda: len(fleet.sent) > asked + FIRST)

    assert fleet.relay.came.startswith("w")
    assert took_s < LONGEST_S + 1.0
    assert not fleet.failed
