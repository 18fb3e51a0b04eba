"""One of two engines is ten times slower, and well by its own account: it gets its share."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import cycle
from typing import Any

import httpx
import pytest

from kvmesh.app.process.running import Stop
from kvmesh.app.worker.command import Sidecar
from kvmesh.settings.roles import NatsSettings, WorkerSettings
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.integration.support.live_router import engine, replica, router, serve_from_memory
from tests.integration.support.waiting import seen

pytestmark = pytest.mark.integration

SLOW, WHOLE = "w0", "w1"
SPEEDS = {SLOW: 0.1, WHOLE: 1.0}
TIMING = "linear,prefill_base=1,prefill_per_token=0.01,decode_base=10"
TOKENS = 8
"""An answer of the whole engine takes some 80 ms, of the other 800 ms."""

IN_FLIGHT = 8
REQUESTS = 240
LEARNING = 80
MOST_SHARE = 0.2
"""By equal numbers in flight it would get 9 %, and gets 2 to 5 % where nothing else takes time."""


@contextlib.asynccontextmanager
async def engines(*, kv_events: bool = True) -> AsyncIterator[list[Mocker]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                engine(
                    MockerOptions(
                        port=0,
                        kv_events_port=0,
                        replay_port=0,
                        enable_kv_cache_events=kv_events,
                        timing_profile=TIMING,
                        speedup_ratio=speed,
                    )
                )
            )
            for speed in SPEEDS.values()
        ]


async def share_of_the_slow(urls: Sequence[str], *, shared: bool, stream: bool) -> float:
    """Keep requests in flight at routers in turn; return the slow engine's part of those that come
    once some answers have told of it.
    """
    taken = Counter[str]()
    numbers = iter(range(REQUESTS))
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
            for url in urls
        ]
        turns: Iterator[httpx.AsyncClient] = cycle(clients)

        async def ask() -> None:
            for number in numbers:
                about = number % 6 if shared else number
                body = {
                    "model": "mock",
                    "prompt": f"You are bakery {about}, and sell bread. " * 30 + str(number),
                    "max_tokens": TOKENS,
                    "ignore_eos": True,
                    "stream": stream,
                }
                answer = await next(turns).post("/v1/completions", json=body)
                assert answer.status_code == 200
                if number >= LEARNING:
                    taken[answer.headers["x-kvmesh-worker"]] += 1

        await asyncio.gather(*(ask() for _ in range(IN_FLIGHT)))
    assert sum(taken.values()) == REQUESTS - LEARNING
    return taken[SLOW] / (REQUESTS - LEARNING)


@pytest.mark.parametrize(
    ("kv_events", "shared", "stream"),
    [(False, True, False), (False, True, True), (True, False, False)],
)
async def test_a_slow_engine_gets_few_requests_of_a_router(
    *, kv_events: bool, shared: bool, stream: bool
) -> None:
    async with (
        engines(kv_events=kv_events) as mockers,
        router([one.url for one in mockers], kv_events=kv_events) as url,
    ):
        share = await share_of_the_slow([url], shared=shared, stream=stream)

    assert share <= MOST_SHARE


async def test_a_slow_engine_gets_few_requests_of_two_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve_from_memory(monkeypatch)
    nats, stop = NatsSettings(namespace="slow"), Stop()
    async with engines() as mockers, asyncio.TaskGroup() as sidecars:
        for name, mocker in zip(SPEEDS, mockers, strict=True):
            wanted = WorkerSettings(engine_url=mocker.url, worker_id=name, nats=nats)
            sidecars.create_task(Sidecar(wanted).serve(stop))
        try:
            async with replica(nats, "r0") as first, replica(nats, "r1") as second:
                urls = [str(one.base_url) for one in (first, second)]
                for one in (first, second):
                    await seen(one, "/v1/status", knows_all)
                share = await share_of_the_slow(urls, shared=True, stream=False)
        finally:
            stop.request()

    assert share <= MOST_SHARE


def knows_all(status: Any) -> bool:
    """Return whether a replica would send requests to every worker."""
    exact = [one for one in status["workers"] if one["trust"] == "exact"]
    return len(exact) == len(SPEEDS)
