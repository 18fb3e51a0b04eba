"""A prefix that another worker holds, fetched by an engine that is told where it is."""

import json
from typing import Any

import httpx
import pytest

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.integration.support.live_router import client_of, router
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

PROMPT = "What everybody asks about, again and again. " * 60
LABEL = "label=kvmesh/fetch/offloading/5711"


class RecordingEngine:
    """Answers completions and keeps their bodies; it publishes no events."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.server = HttpServer(self._serve)
        self.url = ""

    def _serve(self, exchange: Exchange) -> None:
        if exchange.request.path == "/v1/models":
            exchange.respond(200, b'{"object":"list","data":[{"id":"mock"}]}')
        elif exchange.request.path == "/v1/completions":
            self.bodies.append(json.loads(exchange.request.body))
            usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
            answer = {"choices": [{"index": 0, "text": "x"}], "usage": usage}
            exchange.respond(200, json.dumps(answer).encode())
        else:
            exchange.respond(200, b"")


@pytest.fixture
async def recording() -> RecordingEngine:
    engine = RecordingEngine()
    await engine.server.start("127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{engine.server.port}"
    return engine


async def complete(client: httpx.AsyncClient, worker: str, **more: object) -> httpx.Response:
    body = {"model": "mock", "prompt": PROMPT, "max_tokens": 1} | more
    headers = {"x-kvmesh-worker-id": worker}
    answer = await client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def explain(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return how w1 is weighed for the prompt."""
    body = {"model": "mock", "prompt": PROMPT}
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


async def test_an_engine_is_told_from_where_to_fetch_what_another_holds(
    recording: RecordingEngine,
) -> None:
    options = MockerOptions(port=0, kv_events_port=0, replay_port=0, timing_profile="instant")
    holder = Mocker(options)
    await holder.start()
    workers = [f"{holder.url},{LABEL}", f"{recording.url},zmq=off,{LABEL}"]
    try:
        async with client_of(router(workers, kv_events=True, parity_sample=0)) as client:
            await complete(client, "w0")

            explained = await until_told(client)
            answer = await complete(client, "w1")
            assert answer.headers["x-kvmesh-fetch-from"] == "w0"
            reported = recording.bodies[-1]["kv_transfer_params"]
            recording.bodies.clear()
            for odd in (
                {"prompt": [PROMPT, PROMPT]},
                {"n": 2},
                {"kv_transfer_params": {"own": 1}},
                {"prompt": "Something else altogether. " * 60},
            ):
                answer = await complete(client, "w1", **odd)
                assert "x-kvmesh-fetch-from" not in answer.headers
            metrics = (await client.get("/metrics")).text
    finally:
        await holder.stop()
        await recording.server.close()

    assert isinstance(reported, dict)
    source = reported["remote_kv_source"]
    assert source["remote_host"] == "127.0.0.1"
    assert source["remote_port"] == 5711
    assert source["kv_request_id"]
    assert [one.get("kv_transfer_params") for one in recording.bodies] == [
        None,
        None,
        {"own": 1},
        None,
    ]
    assert 'kvmesh_fetched_tokens_total{place="peer"}' in metrics
    assert explained["fetch_from"] == "w0"
    assert explained["fetch_ms"] > 0.0
