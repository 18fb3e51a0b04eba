"""`/admin/drain` and `/admin/settings`: who may, what they change, what they show."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.router.command import RouterServer
from kvmesh.app.worker.command import Sidecar
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import NatsSettings, RouterSettings, WorkerSettings
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from tests.integration.front.test_browser_login import cookie
from tests.integration.support.live_router import (
    chat,
    free_port,
    meta_router,
    mockers,
    router,
    running,
    serving,
)
from tests.integration.support.two_tenants import Kind, tenants
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

W0 = {"worker": "w0", "draining": True}
OWN = {"sec-fetch-site": "same-origin"}
PROMPT = "what everybody asks. " * 10


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as made:
        yield made


async def told(door: httpx.AsyncClient) -> dict[str, str]:
    """Return why each worker gets nothing."""
    rows = (await door.get("/v1/overview")).json()["workers"]
    return {one["worker"]: one["why_not"] for one in rows}


async def test_a_worker_that_drains_gets_nothing_until_it_is_used_again() -> None:
    async with (
        mockers(2) as engines,
        router([one.url for one in engines]) as url,
        client(url) as door,
    ):
        answer = await door.post("/admin/drain", json=W0)
        assert (answer.status_code, answer.json()) == (202, W0)
        assert (await door.get("/admin/drain")).json() == {"draining": ["w0"]}
        assert await told(door) == {"w0": "draining", "w1": ""}
        for number in range(4):
            await chat(door, f"{number} {PROMPT}", f"drained-{number}")
        rows = (await door.get("/v1/decisions")).json()["decisions"]
        assert {one["worker"] for one in rows} == {"w1"}

        await door.post("/admin/drain", json=W0 | {"draining": False})
        assert await told(door) == {"w0": "", "w1": ""}


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        ({"json": W0 | {"worker": "w9"}}, 404, "there is no worker 'w9'"),
        ({"json": {"worker": "w0"}}, 400, "missing required field `draining`"),
        ({"json": W0 | {"hurry": 1}}, 400, "unknown field"),
        ({"content": b'{"worker": "w0", "draining": true}'}, 415, "content-type"),
        ({"json": W0, "headers": {"origin": "http://evil.example"}}, 403, "another site"),
        ({"json": W0, "headers": {"x-forwarded-for": "9.9.9.9"}}, 403, "only this machine"),
    ],
)
async def test_what_may_not_be_is_refused_in_words(
    sent: dict[str, Any], status: int, words: str
) -> None:
    async with mockers() as (one,), router([one.url]) as url, client(url) as door:
        answer = await door.post("/admin/drain", **sent)

        assert answer.status_code == status, answer.text
        assert words in answer.text
        assert await told(door) == {"w0": ""}


async def test_a_cookie_drains_for_an_operator_and_for_a_page_that_names_itself_alone(
    tmp_path: Path,
) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        ann, boss = await cookie(door, "ann"), await cookie(door, "boss")
        page = {**OWN, "origin": door.url}

        async def drain(headers: dict[str, str], **body: Any) -> int:
            sent = body or {"json": W0}
            return (await door.http.post("/admin/drain", headers=headers, **sent)).status_code

        text = {"content": b'{"worker": "w0", "draining": true}'}
        assert await drain(boss) == 401
        assert await drain({**boss, **page}, **text) == 401
        assert await drain({**boss, "sec-fetch-site": "cross-site", "origin": "http://e.x"}) == 401
        assert await drain({**ann, **page}) == 403
        assert (await door.get("boss", "/admin/drain"))["draining"] == []
        assert await drain({**boss, **page}) == 202
        assert (await door.get("boss", "/admin/drain"))["draining"] == ["w0"]
        answer = await door.send("boss", "POST", "/admin/drain", W0 | {"draining": False})
        assert answer.status_code == 202
        assert (await door.http.put("/admin/policy", headers={**boss, **page})).status_code == 401
        shown = await door.http.get("/admin/settings", headers=boss)
        assert (shown.status_code, "api-keys" in shown.text) == (200, True)
        assert (await door.http.get("/admin/settings", headers=ann)).status_code == 403


@pytest.mark.parametrize("kind", ["meta, proxy key", "meta, open routers", "meta, keys passed on"])
async def test_a_meta_router_passes_on_what_an_operator_says(kind: Kind, tmp_path: Path) -> None:
    async with tenants(kind, tmp_path, apart=False) as door:
        answer = await door.send("boss", "POST", "/admin/drain", W0)
        unknown = await door.send("boss", "POST", "/admin/drain", W0 | {"worker": "w9"})
        refused = await door.send("ann", "POST", "/admin/drain", W0)
        settings = await door.get("boss", "/admin/settings")

        assert (answer.status_code, answer.json()) == (202, W0), answer.text
        assert (unknown.status_code, refused.status_code) == (404, 403)
        assert [one["role"] for one in settings["processes"]] == ["meta-router", "router"]


async def test_a_replica_that_refuses_or_is_gone_is_named() -> None:
    async with mockers() as (one,):
        async with (
            router([one.url]) as url,
            meta_router([f"default={url}"]) as front,
            client(front) as door,
        ):
            far = await door.post("/admin/drain", json=W0, headers={"forwarded": "for=9.9.9.9"})
            assert (far.status_code, "only this machine" in far.text) == (403, True)
        async with router([one.url], path="/health") as url:
            pass
        async with meta_router([f"default={url}"], path="/health") as front, client(front) as door:
            gone = await door.post("/admin/drain", json=W0)
            shown = (await door.get("/admin/settings")).json()

    assert gone.status_code in {404, 502}, gone.text
    assert [one["role"] for one in shown["processes"]] == ["meta-router"]


async def test_a_replica_that_answers_something_else_is_not_believed() -> None:
    def answer(exchange: Exchange) -> None:
        models = exchange.request.path == "/v1/models"
        exchange.respond(200, b'{"data": [{"id": "mock"}]}' if models else b"{")

    server = HttpServer(answer)
    await server.start("127.0.0.1", 0)
    replica = f"default=http://127.0.0.1:{server.port}"
    async with meta_router([replica]) as front, client(front) as door:
        drained = await door.post("/admin/drain", json=W0)
        shown = (await door.get("/admin/settings")).json()
    await server.close()

    assert (drained.status_code, "answers 200, not 202" in drained.text) == (502, True)
    assert [one["role"] for one in shown["processes"]] == ["meta-router"]


async def test_an_admin_port_has_them_and_the_front_door_says_so() -> None:
    async with mockers() as (one,):
        port, admin, people = free_port(), free_port(), free_port()
        http = HttpSettings(http_port=port, admin_port=str(admin), dashboard_port=people)
        server = RouterServer(
            RouterSettings(kv_events=False, worker=(f"w0={one.url}",), router_id="r0", http=http)
        )
        url = f"http://127.0.0.1:{port}"
        async with serving(server.serve, url), client(url) as door:
            there = [
                await door.post(f"http://127.0.0.1:{one}/admin/drain", json=W0)
                for one in (port, admin, people)
            ]
            shown = await door.get("/admin/settings")

    assert [one.status_code for one in there] == [404, 202, 202]
    assert "is on the admin port" in there[0].text
    assert "is on the admin port" in shown.text


async def test_settings_show_what_is_in_force() -> None:
    async with mockers() as (one,), router([one.url]) as url, client(url) as door:
        await door.put("/admin/admission", json={"max_queued": 7})
        await door.put("/admin/policy", json={"formula": "lmetric", "at_once": True})
        rows = (await door.get("/admin/settings")).json()["processes"][0]["settings"]
    found = {row["name"]: row for row in rows}
    assert (found["max-queued"]["value"], found["max-queued"]["source"]) == ("7", "changed")
    assert (found["kv-cost"]["value"], found["kv-cost"]["source"]) == ("kv:lmetric", "changed")
    assert (found["bucket"]["source"], found["kv-events"]["value"]) == ("default", "off")


@pytest.mark.parametrize(("static", "kv_events"), [(False, False), (False, True), (True, False)])
async def test_all_replicas_of_a_bucket_follow(
    nats_server: NatsServer, namespace: str, *, static: bool, kv_events: bool
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    async with mockers() as (engine,), contextlib.AsyncExitStack() as stack:
        if not static:
            watched = WorkerSettings(
                engine_url=engine.url, worker_id="w0", kv_events=kv_events, nats=nats
            )
            await stack.enter_async_context(running(Sidecar(watched).serve))
        doors = []
        for name in ("r0", "r1"):
            settings = RouterSettings(
                router_id=name,
                http=HttpSettings(http_port=free_port(), drain_s=0.0),
                kv_events=kv_events,
                worker=(f"w0={engine.url}",) if static else (),
                nats=nats,
            )
            url = f"http://127.0.0.1:{settings.http.http_port}"
            await stack.enter_async_context(serving(RouterServer(settings).serve, url))
            doors.append(await stack.enter_async_context(client(url)))

        async def replicas_are(count: int) -> bool:
            shown = [(await door.get("/v1/overview")).json()["replicas"] for door in doors]
            return [len(one) for one in shown] == [count, count]

        async def all_say(why_not: str) -> bool:
            return [await told(door) for door in doors] == [{"w0": why_not}] * 2

        await until(partial(replicas_are, 2))
        for draining, why_not in ((True, "draining"), (False, "")):
            answer = await doors[0].post("/admin/drain", json=W0 | {"draining": draining})
            assert answer.status_code == 202, answer.text
            await until(partial(all_say, why_not))
