"""What an engine keeps is its maker's alone: at routers and meta-routers, over restarts."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.router.command import RouterServer
from kvmesh.app.serve import response_holders
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import TenantSettings
from kvmesh.settings.roles import MetaRouterSettings, NatsSettings, RouterSettings
from tests.integration.support.echo_engine import EchoEngine, echo_engines
from tests.integration.support.live_router import free_port, serving

pytestmark = pytest.mark.integration

ANN, BEN = {"x-kvmesh-tenant": "ann"}, {"x-kvmesh-tenant": "ben"}
FILE: dict[str, tuple[str | None, bytes | str]] = {
    "file": ("a.jsonl", b"{}"),
    "model": (None, "tiny"),
}
NOWHERE = "/v1/files/no_id"


@contextlib.asynccontextmanager
async def router(
    engines: list[EchoEngine],
    folder: Path,
    *,
    http: HttpSettings | None = None,
    apart: bool = True,
    nats_url: str = "",
    name: str = "r0",
) -> AsyncIterator[str]:
    (folder / "secret").write_text("s" * 32)
    settings = RouterSettings(
        tenant=TenantSettings(tenant_secret_file=folder / "secret" if apart else None),
        kv_events=False,
        router_id=name,
        worker=tuple(f"{one.name}={one.url}" for one in engines),
        parity_sample=0,
        nats=NatsSettings(nats_url=nats_url),
        http=http or HttpSettings(http_port=free_port()),
    )
    url = f"http://127.0.0.1:{settings.http.http_port}"
    async with serving(RouterServer(settings).serve, url):
        yield url


@contextlib.asynccontextmanager
async def makers(count: int) -> AsyncIterator[list[EchoEngine]]:
    async with echo_engines(count) as engines:
        for one in engines:
            one.makes = True
        yield engines


def asked(engines: list[EchoEngine], path: str) -> int:
    """Return how often engines were asked about a path."""
    return sum(seen == path for one in engines for _, seen in one.seen)


async def upload(client: httpx.AsyncClient, headers: dict[str, str]) -> str:
    answer = await client.post("/v1/files", files=FILE, headers=headers)
    assert answer.status_code == 200, answer.text
    return f"/v1/files/{answer.json()['id']}"


async def ids(client: httpx.AsyncClient, headers: dict[str, str]) -> set[str]:
    answer = (await client.get("/v1/files", headers=headers)).json()
    return {f"/v1/files/{one['id']}" for one in answer["data"]}


async def statuses(client: httpx.AsyncClient, path: str, headers: dict[str, str]) -> list[int]:
    found = [await client.get(path, headers=headers) for path in (path, f"{path}/content")]
    found.append(await client.delete(path, headers=headers))
    return [one.status_code for one in found]


@pytest.mark.parametrize("door", ["router", "meta-router"])
async def test_a_file_is_its_tenants_alone(door: str, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines = await stack.enter_async_context(makers(3))
        parts = [engines] if door == "router" else [engines[:1], engines[1:]]
        urls = [await stack.enter_async_context(router(part, tmp_path)) for part in parts]
        url = urls[0]
        if door == "meta-router":
            http = HttpSettings(http_port=free_port())
            tenant = TenantSettings(tenant_secret_file=tmp_path / "secret")
            replica = tuple(f"b{number}={one}" for number, one in enumerate(urls))
            meta = MetaServer(MetaRouterSettings(replica=replica, http=http, tenant=tenant))
            url = f"http://127.0.0.1:{http.http_port}"
            await stack.enter_async_context(serving(meta.serve, url))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        anns = {await upload(client, ANN) for _ in range(4)}
        bens = {await upload(client, BEN) for _ in range(2)}
        lists = [await ids(client, headers) for headers in (ANN, BEN, {})]
        shown = (await client.get("/v1/files", headers=ANN)).json()
        others = {path: await statuses(client, path, BEN) for path in (*anns, NOWHERE)}
        texts = [(await client.get(path, headers=BEN)).text for path in (*anns, NOWHERE)]
        asked_for = sum(asked(engines, path) for path in (*anns, NOWHERE))
        own = [await statuses(client, path, ANN) for path in anns]
        all_seen = [(await client.get(path)).status_code for path in (*anns, *bens, NOWHERE)]

    assert lists == [anns, bens, anns | bens]
    assert set(shown) == {"object", "data"}
    assert set(map(tuple, others.values())) == {(404, 404, 404)}
    assert all(path in text for path, text in zip((*anns, NOWHERE), texts, strict=True))
    assert asked_for == 0
    assert own == [[200, 200, 200]] * 4
    assert all_seen == [200] * 6 + [404]


async def test_what_cannot_be_salted_is_refused_and_no_method_passes_an_owner_by(
    tmp_path: Path,
) -> None:
    async with (
        makers(2) as engines,
        router(engines, tmp_path) as url,
        httpx.AsyncClient(base_url=url, headers=ANN) as client,
    ):
        path = await upload(client, ANN)
        batch = await client.post("/v1/batches", json={"input_file_id": path[10:]})
        put = await client.put(path, headers=BEN)
        strange = await client.get("/v1/files/e0~id0")

    assert (batch.status_code, put.status_code, strange.status_code) == (403, 405, 404)
    assert "salt" in batch.text
    assert "takes DELETE or GET or HEAD, not 'PUT'" in put.text


async def test_keys_of_two_tenants_that_are_not_kept_apart_own_ids_too(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    ann, ben, boss = (
        {"authorization": f"Bearer {add_key(ApiKeyOptions(name, file=keys, tenant=name))}"}
        for name in ("ann", "ben", "boss")
    )
    text = keys.read_text().rpartition("roles")
    keys.write_text(f'{text[0]}roles = ["operate"]\n')
    http = HttpSettings(http_port=free_port(), api_keys=keys)
    async with (
        makers(2) as engines,
        router(engines, tmp_path, http=http, apart=False) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        path = await upload(client, ann)
        name = path.removeprefix("/v1/files/")
        batches = [
            (await client.post("/v1/batches", json=body, headers=one)).status_code
            for body in ({"input_file_id": name}, {"input_file_id": 5})
            for one in (ann, ben)
        ]
        made = (await client.post("/v1/responses", json=response(), headers=ann)).json()
        more = [
            await client.post("/v1/responses", json=response(made["id"]), headers=one)
            for one in (ann, ann, ann, ben)
        ]
        seen = [
            (await client.get(f"/v1/responses/{made['id']}", headers=one)).status_code
            for one in (ann, ben, boss)
        ]

    assert batches == [200, 404, 404, 404]
    assert [one.status_code for one in more] == [200, 200, 200, 404]
    assert {one.json()["by"] for one in more[:3]} == {made["by"]}
    assert seen == [200, 404, 200]


def response(before: str = "") -> dict[str, object]:
    body: dict[str, object] = {"model": "tiny", "input": "x", "background": True}
    return body | ({"previous_response_id": before} if before else {})


async def test_replicas_share_owners_at_once_and_a_restarted_one_has_them(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    nats = nats_server.url
    async with contextlib.AsyncExitStack() as stack:
        engines = await stack.enter_async_context(makers(3))
        one = router(engines, tmp_path, nats_url=nats, name="r1")
        two = router(engines, tmp_path, nats_url=nats, name="r2")
        clients = [httpx.AsyncClient(base_url=await stack.enter_async_context(two), timeout=30)]
        async with one as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
            found, path = [], ""
            for _ in range(5):
                path = await upload(client, ANN)
                found.append((await clients[0].get(path, headers=ANN)).status_code)
                found.append((await clients[0].get(path, headers=BEN)).status_code)
            before = await ids(client, ANN)
        again = router(engines, tmp_path, nats_url=nats, name="r1")
        url = await stack.enter_async_context(again)
        clients.append(httpx.AsyncClient(base_url=url, timeout=30))
        owned = [(await clients[1].get(path, headers=one)).status_code for one in (ANN, BEN)]
        after = [await ids(clients[1], headers) for headers in (ANN, BEN)]
        for client in clients:
            await client.aclose()

    assert found == [200, 404] * 5
    assert (owned, after) == ([200, 404], [before, set()])
    assert len(before) == 5


async def test_what_an_engine_forgot_is_not_there_and_who_is_not_known_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        makers(2) as engines,
        router(engines, tmp_path) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        path = await upload(client, ANN)
        for one in engines:
            one.kept.clear()
        forgotten = await client.get(path, headers=ANN)
        engines[0].kept = {NOWHERE}
        found = await client.get(NOWHERE)
        gone = await client.get("/v1/files/a_id8")
        before = asked(engines, "/v1/files/b_id7")
        monkeypatch.setattr(response_holders, "MOST_SEARCHES", 0)
        busy = await client.get("/v1/files/b_id7")
        monkeypatch.undo()
        engines[0].answers["/v1/files/c_id6"] = engines[1].answers["/v1/files/c_id6"] = b"x" * (
            5 << 20
        )
        unknown = await client.get("/v1/files/c_id6")

    assert [one.status_code for one in (forgotten, found, gone, busy)] == [404, 200, 404, 404]
    assert "x-kvmesh-worker" not in gone.headers
    assert (before, asked(engines, "/v1/files/b_id7")) == (0, 1)
    assert len(unknown.content) == 5 << 20
