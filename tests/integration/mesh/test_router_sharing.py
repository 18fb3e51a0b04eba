"""Routers without a journal that share what they route: one finds what a sibling sent."""

import asyncio
import contextlib
from typing import Any

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.process.running import Stop
from kvmesh.app.worker.command import Sidecar
from kvmesh.settings.roles import NatsSettings, WorkerSettings
from kvmesh_lab.mocker.command import Mocker
from tests.integration.support.live_router import mockers, router_process
from tests.integration.support.waiting import seen, until

pytestmark = pytest.mark.integration

PREFIX = "What everybody asks about, again and again. " * 50


async def start_engines(stack: contextlib.AsyncExitStack, count: int) -> list[Mocker]:
    return await stack.enter_async_context(mockers(count))


async def ask(client: httpx.AsyncClient, text: str) -> httpx.Response:
    messages = [{"role": "user", "content": text}]
    body = {"model": "mock", "max_tokens": 2, "messages": messages}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


async def found_through(sibling: httpx.AsyncClient, sent: httpx.Response) -> None:
    """Wait until `sibling` would send the prefix where it went, knowing all of it."""
    asked = {"model": "mock", "messages": [{"role": "user", "content": PREFIX + "two"}]}

    async def known() -> bool:
        decision = (await sibling.post("/v1/route", json=asked)).json()
        return bool(decision.get("overlap_blocks", 0) > 100)

    await until(known)
    second = await ask(sibling, PREFIX + "two")
    assert second.headers["x-kvmesh-worker"] == sent.headers["x-kvmesh-worker"]
    assert int(second.headers["x-kvmesh-overlap-blocks"]) > 100
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 1600


async def test_a_prefix_routed_through_one_is_found_through_its_sibling(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack, namespace: str
) -> None:
    engines = await start_engines(stack, 4)
    flags = [f"--worker=w{number}={one.url}" for number, one in enumerate(engines)]
    flags += ["--no-kv-events", "--nats-url", nats_server.url, "--namespace", namespace]
    one, two = [
        await stack.enter_async_context(router_process("--router-id", name, *flags))
        for name in ("r0", "r1")
    ]
    await seen(two, "/v1/status", lambda status: bool(status["mesh"]["peers"]))

    sent = await ask(one, PREFIX + "one")

    await found_through(two, sent)


async def test_sidecars_without_events_make_workers_known_to_routers_that_guess(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack, namespace: str
) -> None:
    engines = await start_engines(stack, 2)
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    stop = Stop()
    for number, engine in enumerate(engines):
        settings = WorkerSettings(
            engine_url=engine.url, worker_id=f"w{number}", kv_events=False, nats=nats
        )
        running = asyncio.create_task(Sidecar(settings).serve(stop))
        stack.push_async_callback(asyncio.wait, [running])
    stack.callback(stop.request)
    flags = ["--no-kv-events", "--nats-url", nats_server.url, "--namespace", namespace]
    one, two = [
        await stack.enter_async_context(router_process("--router-id", name, *flags))
        for name in ("r0", "r1")
    ]
    for router in (one, two):
        await seen(router, "/v1/status", lambda status: len(status["workers"]) == 2)

    sent = await ask(one, PREFIX + "one")

    await found_through(two, sent)
    status = (await two.get("/v1/status")).json()
    assert {worker["trust"] for worker in status["workers"]} == {"approx"}


async def test_routers_tell_each_other_by_records_and_nothing_is_lost(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack, namespace: str
) -> None:
    [engine] = await start_engines(stack, 1)
    flags = [f"--worker=w0={engine.url}", "--no-kv-events"]
    flags += ["--nats-url", nats_server.url, "--namespace", namespace]
    one, two = [
        await stack.enter_async_context(router_process("--router-id", name, *flags))
        for name in ("r0", "r1")
    ]
    for router in (one, two):
        await seen(
            router, "/v1/status", lambda status: status["mesh"]["replica_sync"]["format"] == 1
        )

    before = (await two.get("/v1/status")).json()["mesh"]["replica_sync"]
    await asyncio.gather(*(ask(one, f"{number} {PREFIX}") for number in range(40)))

    def all_reported(status: dict[str, Any]) -> bool:
        reported = status["mesh"]["replica_sync"]
        return bool(reported["events_applied"] >= before["events_applied"] + 2 * 40)

    await seen(two, "/v1/status", all_reported)
    sent = (await one.get("/v1/status")).json()["mesh"]["replica_sync"]
    reported = (await two.get("/v1/status")).json()["mesh"]["replica_sync"]
    assert reported["gaps"] == before["gaps"]
    assert (reported["garbage"], reported["refused"], sent["untold"]) == (0, 0, 0)
