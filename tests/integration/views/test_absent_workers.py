"""A worker that was configured and never answered: everybody who asks is told, and why."""

import pytest

from kvmesh.actors.static_registry import DOWN
from tests.integration.support.failing_engine import FailingEngine, failing_engines
from tests.integration.support.live_router import client_of, free_port, router
from tests.integration.support.waiting import seen

pytestmark = pytest.mark.integration


async def test_a_dead_url_is_named_by_every_view_until_its_engine_answers() -> None:
    port = free_port()
    async with (
        failing_engines(1) as (well,),
        client_of(router([well.url, f"http://127.0.0.1:{port}"])) as client,
    ):
        ready = await client.get("/ready")
        overview = await seen(client, "/v1/overview", lambda page: page["problems"])
        metrics = (await client.get("/metrics")).text
        prompt = {"model": "m", "prompt": "hello"}
        served = await client.post("/v1/completions", json=prompt)
        late = FailingEngine()
        await late.server.start("127.0.0.1", port)
        await seen(client, "/ready", lambda page: "warnings" not in page)
        rows = (await client.get("/v1/overview")).json()["workers"]
        await late.server.close()

    assert ready.status_code == 200
    assert f"w1: gets no requests: {DOWN}" in ready.json()["warnings"]
    row = next(one for one in overview["workers"] if one["worker"] == "w1")
    assert (row["usable"], row["why_not"]) == (False, DOWN)
    found = [one for one in overview["problems"] if one["who"] == "w1"]
    assert [(one["kind"], one["why"]) for one in found] == [("not-ready", DOWN)]
    assert 'kvmesh_worker_usable{worker="w1"} 0.0' in metrics
    assert served.headers["x-kvmesh-worker"] == "w0"
    assert [one["usable"] for one in rows] == [True, True]


async def test_where_no_engine_ever_answered_the_router_says_which() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    async with client_of(router([dead, dead], path="/health")) as client:
        answer = await seen(client, "/ready", lambda page: page.get("warnings"))
        asked = await client.post("/v1/completions", json={"model": "m", "prompt": "x"})

    assert f"w0, w1: gets no requests: {DOWN}" in answer["warnings"]
    assert asked.status_code == 503
    assert DOWN in asked.json()["error"]["message"]
