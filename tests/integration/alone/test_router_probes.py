"""A router alone looks at its engines: one that hangs must not cost the others their place."""

import asyncio
from typing import Any

import httpx
import pytest

from kvmesh.app.members.engine_load import read_loads
from kvmesh.app.mesh import static_workers
from kvmesh.tasks import TASK
from kvmesh.transport.http.upstream.client import UpstreamPool
from tests.conftest import Contexts, Eventually
from tests.integration.http.peers import Turn, Upstream, answer, chunked
from tests.integration.support.live_router import chat, client_of, router
from tests.integration.support.waiting import seen, until

pytestmark = pytest.mark.integration
MODELS = b'{"object":"list","data":[{"id":"mock","object":"model"}]}'
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":"stop"}]}\n\n'


async def serve(turn: Turn) -> None:
    """Answer as an engine does: with its models, or with a chat of one token."""
    if turn.head.startswith(b"GET"):
        turn.send(answer(MODELS, b"Content-Type: application/json"))
    else:
        turn.send(chunked(CHUNK, b"data: [DONE]\n\n"))


async def test_an_engine_that_hangs_does_not_keep_the_router_from_looking_at_the_others(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(static_workers, "PROBE_S", 0.05)
    hanging = asyncio.Event()

    async def serve_once(turn: Turn) -> None:
        if hanging.is_set():
            await turn.gone()
        else:
            await serve(turn)

    async with (
        Upstream.running(serve) as good,
        Upstream.running(serve_once) as hung,
        client_of(router([good.origin, hung.origin])) as client,
    ):
        hanging.set()
        await eventually(lambda: any(b"/v1/models" in turn.head for turn in hung.turns[-1:]))
        uses_caches, at_hung = len(good.turns), len(hung.turns)

        # In turn with the other, which is waited for 2 s each time, it would be as often there.
        await eventually(lambda: len(good.turns) > uses_caches + 20)

        assert len(hung.turns) < at_hung + 10
        assert (await chat(client, "hello", worker_id="w0")).status_code == 200


async def test_when_all_engines_are_too_busy_for_probes_requests_go_there_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(static_workers, "PROBE_S", 0.05)
    busy = asyncio.Event()

    async def script(turn: Turn) -> None:
        if not turn.head.startswith(b"GET"):
            headers = (b"Content-Type: application/json", b"X-KVMesh-Worker: impostor")
            turn.send(answer(b"{}", *headers))
        elif busy.is_set():
            await turn.gone()
        else:
            turn.send(answer(MODELS, b"Content-Type: application/json"))

    async with (
        Upstream.running(script) as engine,
        client_of(router([engine.origin])) as client,
    ):
        reset_idle = await calmly(client)
        busy.set()
        await seen(client, "/v1/status", lambda status: status["mesh"].get("panic"))
        served = await chat(client, "hello")
        ready = await client.get("/ready")
        metrics = (await client.get("/metrics")).text
        busy.clear()
        await calmly(client)

    assert reset_idle.headers.get_list("x-kvmesh-worker") == ["w0"]
    assert (served.status_code, served.headers["x-kvmesh-panic"]) == (200, "1")
    assert "panic" in " ".join(ready.json()["warnings"])
    assert "kvmesh_panic 1.0" in metrics


async def test_a_route_asked_for_while_every_engine_is_down_says_so_and_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(static_workers, "PROBE_S", 0.05)
    body = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}
    async with (
        Upstream.running(serve) as engine,
        client_of(router([engine.origin])) as client,
    ):
        up = await client.post("/v1/route", json=body)
        await engine.close()

        async def refused() -> httpx.Response | None:
            answer = await client.post("/v1/route", json=body)
            return None if answer.status_code == 200 else answer

        down = await until(refused)
        sent = await client.post("/v1/chat/completions", json=body)
        workers = (await client.get("/v1/status")).json()["workers"]

    assert up.json()["worker"] == "w0"
    assert (down.status_code, sent.status_code) == (503, 503)
    assert down.json()["error"]["code"] == sent.json()["error"]["code"] == "no_worker"
    assert [one["worker"] for one in workers if not one["usable"]] == ["w0"]
    assert (
        "no worker may take it (w0: its engine is down: nothing answers at its URL)"
        in down.json()["error"]["message"]
    )


async def calmly(client: httpx.AsyncClient) -> httpx.Response:
    """Ask until there is no panic: on a machine that stands still for 2 s there may be some."""

    async def calm() -> httpx.Response | None:
        answer = await chat(client, "hello")
        return None if "x-kvmesh-panic" in answer.headers else answer

    answer: httpx.Response = await until(calm)
    return answer


async def test_a_fault_in_looking_at_one_engine_does_not_end_the_looks_at_the_others(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually, reported: Contexts
) -> None:
    monkeypatch.setattr(static_workers, "PROBE_S", 0.05)

    async def break_on_odd(pool: UpstreamPool, url: str, *facts: Any) -> Any:
        if url == odd.origin:
            raise KeyError(url)
        return await read_loads(pool, url, *facts)

    async with (
        Upstream.running(serve) as good,
        Upstream.running(serve) as odd,
        client_of(router([good.origin, odd.origin])) as client,
    ):
        monkeypatch.setattr(static_workers, "read_loads", break_on_odd)
        await eventually(lambda: len(reported) > 2)
        uses_caches = len(good.turns)
        await eventually(lambda: len(good.turns) > uses_caches + 20)
        answered = (await chat(client, "hello", worker_id="w0")).status_code
        monkeypatch.undo()

    assert answered == 200
    assert {one[TASK] for one in reported} == {"probe workers"}
