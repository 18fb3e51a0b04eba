"""`kvmesh router --worker`: the engines' KV events without NATS, exact, and what is left of them
when they stop."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from kvmesh.settings.roles import CostSettings
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.integration.support.live_router import (
    client_of,
    engine,
    mocker_options,
    router,
    router_without_nats,
)
from tests.integration.support.waiting import seen, until_ready

pytestmark = pytest.mark.integration

PREFIX = "What everybody asks about, again and again. " * 20
DEADLINE_S = 60.0


def options() -> MockerOptions:
    return mocker_options(16, 512)


@contextlib.asynccontextmanager
async def routed(
    *engines: str, kv_cache_block_size: int | None = None, ready: bool = True
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a router that knows only what events tell it."""
    cost = CostSettings(predict_ttl_s=0.0, kv_cache_block_size=kv_cache_block_size)
    path = "/ready" if ready else "/health"
    async with client_of(router(engines, kv_events=True, cost=cost, path=path)) as client:
        yield client


async def post(client: httpx.AsyncClient, text: str, **more: object) -> httpx.Response:
    message = {"role": "user", "content": text}
    body = {"model": "mock", "max_tokens": 4, "messages": [message]} | more
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def cached(answer: httpx.Response) -> tuple[int, int]:
    """Return the overlap that was foreseen and the engine's own, in blocks."""
    details = answer.json()["usage"]["prompt_tokens_details"]
    return int(answer.headers["x-kvmesh-overlap-blocks"]), (details or {})["cached_tokens"] // 16


async def until_warned(client: httpx.AsyncClient, part: str) -> None:
    """Wait until the only warning contains `part`; with "" until there is none."""

    def is_warned(page: Any) -> bool:
        warnings = page.get("warnings", [])
        return not warnings if not part else len(warnings) == 1 and part in warnings[0]

    await seen(client, "/ready", is_warned)


async def trust_metric(client: httpx.AsyncClient) -> str:
    lines = (await client.get("/metrics")).text.splitlines()
    line = next(one for one in lines if one.startswith("kvmesh_worker_trust") and " 1.0" in one)
    return line.split('trust="')[1].split('"')[0]


async def test_overlap_is_exact_under_eviction() -> None:
    async with engine(options()) as one, engine(options()) as two:
        workers = (f"--worker=w0={one.url}", f"--worker=w1={two.url}")
        async with router_without_nats(*workers, "--predict-ttl-s", "0") as client:
            await until_warned(client, "")
            pairs: list[tuple[int, int]] = []
            trusts: set[str] = set()
            for number in range(30):
                # 20 subjects of 60 blocks do not fit into 2 x 512.
                await post(client, f"{number * 7 % 20} " + PREFIX)
                await _events_arrive(client, one, two)
                answer = await post(client, f"{number * 11 % 20} " + PREFIX + "and then?")
                pairs.append(cached(answer))
                trusts.add(answer.headers["x-kvmesh-trust"])
                await _events_arrive(client, one, two)
            ready = (await client.get("/ready")).json()

    assert [a for a, _ in pairs] == [b for _, b in pairs]
    assert 5 < sum(a > 0 for a, _ in pairs) < 30
    assert (ready, trusts) == ({"ready": True, "reason": "ready"}, {"exact"})


async def test_a_cache_under_pressure_is_estimated_until_predictions_hold() -> None:
    dice = random.Random(38)
    async with engine(options()) as one, routed(one.url) as client:
        await until_warned(client, "")

        async def burst() -> list[tuple[httpx.Response, tuple[int, int]]]:
            # 14 subjects of 60 blocks in a cache of 512: what is there may go while others wait.
            asked = (
                post(client, f"{subject} " + PREFIX) for subject in dice.choices(range(14), k=24)
            )
            answers = await asyncio.gather(*asked)
            return [(answer, cached(answer)) for answer in answers]

        first = await burst()
        pressed = [answer for _ in range(3) for answer in await burst()]
        last = await post(client, PREFIX)
        said = await trust_metric(client)
        calm = [await post(client, PREFIX) for _ in range(70)]

    assert "exact" in {answer.headers["x-kvmesh-trust"] for answer, _ in first}
    wrong = [abs(told - held) > 1 for _, (told, held) in pressed if told or held]
    assert sum(wrong) > 0.1 * len(wrong)
    assert (last.headers["x-kvmesh-trust"], said) == ("estimated", "estimated")
    assert calm[-1].headers["x-kvmesh-trust"] == "exact"


async def _events_arrive(client: httpx.AsyncClient, *engines: Mocker) -> None:
    """Wait until the router has read all that the engines published, and holds what they hold."""

    def arrived(status: Any) -> bool:
        ranks = [rank for one in status["mesh"]["engines"].values() for rank in one.values()]
        known = [(rank["events"]["last_seq"], rank["cache"]["visible_blocks"]) for rank in ranks]
        return known == [
            (rank.publisher.next_seq - 1, len(rank.dump()) // 8)
            for one in engines
            for rank in one.ranks.values()
            if rank.publisher is not None
        ]

    await seen(client, "/v1/status", arrived)


async def test_an_engine_that_restarts_holds_nothing_and_is_exact_again() -> None:
    wanted = options()
    async with engine(wanted) as one, routed(one.url) as client:
        await until_warned(client, "")
        await post(client, PREFIX)
        await _events_arrive(client, one)
        warm = cached(await post(client, PREFIX))
        await one.stop()
        async with engine(wanted) as next_life:
            await until_warned(client, "")
            await until_ready(client)
            # Whatever the router still believed, the first batches tell it better.
            await post(client, "something else")
            await _events_arrive(client, next_life)
            cold = cached(await post(client, PREFIX))
            await _events_arrive(client, next_life)
            again = cached(await post(client, PREFIX))

    assert warm == again
    assert warm[0] == warm[1] > 40
    assert cold[0] == cold[1] < 5


async def test_a_router_that_starts_later_replays_what_it_missed() -> None:
    async with engine(options()) as one:
        async with httpx.AsyncClient(base_url=one.url, timeout=60) as direct:
            await post(direct, PREFIX)
        given = (
            f"--worker=w={one.url},zmq={one.kv_events_endpoint()},replay={one.replay_endpoint()}"
        )
        async with router_without_nats(given.replace("*", "127.0.0.1")) as client:
            await until_warned(client, "")
            answer = await post(client, PREFIX)

    assert cached(answer)[0] == cached(answer)[1] > 40


async def test_without_replay_a_gap_makes_it_approximate_until_the_cache_is_reset() -> None:
    wanted = msgspec.structs.replace(options(), buffer_steps=1)
    async with engine(wanted) as one:
        async with httpx.AsyncClient(base_url=one.url, timeout=60) as direct:
            for number in range(5):
                await post(direct, f"{number} {PREFIX}")
        async with routed(one.url) as client:
            await until_warned(client, "some of its KV events are lost")
            first = await post(client, "a" + PREFIX)
            second = await post(client, "a" + PREFIX)
            degraded = await trust_metric(client)
            async with httpx.AsyncClient(base_url=one.url, timeout=60) as direct:
                assert (await direct.post("/reset_prefix_cache")).json() == {"success": True}
            await post(client, "b" + PREFIX)
            await until_warned(client, "")
            exact = await trust_metric(client)

    assert (degraded, exact) == ("degraded", "exact")
    assert (first.headers["x-kvmesh-trust"], cached(first)[0]) == ("degraded", 0)
    assert cached(second)[0] == cached(second)[1] > 40


async def test_a_cache_reset_through_the_router_is_empty_before_the_next_step() -> None:
    async with engine(options()) as one, routed(one.url) as client:
        await until_warned(client, "")
        first = [await post(client, "a" + PREFIX) for _ in range(2)][1]
        reset = await client.post("/reset_prefix_cache")
        again = await post(client, "a" + PREFIX)

    assert cached(first)[0] == cached(first)[1] > 40
    assert (reset.status_code, cached(again)) == (200, (0, 0))
    assert again.headers["x-kvmesh-trust"] == "exact"


async def test_an_engine_without_events_is_routed_approximately_and_said_so() -> None:
    wanted = msgspec.structs.replace(options(), enable_kv_cache_events=False)
    async with engine(wanted) as one, routed(one.url) as client:
        await until_warned(client, "publishes no KV events")
        await post(client, PREFIX)
        answer = await post(client, PREFIX)

    assert answer.headers["x-kvmesh-trust"] == "approx"
    assert cached(answer)[0] == cached(answer)[1] > 40


async def test_events_that_stop_make_it_approximate() -> None:
    async with engine(options()) as one, routed(one.url) as client:
        await until_warned(client, "")
        publisher = one.ranks[0].publisher
        assert publisher is not None
        publisher.close()
        await until_warned(client, "cannot be reached")

        assert await trust_metric(client) == "approx"


async def test_blocks_of_another_size_than_given_are_found() -> None:
    wanted = msgspec.structs.replace(options(), block_size=32)
    async with engine(wanted) as one, routed(one.url, kv_cache_block_size=16) as client:
        await until_warned(client, "")
        await post(client, PREFIX)
        await _events_arrive(client, one)
        await seen(client, "/v1/status", lambda status: status["block_sizes"] == [16, 32])
        answer = await post(client, PREFIX)

    assert answer.headers["x-kvmesh-trust"] == "exact"
    assert cached(answer)[0] == cached(answer)[1] > 50


async def test_without_a_size_given_the_engines_is_taken_and_another_after_its_restart() -> None:
    wanted = msgspec.structs.replace(options(), block_size=32)
    async with routed(wanted_url(wanted), ready=False) as client:
        sizes: list[tuple[int, str]] = [await block_size(client)]
        for size in (32, 8):
            async with engine(msgspec.structs.replace(wanted, block_size=size)) as one:
                await until_ready(client)
                await post(client, PREFIX)
                await until_sized(client, size)
                await until_warned(client, "")
                await post(client, PREFIX)
                await _events_arrive(client, one)
                answer = await post(client, PREFIX)
                sizes.append(await block_size(client))
                foreseen = int(answer.headers["x-kvmesh-overlap-blocks"])
                details = answer.json()["usage"]["prompt_tokens_details"]
                assert answer.headers["x-kvmesh-trust"] == "exact"
                assert foreseen * size == details["cached_tokens"] > 800

    assert sizes == [(16, "default"), (32, "workers"), (8, "workers")]


def wanted_url(wanted: MockerOptions) -> str:
    return f"http://127.0.0.1:{wanted.port}"


async def block_size(client: httpx.AsyncClient) -> tuple[int, str]:
    status = (await client.get("/v1/status")).json()
    return status["block_size"], status["block_size_from"]


async def until_sized(client: httpx.AsyncClient, size: int) -> None:
    await seen(client, "/v1/status", lambda status: status["block_size"] == size)


async def test_ranks_are_workers_of_their_own() -> None:
    wanted = msgspec.structs.replace(
        options(), data_parallel_size=2, kv_events_port=0, replay_port=0
    )
    async with engine(wanted) as one, routed(one.url) as client:
        await until_warned(client, "")
        placed: dict[str, str] = {}
        for number in range(6):
            answer = await post(client, f"{number} {PREFIX}")
            placed[f"{number}"] = answer.headers["x-kvmesh-worker"]
            await _events_arrive(client, one)
        for name, worker in placed.items():
            answer = await post(client, f"{name} {PREFIX}")
            assert answer.headers["x-kvmesh-worker"] == worker
            assert cached(answer)[0] == cached(answer)[1] > 40
            await _events_arrive(client, one)

    assert set(placed.values()) == {"w0-dp0", "w0-dp1"}
