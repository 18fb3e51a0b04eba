"""`kvmesh router --no-kv-events`: a router alone, on a machine where NATS is not installed."""

from array import array
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer
from kvmesh_lab.mocker.command import Mocker
from tests.integration.support import live_router
from tests.integration.support.live_router import mockers

pytestmark = pytest.mark.integration

PREFIX = "What everybody asks about, again and again. " * 50


@pytest.fixture
async def engines() -> AsyncIterator[list[Mocker]]:
    async with mockers(2) as found:
        yield found


@pytest.fixture
async def router(engines: list[Mocker]) -> AsyncIterator[httpx.AsyncClient]:
    """A router alone, in this process."""
    urls = [mocker.url for mocker in engines]
    async with (
        live_router.client_of(live_router.router(urls, bucket="alone", router_id="r0")) as client,
    ):
        yield client


@pytest.fixture
async def without_nats(engines: list[Mocker]) -> AsyncIterator[httpx.AsyncClient]:
    """A router alone, in a process that cannot import nats."""
    workers = [f"--worker=w{number}={mocker.url}" for number, mocker in enumerate(engines)]
    fixed = ("--no-kv-events", "--bucket", "alone", "--router-id", "r0")
    async with live_router.router_without_nats(*fixed, *workers) as client:
        yield client


def body(text: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "mock",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": text}],
    } | more


async def post(client: httpx.AsyncClient, text: str, **headers: str) -> httpx.Response:
    names = {f"x-kvmesh-{name.replace('_', '-')}": value for name, value in headers.items()}
    return await client.post("/v1/chat/completions", json=body(text), headers=names)


async def test_a_prefix_goes_back_to_the_worker_it_went_to(
    without_nats: httpx.AsyncClient,
) -> None:
    router = without_nats
    first = await post(router, PREFIX + "one")
    second = await post(router, PREFIX + "two")

    assert first.headers["x-kvmesh-overlap-blocks"] == "0"
    assert second.headers["x-kvmesh-worker"] == first.headers["x-kvmesh-worker"]
    assert int(second.headers["x-kvmesh-overlap-blocks"]) > 100
    assert second.headers["x-kvmesh-router"] == "r0"
    assert second.headers["x-kvmesh-bucket"] == "alone"
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 1600


async def test_round_robin_alternates_and_direct_obeys(router: httpx.AsyncClient) -> None:
    turns = [
        (await post(router, PREFIX, router_mode="round-robin")).headers["x-kvmesh-worker"]
        for _ in range(4)
    ]
    pinned = await post(router, PREFIX, router_mode="direct", worker_id="w1")
    nowhere = await post(router, PREFIX, router_mode="direct", worker_id="w9")
    unnamed = await post(router, PREFIX, router_mode="direct")

    assert sorted(turns[:2]) == sorted(turns[2:]) == ["w0", "w1"]
    assert pinned.headers["x-kvmesh-worker"] == "w1"
    assert nowhere.status_code == 503
    assert unnamed.status_code == 400
    assert "send x-kvmesh-worker-id" in unnamed.json()["error"]["message"]
    assert "w9: unknown" in nowhere.json()["error"]["message"]


async def test_bad_requests_are_told_what_is_wrong(router: httpx.AsyncClient) -> None:
    mode = await post(router, "x", router_mode="clever")
    broken = await router.post("/v1/chat/completions", content=b"{")
    empty = await router.post("/v1/chat/completions", json={"model": "mock"})
    unknown = await router.post("/v1/chat/completions", json=body("x", model="other"))
    nothing = await router.post("/nothing")
    method = await router.get("/v1/route")

    assert (mode.status_code, broken.status_code, empty.status_code) == (400, 400, 400)
    assert "clever" in mode.json()["error"]["message"]
    assert empty.json()["error"]["param"] == "messages"
    assert unknown.status_code == 404
    error = unknown.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (
        *("model_not_found", "invalid_request_error"),
        "model",
    )
    assert "does not serve 'other'" in error["message"]
    assert nothing.status_code == 404
    assert (method.status_code, method.headers["allow"]) == (405, "POST")


async def test_token_ids_may_come_packed(router: httpx.AsyncClient) -> None:
    tokens = array("I", range(64))

    answer = await router.post(
        "/v1/route",
        content=tokens.tobytes(),
        headers={"content-type": "application/octet-stream"},
    )
    odd = await router.post(
        "/v1/route", content=b"123", headers={"content-type": "application/octet-stream"}
    )

    assert answer.json()["total_blocks"] == 4
    assert answer.json()["prompt_tokens"] == 64
    assert odd.status_code == 400


async def test_completions_by_text_and_by_ids_share_their_prefix(
    router: httpx.AsyncClient,
) -> None:
    ids = list(ByteTokenizer().encode(PREFIX, add_special_tokens=True))
    first = await router.post(
        "/v1/completions", json={"model": "mock", "prompt": PREFIX, "max_tokens": 2}
    )
    second = await router.post(
        "/v1/completions", json={"model": "mock", "prompt": ids, "max_tokens": 2}
    )

    assert first.status_code == second.status_code == 200
    assert second.headers["x-kvmesh-worker"] == first.headers["x-kvmesh-worker"]
    assert int(second.headers["x-kvmesh-overlap-blocks"]) > 100


async def test_admin_paths_tell_the_state(router: httpx.AsyncClient) -> None:
    await post(router, PREFIX)
    await post(router, PREFIX)

    ready = await router.get("/ready")
    status = (await router.get("/v1/status")).json()
    metrics = (await router.get("/metrics")).text
    models = (await router.get("/v1/models")).json()
    one = await router.get("/v1/models/mock")
    missing = await router.get("/v1/models/none")

    assert ready.json() == {"ready": True, "reason": "ready"}
    assert (await router.get("/health")).status_code == 200
    assert {worker["worker"] for worker in status["workers"]} == {"w0", "w1"}
    assert {worker["trust"] for worker in status["workers"]} == {"approx"}
    assert status["requests"]["finished"] == 2
    assert 'kvmesh_requests_total{outcome="finished",status="2xx"} 2.0' in metrics
    assert [model["id"] for model in models["data"]] == ["mock"]
    assert (one.status_code, missing.status_code) == (200, 404)


async def test_a_dead_worker_is_left_out_and_its_request_goes_elsewhere(
    router: httpx.AsyncClient, engines: list[Mocker]
) -> None:
    first = await post(router, PREFIX)
    dead = int(first.headers["x-kvmesh-worker"].removeprefix("w"))

    await engines[dead].stop()
    answers = [await post(router, PREFIX + str(number)) for number in range(10)]

    assert [answer.status_code for answer in answers] == [200] * 10
    assert {answer.headers["x-kvmesh-worker"] for answer in answers} == {f"w{1 - dead}"}


async def test_other_paths_are_passed_on(router: httpx.AsyncClient) -> None:
    answer = await router.post("/v1/unheard-of", json={})

    assert answer.status_code == 404
    assert answer.headers["x-kvmesh-worker"] in {"w0", "w1"}
