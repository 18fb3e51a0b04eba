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
