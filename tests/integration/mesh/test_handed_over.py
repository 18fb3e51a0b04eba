"""Two replicas have what a worker alone keeps computed once, when its sidecar ends."""

import contextlib
from collections.abc import Sequence

import httpx
import pytest

from kvmesh.app.worker.command import Sidecar
from kvmesh.settings.roles import NatsSettings, WorkerSettings
from tests.doubles.memory.server import MemoryServer
from tests.integration.alone.test_leaver import (
    CHATS,
    LEAST_SHARE,
    LONG,
    TURNS,
    ask,
    handed_over,
)
from tests.integration.support.live_router import mockers, replica, running, serve_from_memory
from tests.integration.support.waiting import seen, until

pytestmark = pytest.mark.integration

NATS = NatsSettings(namespace="memory")
TWICE = 1.5
"""Were each prompt computed twice, it would be twice as many tokens."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> MemoryServer:
    return serve_from_memory(monkeypatch)


async def total(routers: Sequence[httpx.AsyncClient], metric: str) -> float:
    return sum([(await handed_over(one)).get(metric, 0.0) for one in routers])


@pytest.mark.usefixtures("server")
async def test_what_a_worker_alone_keeps_is_computed_once() -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines = await stack.enter_async_context(
            mockers(2, num_gpu_blocks_override=4096, block_size=16)
        )
        sidecars = {
            name: await stack.enter_async_context(contextlib.AsyncExitStack()) for name in "ab"
        }
        for engine, (name, ending) in zip(engines, sidecars.items(), strict=True):
            settings = WorkerSettings(engine_url=engine.url, worker_id=name, nats=NATS)
            await ending.enter_async_context(running(Sidecar(settings).serve))
        routers = [
            await stack.enter_async_context(replica(NATS, name, warm_share=1.0))
            for name in ("r0", "r1")
        ]
        for one in routers:
            await seen(one, "/v1/status", lambda status: len(status["workers"]) == len(engines))

        homes: dict[int, set[str]] = {chat: set() for chat in range(CHATS)}
        for turn in range(TURNS):
            for chat in range(CHATS):
                worker, _ = await ask(routers[(turn + chat) % 2], chat, turn)
                homes[chat].add(worker)
        alone = {name: [chat for chat in homes if homes[chat] == {name}] for name in sidecars}
        leaver = max(alone, key=lambda name: len(alone[name]))
        await sidecars[leaver].aclose()

        async def done() -> bool:
            sent = await total(routers, 'kvmesh_hand_over_requests_total{how="done"}')
            return sent >= len(alone[leaver])

        await until(done, 15.0)
        asked = [await ask(routers[chat % 2], chat, TURNS) for chat in alone[leaver]]
        tokens = await total(routers, "kvmesh_handed_over_tokens_total")

    assert alone[leaver]
    assert {worker for worker, _ in asked} == {*sidecars} - {leaver}
    assert min(share for _, share in asked) >= LEAST_SHARE
    assert tokens < TWICE * len(LONG) * len(alone[leaver])
