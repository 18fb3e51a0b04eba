"""A prefix that another worker holds, fetched by an engine that is told where it is."""

from typing import Any

import httpx
import pytest

from kvmesh.transport.http.server.exchange import Exchange
from tests.integration.support.failing_engine import failing_engines
from tests.integration.support.live_router import COMPLETION, client_of, mockers, router
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

PROMPT = "What everybody asks about, again and again. " * 60
LABEL = "label=kvmesh/fetch/offloading/5711"


def complete_one(exchange: Exchange) -> None:
    exchange.respond(200, COMPLETION)


async def complete(client: httpx.AsyncClient, worker: str, **more: object) -> httpx.Response:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 1} | more
    headers = {"x-kvmesh-worker-id": worker}
    answer = await client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def explain(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return how w1 is weighed for the prompt."""
    body = {"model": "m", "prompt": PROMPT}
    answer = await client.post("/v1/route", json=body, headers={"x-kvmesh-worker-id": "w1"})
    (weighed,) = answer.json()["candidates"]
    assert isinstance(weighed, dict)
    return weighed


async def until_told(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return how w1 is weighed once w0's events have told that it holds the prompt."""

    async def told() -> dict[str, Any] | None:
        weighed = await explain(client)
        return weighed if weighed["fetch_from"] else None

    weighed: dict[str, Any] = await until(told)
    return weighed


async def test_an_engine_is_told_from_where_to_fetch_what_another_holds() -> None:
    async with mockers(model="m") as (holder,), failing_engines(1) as (recording,):
        recording.answer = complete_one
        workers = [f"{holder.url},{LABEL}", f"{recording.url},zmq=off,{LABEL}"]
        async with client_of(router(workers, kv_events=True, parity_sample=0)) as client:
            await complete(client, "w0")

            explained = await until_told(client)
            answer = await complete(client, "w1")
            assert answer.headers["x-kvmesh-fetch-from"] == "w0"
            reported = recording.prompts[-1]["kv_transfer_params"]
            recording.prompts.clear()
            for odd in (
                {"prompt": [PROMPT, PROMPT]},
                {"n": 2},
                {"kv_transfer_params": {"own": 1}},
                {"prompt": "Something else altogether. " * 60},
            ):
                answer = await complete(client, "w1", **odd)
                assert "x-kvmesh-fetch-from" not in answer.headers
            metrics = (await client.get("/metrics")).text

    assert isinstance(reported, dict)
    source = reported["remote_kv_source"]
    assert source["remote_host"] == "127.0.0.1"
    assert source["remote_port"] == 5711
    assert source["kv_request_id"]
    assert [one.get("kv_transfer_params") for one in recording.prompts] == [
        None,
        None,
        {"own": 1},
        None,
    ]
    assert 'kvmesh_fetched_tokens_total{place="peer"}' in metrics
    assert explained["fetch_from"] == "w0"
    assert explained["fetch_ms"] > 0.0
