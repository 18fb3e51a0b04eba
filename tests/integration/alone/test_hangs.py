"""Slow is not failed, and what hangs is found, by what engines show."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kvmesh.app.router.command import RouterServer
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import FailureSettings, StreamSettings
from kvmesh.settings.roles import CostSettings, NatsSettings, RouterSettings
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from kvmesh_lab.mocker.model.faults import FaultOptions
from tests.integration.support.failing_engine import (
    FailingEngine,
    answer_status,
    answer_well,
    close_unanswered,
    failing_engines,
    never_answer,
)
from tests.integration.support.live_router import (
    engine,
    free_port,
    meta_router,
    router,
    serve_from_memory,
    serving,
    sidecar,
)
from tests.integration.support.waiting import seen, until

pytestmark = pytest.mark.integration

FOUND_S = 10.0
ROUND_ROBIN = CostSettings(router_mode="round-robin")
PATH = "/v1/chat/completions"


def chat(text: str, tokens: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "max_tokens": tokens, **more}


@contextlib.asynccontextmanager
async def mockers(count: int, **faults: Any) -> AsyncIterator[list[Mocker]]:
    """Yield pretend engines with counters, whose token takes some 8 ms."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            options = MockerOptions(
                model="m",
                port=free_port(),
                kv_events_port=free_port(),
                replay_port=free_port(),
                faults=FaultOptions(**faults),
            )
            found.append(await stack.enter_async_context(engine(options)))
        yield found


@contextlib.asynccontextmanager
async def client_of(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
        yield client


async def set_faults(mocker: Mocker, **faults: Any) -> None:
    async with client_of(mocker.url) as client:
        (await client.post("/kvmesh/faults", json=faults)).raise_for_status()


async def warm(client: httpx.AsyncClient, count: int = 12) -> None:
    for number in range(count):
        answer = await client.post(PATH, json=chat(f"short {number}", 2))
        assert answer.status_code == 200, answer.text


async def metric(client: httpx.AsyncClient, line: str) -> float:
    text = (await client.get("/metrics")).text
    return sum(float(one.split()[-1]) for one in text.splitlines() if one.startswith(line))


async def proven(client: httpx.AsyncClient, workers: int) -> None:
    """Wait until the router has read counters of all engines that have moved."""

    def have_moved(status: Any) -> bool:
        loads = [one["load"].get("computed_tokens", 0) for one in status["workers"]]
        return len(loads) == workers and all(loads)

    await seen(client, "/v1/status", have_moved)


async def known(client: httpx.AsyncClient, workers: int) -> None:
    """Wait until the router knows so many workers."""
    await seen(client, "/v1/status", lambda status: len(status["workers"]) == workers)


def answer_late(after_s: float) -> Any:
    def answer(exchange: Exchange) -> None:
        late = b'"max_tokens":600' in exchange.request.body
        delay_s = after_s if late else 0.0
        asyncio.get_running_loop().call_later(delay_s, answer_well, exchange)

    return answer


async def test_a_long_whole_answer_after_short_ones_is_waited_for() -> None:
    async with (
        failing_engines(2) as engines,
        router([one.url for one in engines], failure=FailureSettings(hang_s=0.2)) as url,
        client_of(url) as client,
    ):
        for one in engines:
            one.answer = answer_late(2.0)
        await warm(client, 24)

        for text in ("a long story", "another one"):
            answer = await client.post(PATH, json=chat(text, 600))
            assert (answer.status_code, answer.headers.get("x-kvmesh-attempts")) == (200, None)

        assert await metric(client, "kvmesh_worker_hung_attempts_total") == 0
        assert await metric(client, "kvmesh_worker_ejections_total") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_whole_fleet_twenty_times_slower_is_slow_and_not_sick(stream: bool) -> None:
    async with (
        mockers(2) as engines,
        router([one.url for one in engines], failure=FailureSettings(hang_s=1.5)) as url,
        client_of(url) as client,
    ):
        await warm(client)
        for one in engines:
            await set_faults(one, slowdown=20.0)

        asked = [client.post(PATH, json=chat(f"long {n}", 40, stream=stream)) for n in range(8)]
        answers = await asyncio.gather(*asked)

        assert [one.status_code for one in answers] == [200] * 8
        assert await metric(client, "kvmesh_worker_hung_attempts_total") == 0
        assert await metric(client, "kvmesh_worker_ejections_total") == 0


async def test_a_first_request_may_compile_far_longer_than_patience() -> None:
    async with (
        mockers(2, first_pause_s=3.0) as engines,
        router([one.url for one in engines], failure=FailureSettings(hang_s=0.5)) as url,
        client_of(url) as client,
    ):
        answers = await asyncio.gather(
            *(client.post(PATH, json=chat(f"first {number}", 3)) for number in range(4))
        )

        assert [one.status_code for one in answers] == [200] * 4
        assert await metric(client, "kvmesh_worker_hung_attempts_total") == 0


@pytest.mark.parametrize("fault", ["stall", "hang_health", "hang"])
async def test_an_engine_that_hangs_is_found_within_ten_seconds(fault: str) -> None:
    async with (
        mockers(2) as engines,
        router([one.url for one in engines], cost=ROUND_ROBIN, parity_sample=0) as url,
        client_of(url) as client,
    ):
        await warm(client)
        await proven(client, 2)
        hung = engines[0]
        faults = {"fail": ["1:hang"]} if fault == "hang" else {"stall": True}
        await set_faults(hung, hang_health=fault == "hang_health", **faults)

        began = time.monotonic()
        asked = [client.post(PATH, json=chat(f"hangs {number}", 5)) for number in range(4)]
        answers = await asyncio.gather(*asked)
        took_s = time.monotonic() - began

        assert [one.status_code for one in answers] == [200] * 4
        attempts = sorted(int(one.headers.get("x-kvmesh-attempts", 1)) for one in answers)
        assert attempts == [1, 1, 2, 2]
        assert took_s < FOUND_S
        assert await metric(client, 'kvmesh_worker_failures_total{kind="hung",worker="w0"}') == 2
        assert await metric(client, 'kvmesh_worker_failures_total{kind="hung",worker="w1"}') == 0


async def test_requests_running_in_an_engine_that_stalls_are_found_too() -> None:
    async with (
        mockers(2) as engines,
        router([one.url for one in engines], cost=ROUND_ROBIN, parity_sample=0) as url,
        client_of(url) as client,
    ):
        await warm(client)
        await proven(client, 2)
        asked = [
            asyncio.create_task(client.post(PATH, json=chat(f"long {number}", 900)))
            for number in range(2)
        ]
        await until(lambda: engines[0].ranks[0].statistics().running_requests)
        await set_faults(engines[0], stall=True)

        await until(lambda: metric(client, "kvmesh_worker_hung_attempts_total"), FOUND_S)
        answers = await asyncio.gather(*asked)

        assert [one.status_code for one in answers] == [200, 200]


async def test_a_prompt_that_hangs_every_engine_is_no_poison() -> None:
    async with (
        mockers(2) as engines,
        router([one.url for one in engines]) as url,
        client_of(url) as client,
    ):
        await warm(client)
        await proven(client, 2)
        for one in engines:
            await set_faults(one, fail=["1:hang"])

        answer = await client.post(PATH, json=chat("hangs", 5))
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "upstream_hung"
        assert "x-should-retry" not in answer.headers

        for one in engines:
            await set_faults(one)
        assert (await client.post(PATH, json=chat("hangs", 5))).status_code == 200


async def test_an_engine_without_counters_has_the_one_time_out() -> None:
    stream = StreamSettings(request_timeout_s=3.0)
    async with (
        failing_engines(1) as engines,
        router([engines[0].url], failure=FailureSettings(hang_s=0.2), stream=stream) as url,
        client_of(url) as client,
    ):
        await warm(client)
        engines[0].answer = never_answer

        began = time.monotonic()
        answer = await client.post(PATH, json=chat("never", 5))

        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")
        assert 2.5 < time.monotonic() - began < 9.0
        assert await metric(client, "kvmesh_worker_hung_attempts_total") == 0


async def test_a_mesh_finds_what_hangs_by_its_sidecars(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_from_memory(monkeypatch)
    nats, port = NatsSettings(nats_url="nats://127.0.0.1:4222"), free_port()
    server = RouterServer(
        RouterSettings(
            router_id="r0", cost=ROUND_ROBIN, http=HttpSettings(http_port=port), nats=nats
        )
    )
    async with contextlib.AsyncExitStack() as stack:
        engines = await stack.enter_async_context(mockers(2))
        for number, one in enumerate(engines):
            await stack.enter_async_context(sidecar(one.url, nats, f"w{number}"))
        url = await stack.enter_async_context(serving(server.serve, f"http://127.0.0.1:{port}"))
        client = await stack.enter_async_context(client_of(url))
        await known(client, 2)
        await warm(client)
        await proven(client, 2)
        await set_faults(engines[0], stall=True)

        began = time.monotonic()
        asked = [client.post(PATH, json=chat(f"hangs {number}", 5)) for number in range(4)]
        answers = await asyncio.gather(*asked)

        assert [one.status_code for one in answers] == [200] * 4
        assert time.monotonic() - began < FOUND_S
        assert await metric(client, 'kvmesh_worker_failures_total{kind="hung",worker="w0"}') == 2
        assert await metric(client, 'kvmesh_worker_failures_total{kind="hung",worker="w1"}') == 0


def end_of(one: FailingEngine) -> Any:
    """Return what answers a poisoned prompt as an engine does that it kills."""

    def answer(exchange: Exchange) -> None:
        if b"POISON" not in exchange.request.body:
            answer_well(exchange)
            return
        close_unanswered(exchange)
        exchange.scope.last = None
        ending.append(asyncio.get_running_loop().create_task(one.server.close()))

    ending: list[asyncio.Task[None]] = []
    return answer


async def test_a_prompt_that_ends_two_engines_is_refused_from_then_on() -> None:
    async with (
        failing_engines(4) as engines,
        router([one.url for one in engines]) as url,
        client_of(url) as client,
    ):
        await warm(client)
        for one in engines:
            one.answer = end_of(one)

        first = await client.post(PATH, json=chat("POISON", 5))
        assert (first.status_code, first.json()["error"]["code"]) == (502, "upstream_reset")

        async with asyncio.timeout(10):  # the health checks that tell were sent at once
            while True:
                again = await client.post(PATH, json=chat("other", 5))
                assert again.status_code == 200
                if await metric(client, 'kvmesh_worker_stage{stage="down"') == 2:
                    break
        answer = await client.post(PATH, json=chat("POISON", 5))
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "poison")
        hit = sum(
            "POISON" in body["messages"][0]["content"] for one in engines for body in one.prompts
        )
        assert hit <= 4  # each of two, and once more on a fresh connection
        assert (await client.post(PATH, json=chat("other", 5))).status_code == 200


@pytest.mark.parametrize(
    ("headers", "attempts"),
    [
        ({}, 2),
        ({"x-stainless-read-timeout": "0.5"}, 1),
        ({"x-stainless-timeout": "0.5", "x-stainless-read-timeout": "600.0"}, 1),
        ({"x-stainless-read-timeout": "600"}, 2),
        ({"x-stainless-read-timeout": "1e25", "x-stainless-timeout": "-3"}, 2),
        ({"x-stainless-read-timeout": "NOT_GIVEN", "x-stainless-timeout": "0"}, 2),
    ],
)
async def test_nothing_is_sent_again_for_a_client_whose_patience_is_over(
    headers: dict[str, str], attempts: int
) -> None:
    def fail_late(exchange: Exchange) -> None:
        asyncio.get_running_loop().call_later(0.8, answer_status(500), exchange)

    async with (
        failing_engines(2) as engines,
        router([one.url for one in engines], cost=ROUND_ROBIN, parity_sample=0) as url,
        client_of(url) as client,
    ):
        engines[0].answer = engines[1].answer = fail_late

        answer = await client.post(PATH, json=chat("late", 5), headers=headers)

        assert answer.status_code == 500
        assert sum(len(one.prompts) for one in engines) == attempts


class Holding(FailingEngine):
    """A replica that holds requests: while it does, it is not ready."""

    def serve(self, exchange: Exchange) -> None:
        """Answer a prompt after 6 s."""
        path = exchange.request.path
        if path == "/ready" and self.prompts:
            exchange.respond(503, b'{"status":"no worker"}')
        elif exchange.request.method == "POST":
            self.prompts.append({})
            asyncio.get_running_loop().call_later(6.0, answer_well, exchange)
        else:
            super().serve(exchange)


async def test_a_meta_router_never_calls_a_replica_hung_that_holds_its_request() -> None:
    replica = Holding()
    await replica.server.start("127.0.0.1", 0)
    try:
        async with meta_router([f"b={replica.url}"]) as url, client_of(url) as client:
            answer = await client.post(PATH, json=chat("held", 5))
    finally:
        await replica.server.close()

    assert (answer.status_code, len(replica.prompts)) == (200, 1)
