"""Prefill and decode on two workers behind a gateway; engines refuse a wrong handshake."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.picker.envoy_options import Address, GatewayOptions
from kvmesh.app.picker.envoy_server import EnvoyServer
from kvmesh.settings.features import SplitSettings
from kvmesh.settings.roles import CostSettings
from tests.integration.picker.live_picker import LivePicker, picker
from tests.integration.picker.pretend_sidecar import CANONICAL, PREFILLER, PretendSidecar
from tests.integration.serve.test_disaggregation import engines
from tests.integration.support.live_router import mockers
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

PROMPT = "What everybody asks about, again and again. " * 30
THRESHOLD = 200
FETCH = "kvmesh/fetch/offloading/5711"


@contextlib.asynccontextmanager
async def gateway(
    folder: Path, workers: list[str], *endpoints: str, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, LivePicker]]:
    """Run Envoy before a picker over `workers`, with these `endpoints` to send to."""
    cost, split = CostSettings(prefill_threshold=THRESHOLD), SplitSettings(prefill_split="always")
    async with (
        picker(workers, cost=cost, split=split, parity_sample=0, **settings) as live,
        contextlib.AsyncExitStack() as stack,
    ):
        known = tuple(Address("127.0.0.1", httpx.URL(url).port or 80) for url in endpoints)
        asked = GatewayOptions(pickers=(Address("127.0.0.1", live.port),), endpoints=known)
        server = EnvoyServer(asked, folder / "envoy")
        stack.push_async_callback(server.stop)
        await server.start()
        client = httpx.AsyncClient(base_url=server.url, timeout=30)
        yield await stack.enter_async_context(client), live


async def chat(client: httpx.AsyncClient, text: str, **more: Any) -> httpx.Response:
    message = {"role": "user", "content": text}
    body = {"model": "mock", "max_tokens": 4, "messages": [message]}
    return await client.post("/v1/chat/completions", json=body, **more)


async def none_booked(live: LivePicker) -> bool:
    workers = (await live.views.get("/v1/status")).json()["workers"]
    return not any(one["active_requests"] + one["prefill_tokens"] for one in workers)


async def test_a_sidecar_prefills_where_the_picker_says(tmp_path: Path) -> None:
    async with engines("prefill", "decode") as (first, second):
        sidecar = PretendSidecar(second.url)
        await sidecar.start()
        workers = [f"{first.url},role=prefill", f"{sidecar.url},role=decode"]
        async with gateway(tmp_path, workers, sidecar.url, prefill="llm-d") as (client, live):
            long = await chat(client, PROMPT, headers={CANONICAL: "127.0.0.1:1", "x-chat": "1"})
            short = await chat(client, "hello", headers={PREFILLER: "127.0.0.1:1", "x-chat": "2"})
            await until(lambda: none_booked(live))
        await sidecar.stop()

    assert [long.status_code, short.status_code] == [200, 200], long.text
    assert sidecar.prefilled == [first.url.removeprefix("http://")]
    reported = [(one.get(PREFILLER), one.get(CANONICAL)) for one in sidecar.seen if "x-chat" in one]
    where = first.url.removeprefix("http://")
    assert reported == [(where, where), (None, None)]
    assert long.headers["x-kvmesh-prefill-worker"] == "w0"
    assert long.headers["x-kvmesh-worker"] == short.headers["x-kvmesh-worker"] == "w1"
    assert short.headers["x-kvmesh-whole"] == "little to prefill"


async def test_the_picker_prefills_and_rewrites_the_body_itself(tmp_path: Path) -> None:
    async with engines("prefill", "decode") as (first, second):
        workers = [f"{first.url},role=prefill", f"{second.url},role=decode"]
        async with gateway(tmp_path, workers, second.url) as (client, live):
            long = await chat(client, PROMPT)
            short = await chat(client, "hello")
            await until(lambda: none_booked(live))

    assert [long.status_code, short.status_code] == [200, 200], json.dumps(long.text)
    assert long.headers["x-kvmesh-prefill-worker"] == "w0"
    assert long.headers["x-kvmesh-worker"] == "w1"
    assert "x-kvmesh-prefill-worker" not in short.headers


async def test_a_prefill_worker_that_is_dead_costs_an_answer_and_no_booking(tmp_path: Path) -> None:
    async with engines("prefill", "decode") as (first, second):
        sidecar = PretendSidecar(second.url)
        await sidecar.start()
        workers = [f"{first.url},role=prefill", f"{sidecar.url},role=decode"]
        async with gateway(tmp_path, workers, sidecar.url, prefill="llm-d") as (client, live):
            await first.stop()
            answer = await chat(client, PROMPT)
            await until(lambda: none_booked(live))
            after = await chat(client, "hello")
        await sidecar.stop()

    assert answer.status_code >= 500
    assert after.status_code == 200


async def test_a_worker_is_told_in_the_body_whose_cache_to_fetch_from() -> None:
    async with mockers(2) as made, contextlib.AsyncExitStack() as stack:
        workers = [f"{made[0].url},label={FETCH}", f"{made[1].url},zmq=off,label={FETCH}"]
        live = await stack.enter_async_context(picker(workers))
        body = json.dumps({"model": "mock", "prompt": PROMPT * 2, "max_tokens": 1}).encode()
        path = "/v1/completions"
        await live.client.post(made[0].url + path, content=body)
        reported = b""

        async def fetches() -> bool:
            nonlocal reported
            async with live.gateway.ask(body, {"x-kvmesh-worker-id": "w1"}, path) as asked:
                reported = asked.body
                length = asked.headers.get("content-length")
                assert length in {None, str(len(reported))}
                return reported != body

        await until(fetches)

    asked = json.loads(reported)
    transfer = asked.pop("kv_transfer_params")
    assert asked == json.loads(body)
    assert "5711" in json.dumps(transfer)
