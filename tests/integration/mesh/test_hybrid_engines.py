"""Engines of hybrid models: what is predicted of them is what they reuse, in a mesh and alone."""

import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.settings.roles import CostSettings, NatsSettings
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.integration.support.live_router import (
    client_of,
    engine,
    mocker_options,
    replica,
    router,
    sidecar,
)
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

WITHIN_S = 60.0
SIZE = 16
HYBRIDS = {
    "windows": {"sliding_window": 64, "window_groups": 3},
    "mamba": {"mamba_groups": 2},
    "both": {"sliding_window": 100, "mamba_groups": 1},
}

Settle = Callable[[], Awaitable[None]]


def options(blocks: int, groups: dict[str, int]) -> MockerOptions:
    return mocker_options(SIZE, blocks, **groups)


def prompts(seed: int) -> Iterator[list[int]]:
    """Yield prompts that share beginnings of any length with earlier ones, or go on with them."""
    rng = random.Random(seed)
    made: list[list[int]] = []
    while True:
        base = rng.choice(made) if made and rng.random() < 0.8 else []
        shared = base if rng.random() < 0.4 else base[: rng.randrange(len(base) + 1)]
        made.append(shared + [rng.randrange(256) for _ in range(rng.randrange(1, 150))])
        if len(made[-1]) < 700:
            yield made[-1]


async def compare(
    clients: list[httpx.AsyncClient], count: int, settle: Settle, seed: int = 1
) -> list[tuple[int, int]]:
    """Send prompts in turn, one at a time; return what was predicted and reused of each, blocks."""
    made: list[tuple[int, int]] = []
    for number, prompt in enumerate(prompts(seed)):
        if number == count:
            return made
        body: dict[str, Any] = {"model": "mock", "prompt": prompt, "max_tokens": 1}
        await settle()
        answer = await clients[number % len(clients)].post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-kvmesh-trust"] == "exact"
        details: dict[str, int | None] = answer.json()["usage"]["prompt_tokens_details"] or {}
        cached = details.get("cached_tokens") or 0
        made.append((int(answer.headers["x-kvmesh-overlap-blocks"]), cached // SIZE))
    raise AssertionError


def all_told(clients: list[httpx.AsyncClient], mocker: Mocker) -> Settle:
    """Wait until replicas hold what the engine does: nothing was evicted, a batch is read whole."""

    async def reported(client: httpx.AsyncClient) -> bool:
        status = (await client.get("/v1/status")).json()
        trusted = [one["trust"] for one in status["workers"]] == ["exact"]
        held = len(mocker.ranks[0].dump()) // 8
        return trusted and status["mesh"]["blocks"].get("w", 0) == held

    async def settle() -> None:
        for client in clients:
            await until(lambda client=client: reported(client))  # type: ignore[misc]

    return settle


@pytest.mark.parametrize("groups", [HYBRIDS["both"]], ids=["both"])
async def test_replicas_foresee_what_a_hybrid_engine_reuses(
    groups: dict[str, int], nats_server: NatsServer, namespace: str
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    async with engine(options(20_000, groups)) as mocker, contextlib.AsyncExitStack() as stack:
        async with sidecar(mocker.url, nats):
            first = await stack.enter_async_context(replica(nats, "r0"))
            made = await compare([first], 12, all_told([first], mocker))
        # A sidecar that begins anew, and a replica that comes late, know as much.
        async with sidecar(mocker.url, nats), replica(nats, "r1") as second:
            clients = [first, second]
            made += await compare(clients, 12, all_told(clients, mocker), seed=2)

    predicted, reused = zip(*made, strict=True)
    assert predicted == reused
    assert sum(one > 0 for one in reused) > len(reused) // 3


@pytest.mark.parametrize("groups", HYBRIDS.values(), ids=HYBRIDS)
async def test_a_router_alone_foresees_it_under_eviction(groups: dict[str, int]) -> None:
    async with engine(options(230, groups)) as mocker:
        publisher = mocker.ranks[0].publisher
        assert publisher
        settings: dict[str, Any] = {"kv_events": True, "cost": CostSettings(predict_ttl_s=0.0)}
        async with client_of(router([mocker.url], **settings)) as client:

            async def read_all() -> bool:
                status = (await client.get("/v1/status")).json()
                [[source]] = [one.values() for one in status["mesh"]["engines"].values()]
                exact = [one["trust"] for one in status["workers"]] == ["exact"]
                return exact and source["events"]["batches"] == publisher.next_seq

            made = await compare([client], 40, lambda: until(read_all))

    predicted, reused = zip(*made, strict=True)
    assert predicted == reused
    assert sum(one > 0 for one in reused) > len(reused) // 3
