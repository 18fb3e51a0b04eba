"""A sick fleet behind one router: what clients see, who gets requests, and who comes back."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kvmesh.settings.http import UpstreamSettings
from kvmesh.settings.requests import FailureSettings
from kvmesh.settings.roles import CostSettings
from tests.integration.support.failing_engine import (
    Answer,
    FailingEngine,
    answer_status,
    answer_well,
    close_unanswered,
    failing_engines,
    never_answer,
)
from tests.integration.support.live_router import client_of, router
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

SYSTEM = "You are a bakery. " * 60


def chat(text: str, **wishes: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    return {"model": "m", "messages": messages, **wishes}


class Door:
    """A client of one router's front door."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def ask(self, text: str, **wishes: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=chat(text, **wishes))

    async def statuses(self, count: int, name: str = "q") -> Counter[int]:
        found: Counter[int] = Counter()
        for number in range(count):
            found[(await self.ask(f"{name} {number}")).status_code] += 1
        return found

    async def metric(self, line: str) -> float:
        text = (await self.client.get("/metrics")).text
        values = [float(one.split()[-1]) for one in text.splitlines() if one.startswith(line)]
        return sum(values)

    async def worker(self, name: str) -> dict[str, Any]:
        status = (await self.client.get("/v1/status")).json()
        found: dict[str, Any] = next(one for one in status["workers"] if one["worker"] == name)
        return found


@contextlib.asynccontextmanager
async def door_to(engines: list[FailingEngine], **settings: Any) -> AsyncIterator[Door]:
    urls = [one.url for one in engines]
    settings.setdefault("parity_sample", 0)
    async with client_of(router(urls, **settings)) as client:
        yield Door(client)


def turned_off(**changed: Any) -> FailureSettings:
    return FailureSettings(**{"wait_for_worker_s": 0.0, **changed})


# A mode chooses by what the workers' health says, however they failed.
@pytest.mark.parametrize(
    ("mode", "answer"),
    [
        ("kv", answer_status(500)),
        ("kv", answer_status(502)),
        ("kv", answer_status(429)),
        ("kv", close_unanswered),
        ("round-robin", answer_status(429)),
        ("least-loaded", answer_status(500)),
        ("power-of-two", close_unanswered),
        ("random", answer_status(500)),
    ],
)
async def test_an_engine_that_fails_fast_costs_nobody_an_answer(answer: Answer, mode: str) -> None:
    async with (
        failing_engines(2) as engines,
        door_to(engines, cost=CostSettings(router_mode=mode)) as door,  # type: ignore[arg-type]  # a mode
    ):
        engines[0].answer = answer

        alone = await door.statuses(20)
        many = Counter(
            one.status_code for one in await asyncio.gather(*(door.ask(f"c{n}") for n in range(40)))
        )

        assert (alone, many) == ({200: 20}, {200: 40})
        assert len(engines[0].prompts) < 20


async def test_an_error_that_is_passed_on_is_counted_once_as_what_it_is() -> None:
    async with failing_engines(1) as engines, door_to(engines) as door:
        engines[0].answer = answer_status(500)

        found = await door.statuses(1)

        assert found == {500: 1}
        assert await door.metric('kvmesh_worker_failures_total{kind="500",worker="w0"}') == 1
        assert await door.metric('kvmesh_requests_total{outcome="finished",status="5xx"}') == 1
        counters = (await door.client.get("/v1/overview?limit=0")).json()["counters"]
        assert (counters["finished"], counters["errors_passed_on"]) == (1, 1)


async def test_many_failures_eject_and_all_pages_say_why_until_it_is_well() -> None:
    async with (
        failing_engines(2) as engines,
        door_to(engines, cost=CostSettings(router_mode="round-robin")) as door,
    ):
        engines[0].answer = answer_status(500)
        await door.statuses(10)

        asked = await door.client.post("/v1/route", json=chat("where to"))
        await door.client.post(
            "/v1/chat/completions", json=chat("whence"), headers={"x-request-id": "served"}
        )
        known = await door.client.get("/v1/decisions/served")
        overview = (await door.client.get("/v1/overview?limit=0")).json()
        assert (await door.worker("w0"))["why_not"].startswith("ejected, 3 of 3 failed (500)")
        assert await door.metric('kvmesh_worker_failures_total{kind="500",worker="w0"}') == 3
        assert await door.metric('kvmesh_worker_stage{stage="ejected",worker="w0"}') == 1
        assert await door.metric('kvmesh_retries_total{result="allowed"}') == 3
        ready = (await door.client.get("/ready")).json()
        assert any(
            "w0: gets no requests: ejected, requests fail there (500)" in line
            for line in ready["warnings"]
        )

        engines[0].answer = answer_well

        async def back() -> bool:
            await door.ask("again")
            return (await door.worker("w0"))["usable"] is True

        await until(back)

    for left_out in (asked.json()["left_out"], known.json()["decision"]["left_out"]):
        (one,) = left_out["named"]
        assert (left_out["count"], one["worker"]) == (1, "w0")
        assert one["why"].startswith("ejected, 3 of 3 failed (500), asked again in ")
    rows = {one["worker"]: one for one in overview["workers"]}
    assert (rows["w0"]["stage"], rows["w0"]["failures"], rows["w0"]["attempts"]) == (
        "ejected",
        3,
        3,
    )
    assert (rows["w1"]["stage"], rows["w1"]["failures"]) == ("in", 0)


async def test_what_was_not_served_counts_as_cached_nowhere() -> None:
    async with failing_engines(1) as engines, door_to(engines, failure=turned_off()) as door:
        for status in (400, 500):
            engines[0].answer = answer_status(status)
            await door.ask("rejected")
            decided = (await door.client.post("/v1/route", json=chat("rejected"))).json()
            assert decided["overlap_blocks"] == 0

        engines[0].answer = answer_well
        await door.ask("served")
        decided = (await door.client.post("/v1/route", json=chat("served"))).json()
        assert decided["overlap_blocks"] > 0


def poisoned(exchange: Any) -> None:
    poison = b"POISON" in exchange.request.body
    (close_unanswered if poison else answer_well)(exchange)


async def test_a_prompt_that_fails_at_two_engines_that_live_is_no_poison_nor_are_they() -> None:
    async with failing_engines(6) as engines, door_to(engines) as door:
        await door.statuses(12, "warm")
        for engine in engines:
            engine.answer = poisoned

        for _ in range(2):
            answer = await door.ask("POISON")
            assert answer.status_code == 502
            assert answer.json()["error"]["code"] == "upstream_reset"
        hit = sum(b["messages"][1]["content"] == "POISON" for e in engines for b in e.prompts)
        assert hit <= 8  # each time two, and once more on a fresh connection

        assert await door.statuses(30, "others") == {200: 30}


async def test_poison_at_five_a_second_takes_nobody_elses_answers() -> None:
    async with failing_engines(3) as engines, door_to(engines) as door:
        for engine in engines:
            engine.answer = poisoned

        async def poison() -> None:
            for number in range(25):
                await door.ask(f"POISON {number}")
                await asyncio.sleep(0.02)

        async def others() -> Counter[int]:
            found: Counter[int] = Counter()
            for number in range(100):
                found[(await door.ask(f"other {number}")).status_code] += 1
                await asyncio.sleep(0.005)
            return found

        _, found = await asyncio.gather(poison(), others())

        assert found == {200: 100}


async def test_the_client_of_an_engine_on_trial_may_leave() -> None:
    async with failing_engines(2) as engines, door_to(engines) as door:
        engines[0].answer = engines[1].answer = answer_well
        await door.statuses(2)
        engines[0].answer = never_answer
        engines[1].answer = never_answer

        for _ in range(2):
            with contextlib.suppress(httpx.TimeoutException):
                await door.client.post(
                    "/v1/chat/completions", json=chat("leaves"), timeout=httpx.Timeout(0.3)
                )
        engines[0].answer = engines[1].answer = answer_well

        assert await door.statuses(4) == {200: 4}
        assert (await door.worker("w0"))["usable"]
        assert (await door.worker("w1"))["usable"]


async def test_a_single_failure_leaves_a_worker_out_for_moments() -> None:
    async with failing_engines(2) as engines, door_to(engines) as door:
        engines[0].answer = engines[1].answer = close_unanswered
        await door.ask("both fail it")
        engines[0].answer = engines[1].answer = answer_well

        async def both_usable() -> bool:
            return all([(await door.worker(name))["usable"] for name in ("w0", "w1")])

        await until(both_usable, 2.0)


async def test_an_engine_that_hangs_gives_its_requests_back() -> None:
    async with failing_engines(2) as engines, door_to(engines) as door:
        engines[0].answer = engines[1].answer = never_answer
        asked = asyncio.create_task(door.ask("hangs", max_tokens=1))
        await until(lambda: engines[0].prompts or engines[1].prompts)
        hung = max(engines, key=lambda engine: len(engine.prompts))
        hung.healthy = False
        engines[1 - engines.index(hung)].answer = answer_well

        answer = await asyncio.wait_for(asked, 25.0)

        assert answer.status_code == 200
        assert answer.headers["x-kvmesh-attempts"] == "2"
        assert await door.metric("kvmesh_worker_hung_attempts_total") >= 1
        name = f"w{engines.index(hung)}"

        async def reported() -> bool:
            overview = (await door.client.get("/v1/overview?limit=0")).json()
            rows = {row["worker"]: row["hung"] for row in overview["workers"]}
            found = [one for one in overview["problems"] if one["kind"] == "hung"]
            assert {one["who"] for one in found} <= {name}
            assert {one["page"] for one in found} <= {"runbook#hung-engine"}
            return bool(found) and rows[name] and not rows[f"w{1 - engines.index(hung)}"]

        await until(reported)


@pytest.mark.parametrize("given_up", [False, True])
async def test_a_request_waits_for_an_engine_that_comes_back(given_up: bool) -> None:
    async with failing_engines(1) as engines, door_to(engines) as door:
        port = engines[0].server.port
        await door.ask("first")
        await engines[0].server.close()

        async def left_out() -> bool:
            return (await door.client.get("/ready")).status_code == 503

        if given_up:
            await until(left_out)
        waiting = asyncio.create_task(door.ask("second"))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        engines[0] = FailingEngine()
        await engines[0].server.start("127.0.0.1", port)

        assert (await waiting).status_code == 200
        await engines[0].server.close()


async def test_a_request_that_was_sent_waits_for_its_engine_to_come_back() -> None:
    async with failing_engines(1) as engines, door_to(engines) as door:
        port = engines[0].server.port
        engines[0].answer = never_answer
        waiting = [asyncio.create_task(door.ask(f"{number}")) for number in range(4)]
        await until(lambda: len(engines[0].prompts) == len(waiting))
        await engines[0].server.close()
        await asyncio.sleep(0.5)
        assert not any(one.done() for one in waiting)
        engines[0] = FailingEngine()
        await engines[0].server.start("127.0.0.1", port)

        answers = await asyncio.gather(*waiting)
        await engines[0].server.close()

    assert [one.status_code for one in answers] == [200] * 4


@pytest.mark.parametrize(
    ("path", "more", "answer", "status"),
    [
        ("/v1/batches", {}, close_unanswered, 502),
        ("/v1/batches", {}, answer_status(500), 500),
        ("/v1/responses", {"background": True}, close_unanswered, 502),
    ],
)
async def test_what_may_go_on_without_its_client_is_not_sent_again(
    path: str, more: dict[str, Any], answer: Answer, status: int
) -> None:
    async with failing_engines(2) as engines, door_to(engines) as door:
        engines[0].answer = engines[1].answer = answer
        asked = {"model": "m", "input": "x"} | more

        answered = await door.client.post(path, json=asked)

    assert answered.status_code == status
    assert sum(len(engine.prompts) for engine in engines) == 1


async def test_a_router_that_may_not_hold_a_request_says_at_once_that_it_has_no_worker() -> None:
    async with failing_engines(1) as engines, door_to(engines) as door:
        await engines[0].server.close()
        began_s = asyncio.get_running_loop().time()
        headers = {"x-kvmesh-wait-for-worker-s": "0"}

        answer = await door.client.post("/v1/chat/completions", json=chat("hello"), headers=headers)

        assert asyncio.get_running_loop().time() - began_s < 3.0
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_worker"
    assert answer.headers["x-kvmesh-refused"] == "no-worker"


async def test_nobody_waits_where_waiting_is_off() -> None:
    async with failing_engines(1) as engines, door_to(engines, failure=turned_off()) as door:
        await engines[0].server.close()

        answers = [await door.ask("first"), await door.ask("second")]

        assert {one.status_code for one in answers} <= {502, 503}


async def test_a_fleet_that_fails_everything_gets_no_more_than_its_budget() -> None:
    async with (
        failing_engines(3) as engines,
        door_to(engines, failure=FailureSettings(retry_budget=0.0)) as door,
    ):
        for engine in engines:
            engine.answer = answer_status(500)

        assert await door.statuses(10) == {500: 10}

        assert sum(len(engine.prompts) for engine in engines) == 10
        assert await door.metric('kvmesh_retries_total{result="refused"}') == 10


async def test_an_engine_that_asks_for_rest_gets_it() -> None:
    async with (
        failing_engines(3) as engines,
        door_to(engines, cost=CostSettings(router_mode="round-robin")) as door,
    ):
        engines[0].answer = answer_status(429, (b"retry-after", b"20"))
        await door.statuses(3)
        before = len(engines[0].prompts)

        assert await door.statuses(20) == {200: 20}

        assert len(engines[0].prompts) == before == 1
        assert (await door.worker("w0"))["why_not"].startswith("overloaded, asked for")


async def test_one_clients_limit_at_every_engine_keeps_nobody_else_out() -> None:
    def limited(exchange: Any) -> None:
        rich = b"GREEDY" in exchange.request.body
        (answer_status(429, (b"retry-after", b"20")) if rich else answer_well)(exchange)

    async with failing_engines(3) as engines, door_to(engines) as door:
        for engine in engines:
            engine.answer = limited

        answer = await door.ask("GREEDY")

        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "20"
        assert all([(await door.worker(f"w{n}"))["usable"] for n in range(3)])


async def test_no_retry_is_made_where_it_is_forbidden() -> None:
    async with (
        failing_engines(2) as engines,
        door_to(engines, upstream=UpstreamSettings(max_retries=0)) as door,
    ):
        engines[0].answer = engines[1].answer = answer_status(500)

        assert (await door.ask("once")).status_code == 500

        assert sum(len(engine.prompts) for engine in engines) == 1


async def test_a_stream_that_breaks_in_its_middle_costs_no_retry_and_counts_as_cut() -> None:
    def break_off(exchange: Any) -> None:
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        exchange.write(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
        asyncio.get_running_loop().call_later(0.05, exchange.abort)

    async with failing_engines(2) as engines, door_to(engines) as door:
        for engine in engines:
            engine.answer = break_off

        with pytest.raises(httpx.RemoteProtocolError):
            await door.ask("cut", stream=True)

        assert await door.metric('kvmesh_worker_failures_total{kind="cut"') == 1
        assert await door.metric('kvmesh_retries_total{result="allowed"}') == 0
        assert await door.metric("kvmesh_attempts_failed_total") == 1


async def test_an_engine_that_was_ejected_is_tried_though_others_are_idle() -> None:
    async with failing_engines(2) as engines, door_to(engines) as door:
        engines[0].answer = engines[1].answer = answer_well
        await door.statuses(2)
        for engine in engines:
            engine.answer = answer_status(500)
        await door.statuses(8, "all fail")
        for engine in engines:
            engine.answer = answer_well

        async def both_usable() -> bool:
            await door.ask("again")
            stages = [(await door.worker(name))["usable"] for name in ("w0", "w1")]
            trusted = await door.metric('kvmesh_worker_stage{stage="in"')
            return all(stages) and trusted == 2

        await until(both_usable)
