"""One picker without a mesh: its two ports, its health, its end."""

import asyncio
from pathlib import Path

import grpc
import msgspec
import pytest

from kvmesh.settings.http import HttpSettings
from kvmesh_lab.mocker.command import Mocker
from tests.integration.picker import asking
from tests.integration.picker.asking import (
    NOT_SERVING,
    SERVING,
    WATCH,
    Gateway,
    RefusedError,
    chat,
    serve,
)
from tests.integration.picker.fleet import PickerFleet, PickerProcess, running
from tests.integration.picker.live_picker import OPTIONS, LivePicker, engines, picker
from tests.integration.support.live_router import free_port
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

TEXT = "some words that are known by now " * 40


@pytest.mark.parametrize("kv_events", [True, False])
async def test_the_second_chat_of_a_prefix_goes_to_the_worker_that_holds_it(
    *, kv_events: bool
) -> None:
    texts = [f"{number}: {TEXT}" for number in range(6)]
    async with engines(2) as urls, picker(urls, kv_events=kv_events) as live:
        first = [(await serve(live.gateway, live.client, chat(text), {}))[1] for text in texts]
        second = [
            (await serve(live.gateway, live.client, chat(f"{text} and on"), {}))[1]
            for text in texts
        ]
        explained = await live.views.post("/v1/route", content=chat(texts[0]))

    went = [one["x-kvmesh-worker"] for one in first]
    assert {*went} == {"w0", "w1"}
    assert [one["x-kvmesh-worker"] for one in second] == went
    assert explained.json()["worker"] == went[0]


async def test_the_port_of_views_takes_no_requests_and_names_the_remedy() -> None:
    async with engines(1) as urls, picker(urls) as live:
        await serve(live.gateway, live.client, chat("hi"), {})
        posted = [
            await live.views.post(path, content=chat("hi"))
            for path in ("/v1/chat/completions", "/v1/embeddings", "/tokenize", "/v1/other")
        ]
        models = await live.views.get("/v1/models")
        figures = (await live.views.get("/metrics")).text
        overview = (await live.views.get("/v1/overview")).json()

    for answer in posted:
        assert answer.status_code == 404
        assert "Send requests to the gateway" in answer.json()["error"]["message"]
        assert f"at gRPC port {live.port}" in answer.json()["error"]["message"]
    assert [one["id"] for one in models.json()["data"]] == ["mock"]
    assert 'kvmesh_picks_total{told="picked"} 1.0' in figures
    assert 'kvmesh_picks_followed_total{until="to the end"} 1.0' in figures
    assert "kvmesh_pick_seconds_count 1.0" in figures
    assert 'kvmesh_pick_modes_total{request="full-duplex",response="full-duplex"} 1.0' in figures
    assert "kvmesh_gateway_connections 1.0" in figures
    assert (overview["role"], overview["replicas"][0]["role"]) == ("picker", "picker")


async def test_it_serves_without_a_worker_and_says_when_to_come_again() -> None:
    engine = Mocker(msgspec.structs.replace(OPTIONS, port=free_port()))
    async with picker([f"http://127.0.0.1:{engine.options.port}"], path="/health") as live:
        assert await live.gateway.is_serving("liveness")
        await until(live.gateway.is_serving)
        with pytest.raises(RefusedError) as refused:
            await serve(live.gateway, live.client, chat("hi"), {})
        assert refused.value.status == 503
        assert refused.value.headers["retry-after"]
        assert (await live.views.get("/ready")).status_code == 503
        assert (await live.views.get("/ready?workers=any")).is_success

        await engine.start()
        await until(lambda: is_ready(live))

        assert await live.gateway.is_serving()
        assert await serve(live.gateway, live.client, chat("hi"), {})
    await engine.stop()


async def test_a_picker_that_ends_says_so_first_and_sees_open_requests_through(
    tmp_path: Path,
) -> None:
    fleet = PickerFleet(tmp_path, None, engines=1)
    workers = [word for one in fleet.engines() for word in ("--worker", one)]
    picker = fleet.add_picker(*workers, "--notice-s", "1", "--drain-s", "20")
    async with running(fleet):
        gateway = fleet.gateway(picker)
        body = chat("a long answer ", tokens=6000)
        long = asyncio.create_task(serve(gateway, fleet.client, body, {}))
        watch = gateway.channel.unary_stream(WATCH, bytes, bytes)(b"")
        assert await watch.read() == SERVING
        await until(lambda: is_followed(fleet, picker))
        picker.process.terminate()
        await until(lambda: is_not_serving(gateway))
        late, _ = await serve(gateway, fleet.client, chat("in the time of notice"), {})
        assert b"[DONE]" in late
        assert not long.done()
        answer, _ = await long
        assert b"[DONE]" in answer
        await until(lambda: asyncio.sleep(0, not picker.process.alive))
        assert picker.process.returncode == 0
        assert await watch.read() == NOT_SERVING
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE


async def is_ready(live: LivePicker) -> bool:
    return (await live.views.get("/ready")).is_success


async def is_not_serving(gateway: Gateway) -> bool:
    return not await gateway.is_serving()


async def is_followed(fleet: PickerFleet, picker: PickerProcess) -> bool:
    return bool((await fleet.status(picker.url))["requests"]["requests"])


async def test_a_body_in_one_message_may_be_as_large_as_any_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "PIECE", 16 << 20)
    most = 6 << 20
    http = HttpSettings(http_port=free_port(), max_body_bytes=most)
    async with engines(1) as urls, picker(urls, http=http) as live:
        async with live.gateway.ask(chat("x" * (most - 4096)), {}) as asked:
            echoed = len(asked.body)
        with pytest.raises(RefusedError) as refused:
            async with live.gateway.ask(chat("x" * most), {}):
                pass

    assert most - 4096 < echoed <= most
    assert refused.value.status == 413
