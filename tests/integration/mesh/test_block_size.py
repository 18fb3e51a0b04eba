"""Replicas that nobody told the block size of the engines."""

import contextlib

import httpx
import msgspec
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.settings.roles import NatsSettings
from kvmesh_lab.mocker.command import MockerOptions
from tests.integration.support.live_router import engine, mocker_options, replica, sidecar
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

PREFIX = "What everybody asks about, again and again. " * 20
SIZE = 32
WITHIN_S = 60.0


def options(size: int = SIZE) -> MockerOptions:
    return mocker_options(size, 512)


async def sees_all_that_is_cached(client: httpx.AsyncClient, size: int = SIZE) -> None:
    """Chat until the overlap that is foreseen, from events, is what the engine reuses."""
    message = {"role": "user", "content": PREFIX}
    body = {"model": "mock", "max_tokens": 4, "messages": [message]}

    async def is_foreseen() -> bool:
        answer = await client.post("/v1/chat/completions", json=body)
        if answer.status_code != 200:
            return False  # the engine restarts
        details = answer.json()["usage"]["prompt_tokens_details"] or {}
        foreseen = int(answer.headers["x-kvmesh-overlap-blocks"])
        exact = answer.headers["x-kvmesh-trust"] == "exact"
        return exact and foreseen * size == details.get("cached_tokens", 0) > 800

    await until(is_foreseen)


async def told_size(client: httpx.AsyncClient) -> tuple[int, str]:
    status = (await client.get("/v1/status")).json()
    return status["block_size"], status["block_size_from"]


async def test_every_replica_takes_the_size_of_its_workers_a_late_one_too(
    nats_server: NatsServer, namespace: str
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    async with (
        engine(options()) as mocker,
        sidecar(mocker.url, nats),
        replica(nats, "r0") as first,
    ):
        await sees_all_that_is_cached(first)
        # It reads what was cached before it came from the journal.
        async with replica(nats, "r1") as second:
            await sees_all_that_is_cached(second)
            sizes = [await told_size(first), await told_size(second)]
            ready = (await second.get("/ready")).json()

    assert sizes == [(SIZE, "workers")] * 2
    assert "no prefix can match" not in str(ready)


async def test_an_engine_that_restarts_with_another_size_is_followed(
    nats_server: NatsServer, namespace: str
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    wanted = options(16)
    url = f"http://127.0.0.1:{wanted.port}"
    async with contextlib.AsyncExitStack() as stack:
        async with engine(wanted):
            await stack.enter_async_context(sidecar(url, nats))
            client = await stack.enter_async_context(replica(nats, "r0"))
            await sees_all_that_is_cached(client, 16)
        async with engine(msgspec.structs.replace(wanted, block_size=SIZE)):
            await sees_all_that_is_cached(client)
            size = await told_size(client)
            ready = (await client.get("/ready")).json()

    assert size == (SIZE, "workers")
    assert "no prefix can match" not in str(ready)


async def every_worker_is_foreseen(client: httpx.AsyncClient, workers: int) -> None:
    """Chat at each worker until it has answered with what was foreseen, in its own blocks."""
    beats = (await client.get("/v1/status")).json()["workers"]
    assert len(beats) == workers
    for beat in beats:
        await is_foreseen_at(client, beat["worker"])


async def is_foreseen_at(client: httpx.AsyncClient, worker: str) -> None:
    message = {"role": "user", "content": f"{worker}: {PREFIX}"}
    body = {"model": "mock", "max_tokens": 4, "messages": [message]}
    pinned = {"x-kvmesh-worker-id": worker}

    async def is_exact() -> bool:
        answer = await client.post("/v1/chat/completions", json=body, headers=pinned)
        if answer.status_code != 200:
            return False  # the engine restarts
        details = answer.json()["usage"]["prompt_tokens_details"] or {}
        size = (await told_size(client))[0]
        foreseen = int(answer.headers["x-kvmesh-overlap-blocks"]) * size
        exact = answer.headers["x-kvmesh-trust"] == "exact"
        return exact and foreseen == details.get("cached_tokens", 0) > 800

    await until(is_exact)


async def test_engines_of_three_sizes_are_each_foreseen_exactly_by_two_replicas(
    nats_server: NatsServer, namespace: str
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    async with contextlib.AsyncExitStack() as stack:
        for number, size in enumerate((16, 32, 64)):
            mocker = await stack.enter_async_context(engine(options(size)))
            await stack.enter_async_context(sidecar(mocker.url, nats, f"w{number}"))
        first = await stack.enter_async_context(replica(nats, "r0"))
        await every_worker_is_foreseen(first, 3)
        second = await stack.enter_async_context(replica(nats, "r1"))
        await every_worker_is_foreseen(second, 3)
        status = (await second.get("/v1/status")).json()
        ready = (await second.get("/ready")).json()

    assert (status["block_size"], status["block_sizes"]) == (16, [16, 32, 64])
    assert "no prefix can match" not in str(ready)


async def test_a_rolling_change_of_the_size_costs_no_worker_its_exactness(
    nats_server: NatsServer, namespace: str
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    wanted, sizes = [options(16), options(16)], list[tuple[int, str]]()
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine(one)) for one in wanted]
        for number, one in enumerate(engines):
            await stack.enter_async_context(sidecar(one.url, nats, f"w{number}"))
        client = await stack.enter_async_context(replica(nats, "r0"))
        await every_worker_is_foreseen(client, 2)
        for place, before in zip(wanted, engines, strict=True):
            await before.stop()
            other = msgspec.structs.replace(place, block_size=SIZE)
            await stack.enter_async_context(engine(other))
            await every_worker_is_foreseen(client, 2)
            sizes.append(await told_size(client))

    assert sizes == [(16, "workers"), (SIZE, "workers")]
