"""What operators do to engines through routers and meta-routers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from kvmesh.app.meta.command import MetaServer
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.settings.roles import MetaRouterSettings
from tests.integration.support.live_router import (
    COMPLETION,
    free_port,
    router,
    serving,
)

pytestmark = pytest.mark.integration
ASK = {"model": "mock", "prompt": "word " * 200, "max_tokens": 1}


class Engine:
    """An engine of which operators' paths are known."""

    def __init__(self, *, status: int = 200, tells: bool = True) -> None:
        self.status, self.tells = status, tells
        self.models = ["mock"]
        self.sleeps = False
        self.asked: list[tuple[str, bytes]] = []
        self.served = 0
        self.done = b'{"done": true}'
        self.pages: dict[str, bytes] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _ = head.split(" ", 2)
                length = head.lower().partition("content-length: ")[2].partition("\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                status, answer = self.answer(method, target, body)
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (
                    status, len(answer), answer))  # fmt: skip
        writer.close()

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        path = target.partition("?")[0]
        if path == "/v1/models":
            found = [
                {"id": one, "parent": None if one == "mock" else "mock"} for one in self.models
            ]
            return 200, msgspec.json.encode({"data": found})
        if path in self.pages:
            return 200, self.pages[path]
        if path == "/is_sleeping" and self.tells:
            return 200, msgspec.json.encode({"is_sleeping": self.sleeps})
        if path == "/v1/completions":
            self.served += 1
            return 200, COMPLETION
        if method == "GET":
            return (200, b"") if path == "/health" else (404, b"")
        self.asked.append((target, body))
        if self.status == 200:
            self.change(path, body)
        return self.status, self.done if self.status == 200 else b"no such thing"

    def change(self, path: str, body: bytes) -> None:
        if "lora" in path:
            name = msgspec.json.decode(body)["lora_name"]
            (self.models.append if "/load" in path else self.models.remove)(name)
        elif path in {"/sleep", "/pause"}:
            self.sleeps = True
        elif path in {"/wake_up", "/resume"}:
            self.sleeps = False


@contextlib.asynccontextmanager
async def engines(*wanted: Engine) -> AsyncIterator[list[str]]:
    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for one in wanted:
            server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield urls


@contextlib.asynccontextmanager
async def asked(*wanted: Engine, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        engines(*wanted) as urls,
        router(urls, **settings) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        yield client


async def worker_when(client: httpx.AsyncClient, *, usable: bool) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            row: dict[str, Any] = (await client.get("/v1/status")).json()["workers"][0]
            if row["usable"] is usable:
                return row
            await asyncio.sleep(0.05)


async def test_an_engine_that_is_woken_behind_the_router_s_back_is_used_again() -> None:
    one = Engine()
    async with asked(one) as client:
        await client.post("/sleep")
        await worker_when(client, usable=False)
        one.sleeps = False

        assert (await worker_when(client, usable=True))["why_not"] is None


async def test_all_engines_are_asked_and_each_answer_is_told() -> None:
    good, bad = Engine(), Engine(status=400)
    async with asked(good, bad) as client:
        some = await client.post("/reset_mm_cache?a=b", json={"x": 1})
        one = await client.post("/reset_mm_cache?worker=w0")
        none = await client.post("/reset_mm_cache?worker=w1")
        nobody = await client.post("/reset_mm_cache?worker=w9")
        model = await client.post("/reset_mm_cache?model=other")
        rpc = await client.post("/collective_rpc", json={})
        got = await client.get("/reset_mm_cache")

    told = {"w0": {"status": 200, "body": {"done": True}},
            "w1": {"status": 400, "body": "no such thing"}}  # fmt: skip
    assert (some.status_code, some.json()) == (207, {"workers": told})
    assert (one.status_code, one.json()) == (200, {"workers": {"w0": told["w0"]}})
    assert (none.status_code, none.json()) == (400, {"workers": {"w1": told["w1"]}})
    assert [one.status_code for one in (nobody, model, rpc, got)] == [404, 404, 403, 405]
    assert good.asked == [("/reset_mm_cache?a=b", b'{"x":1}'), ("/reset_mm_cache", b"")]


async def test_an_engine_whose_cache_was_in_use_is_told_as_409() -> None:
    good, busy = Engine(), Engine()
    busy.done = b'{"success": false}'
    async with asked(good, busy) as client:
        some = await client.post("/reset_prefix_cache?reset_running_requests=false")
        other = await client.post("/reset_mm_cache")

    told = {name: one["status"] for name, one in some.json()["workers"].items()}
    assert (some.status_code, told) == (207, {"w0": 200, "w1": 409})
    assert other.status_code == 200


async def test_an_engine_that_is_gone_is_told_as_502() -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    async with (
        engines(Engine()) as (url,),
        router([url, gone]) as front,
        httpx.AsyncClient(base_url=front) as client,
    ):
        found = await client.post("/start_profile?worker=w1")

    assert found.status_code == 502
    assert found.json()["workers"]["w1"]["status"] == 502


@pytest.mark.parametrize(("rests", "wakes"), [("/sleep", "/wake_up"), ("/pause", "/resume")])
async def test_an_engine_that_sleeps_gets_nothing_until_it_wakes(rests: str, wakes: str) -> None:
    sleeper, other = Engine(), Engine()
    async with engines(sleeper, other) as urls:
        async with router(urls) as front, httpx.AsyncClient(base_url=front) as client:
            assert (await client.post(f"{rests}?worker=w0")).status_code == 200
            for _ in range(6):
                assert (await client.post("/v1/completions", json=ASK)).status_code == 200
            asleep = (sleeper.served, other.served)
            await client.post(f"{wakes}?worker=w0&tags=weights")
            partly = (await client.get("/v1/status")).json()["workers"][0]["usable"]
            sleeper.sleeps = True
        async with router(urls) as front, httpx.AsyncClient(base_url=front) as client:
            after_restart = await worker_when(client, usable=False)
            await client.post(f"{wakes}?worker=w0")
            awake = (await client.get("/v1/status")).json()["workers"][0]

    assert asleep == (0, 6)
    assert not partly
    assert (after_restart["usable"], awake["usable"]) == (False, True)
    assert "wake_up" in after_restart["why_not"]


async def test_an_engine_that_would_not_sleep_goes_on() -> None:
    async with asked(Engine(status=500, tells=False)) as client:
        assert (await client.post("/sleep")).status_code == 500
        assert (await client.get("/v1/status")).json()["workers"][0]["usable"]


async def test_an_adapter_is_served_by_all_when_its_loading_is_answered() -> None:
    first, second = Engine(), Engine()
    async with asked(first, second) as client:
        body = {"lora_name": "lora", "lora_path": "/x"}
        loaded = await client.post("/v1/load_lora_adapter", json=body)
        models = {one["id"] for one in (await client.get("/v1/models")).json()["data"]}
        served = await client.post("/v1/completions", json=ASK | {"model": "lora"})
        await client.post("/v1/unload_lora_adapter", json={"lora_name": "lora"})
        gone = await client.post("/v1/completions", json=ASK | {"model": "lora"})

    assert loaded.status_code == 200
    assert models == {"mock", "lora"}
    assert served.status_code == 200
    assert gone.status_code == 404


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/update_weights_from_disk"])
async def test_nothing_cached_before_a_reset_or_other_weights_is_believed(path: str) -> None:
    one = Engine()
    async with asked(one) as client:
        await client.post("/v1/completions", json=ASK)
        warm = await client.post("/v1/completions", json=ASK)
        await client.post(path, json={})
        cold = await client.post("/v1/completions", json=ASK)

    overlaps = [int(found.headers["x-kvmesh-overlap-blocks"]) for found in (warm, cold)]
    assert overlaps[0] > 0
    assert overlaps[1] == 0
    assert ("/reset_prefix_cache", b"") in one.asked or path == "/reset_prefix_cache"


async def test_nothing_cached_before_an_engine_told_of_other_weights_is_believed() -> None:
    one = Engine()
    one.pages = {"/server_info": b"{}", "/model_info": b'{"weight_version": "1"}'}
    async with asked(one) as client:
        await client.post("/v1/completions", json=ASK)
        warm = await client.post("/v1/completions", json=ASK)
        one.pages["/model_info"] = b'{"weight_version": "2"}'
        async with asyncio.timeout(20):
            while True:
                if not (await client.post("/v1/route", json=ASK)).json()["overlap_blocks"]:
                    break
                await asyncio.sleep(0.05)

    assert int(warm.headers["x-kvmesh-overlap-blocks"]) > 0


async def test_through_a_meta_router_each_engine_is_asked_once_and_all_replicas_follow() -> None:
    shared, own = Engine(), Engine(status=400)
    async with engines(shared, own) as urls, contextlib.AsyncExitStack() as stack:
        fronts = [
            await stack.enter_async_context(router(urls[: n + 1], router_id=f"r{n}"))
            for n in range(2)
        ]
        settings = MetaRouterSettings(
            replica=tuple(f"default={url}" for url in fronts),
            http=HttpSettings(http_port=free_port(), drain_s=1.0),
        )
        meta = f"http://127.0.0.1:{settings.http.http_port}"
        await stack.enter_async_context(serving(MetaServer(settings).serve, meta))
        async with httpx.AsyncClient(base_url=meta, timeout=30) as client:
            found = await client.post("/sleep")
            nobody = await client.post("/sleep?worker=w9")
            rpc = await client.post("/collective_rpc")
        usable = []
        for front in fronts:
            async with httpx.AsyncClient(base_url=front) as client:
                rows = (await client.get("/v1/status")).json()["workers"]
                usable.append([one["usable"] for one in rows])

    assert found.status_code == 207
    assert {name: one["status"] for name, one in found.json()["workers"].items()} == {
        "w0": 200,
        "w1": 400,
    }
    assert [len(shared.asked), len(own.asked)] == [1, 1]
    assert usable == [[False], [False, True]]
    assert (nobody.status_code, rpc.status_code) == (404, 403)


async def test_who_may_not_change_engines_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    one = Engine()
    async with asked(one, admission=AdmissionSettings(admin_token_file=token)) as client:
        refused = await client.post("/sleep")
        allowed = await client.post("/start_profile", headers={"authorization": "Bearer secret"})
    async with asked(one) as client:
        remote = await client.post("/sleep", headers={"x-forwarded-for": "192.0.2.7"})

    assert [found.status_code for found in (refused, allowed, remote)] == [401, 200, 403]
    assert one.asked == [("/start_profile", b"")]
