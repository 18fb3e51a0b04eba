"""What becomes of every path of the table, at routers and meta-routers with echo engines behind."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.front import fleet_pages
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.router.command import RouterServer
from kvmesh.core.admission.paths import ROWS, PathRow
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import TenantSettings
from kvmesh.settings.roles import MetaRouterSettings, RouterSettings
from tests.integration.support.echo_engine import EchoEngine, echo_engines
from tests.integration.support.live_router import free_port, serving

pytestmark = pytest.mark.integration

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/embeddings": {"input": "x"},
}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
FILE = ("a.wav", b"RIFF" * 60_000)
DOORS = ["router", "meta-router"]


@contextlib.asynccontextmanager
async def fleet(door: str) -> AsyncIterator[tuple[httpx.AsyncClient, list[EchoEngine]]]:
    """Serve three engines behind a router, or behind a meta-router and a router of each bucket."""
    async with contextlib.AsyncExitStack() as stack:
        engines = await stack.enter_async_context(echo_engines(3))
        parts = [engines] if door == "router" else [engines[:1], engines[1:]]
        urls = [await stack.enter_async_context(router(part)) for part in parts]
        url = urls[0]
        if door == "meta-router":
            port = free_port()
            settings = MetaRouterSettings(
                replica=tuple(f"b{number}={one}" for number, one in enumerate(urls)),
                http=HttpSettings(http_port=port),
            )
            meta = serving(MetaServer(settings).serve, f"http://127.0.0.1:{port}")
            url = await stack.enter_async_context(meta)
        client = httpx.AsyncClient(base_url=url, timeout=30)
        yield await stack.enter_async_context(client), engines


@contextlib.asynccontextmanager
async def router(
    engines: list[EchoEngine], tenant: TenantSettings | None = None
) -> AsyncIterator[str]:
    port = free_port()
    settings = RouterSettings(
        tenant=tenant or TenantSettings(),
        kv_events=False,
        worker=tuple(f"{one.name}={one.url}" for one in engines),
        parity_sample=0,
        http=HttpSettings(http_port=port),
    )
    async with serving(RouterServer(settings).serve, f"http://127.0.0.1:{port}") as url:
        yield url


def asked_of(engines: list[EchoEngine], path: str) -> list[str]:
    return [one.name for one in engines for _, seen in one.seen if seen == path]


@pytest.mark.parametrize("door", DOORS)
async def test_every_row_of_the_table_is_answered_by_its_owner(door: str) -> None:
    async with fleet(door) as (client, engines):
        for row in ROWS:
            for method in sorted(row.methods):
                await hold(client, engines, row, method, engines[: 1 if door == "router" else 3])


async def hold(
    client: httpx.AsyncClient,
    engines: list[EchoEngine],
    row: PathRow,
    method: str,
    keep: list[EchoEngine],
) -> None:
    path = row.path.replace("{}", "an_id")
    for one in engines:
        one.seen.clear()
        one.kept = {row.path.partition("{}")[0]} if one in keep else set()
    body = CHAT | BODIES.get(path, {}) if method in {"POST", "PUT"} else None
    answer = await client.request(method, path, json=body)
    told = (row, method, answer.status_code, answer.text)
    names = asked_of(engines, path)
    if row.status:
        assert answer.status_code == row.status, told
        assert method == "HEAD" or row.why in answer.json()["error"]["message"], told
        assert names == [], told
        return
    if row.owner == "websocket" and method == "GET":
        assert (answer.status_code, names) == (426, []), told
        return
    if row.owner == "router":
        router = {"GET": 200, "HEAD": 200, "POST": 400, "DELETE": 404}
        status = 404 if path == "/v1/models/an_id" else router[method]
        if path.startswith("/workers") and len(keep) > 1:
            status = 501
        assert answer.status_code == status, told
        assert names == [] or path in {"/v1/models", "/health", "/metrics"}, told
        return
    assert answer.status_code == 200, told
    if row.owner == "operate":
        assert set(names) == set(answer.json()["workers"]) == {"e0", "e1", "e2"}, told
    elif row.owner in {"fleet", "lists"}:
        assert set(names) == {"e0", "e1", "e2"}, told
        if method == "GET":
            workers = answer.json()["workers"]
            assert {name: one["body"]["by"] for name, one in workers.items()} == {
                "e0": "e0",
                "e1": "e1",
                "e2": "e2",
            }
            assert answer.json()["same"] == 1
    elif method != "HEAD":
        by = answer.json()["by"]
        assert by in names, told
        assert row.owner != "home" or by in {one.name for one in keep}, told


async def test_a_tenant_that_is_kept_apart_sees_no_other_tenants_lists(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    tenant = TenantSettings(tenant_secret_file=secret)
    async with echo_engines(2) as engines, router(engines, tenant) as url:
        client = httpx.AsyncClient(base_url=url, headers={"x-kvmesh-tenant": "one"})
        async with client, httpx.AsyncClient(base_url=url) as operator:
            paths = ("/v1/files", "/slots", "/workers", "/version")
            seen = [(await client.get(path)).status_code for path in paths]
            all_seen = [(await operator.get(path)).status_code for path in paths]

    assert (seen, all_seen) == ([200, 403, 403, 200], [200] * 4)


@pytest.mark.parametrize("door", DOORS)
async def test_a_path_without_a_row_passes_below_v1_alone(door: str) -> None:
    async with fleet(door) as (client, _):
        assert (await client.post("/v1/of/tomorrow", json=CHAT)).status_code == 200
        assert (await client.post("/of/tomorrow", json=CHAT)).status_code == 404


@pytest.mark.parametrize("door", DOORS)
async def test_a_model_that_a_form_or_a_query_names_is_404_where_none_serves_it(door: str) -> None:
    path = "/v1/audio/transcriptions"
    async with fleet(door) as (client, _):
        statuses = [
            (await client.post(path, files={"file": FILE, "model": (None, name)})).status_code
            for name in ("tiny", "none")
        ]
        first = await client.post(path, files={"model": (None, "none"), "file": FILE})
        query = await client.post("/v1/audio/speech?model=none", content=b"")

    assert statuses == [200, 404]
    assert (first.status_code, query.status_code) == (404, 404)
    assert first.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("name", ["/v1/files", "/v1/batches", "/v1/conversations"])
async def test_what_one_engine_made_is_looked_up_there(name: str) -> None:
    async with fleet("router") as (client, engines):
        engines[2].kept = {f"{name}/an_id"}
        found = {(await client.get(f"{name}/an_id")).json()["by"] for _ in range(4)}
        missing = await client.get(f"{name}/other_id")
        asked = asked_of(engines, f"{name}/an_id")

    assert (found, missing.status_code) == ({"e2"}, 404)
    assert (asked.count("e0"), asked.count("e1")) == (1, 1)


async def test_a_batch_goes_to_the_engine_that_keeps_its_file() -> None:
    async with fleet("router") as (client, engines):
        engines[1].kept = {"/v1/files/an_id"}
        body = {"input_file_id": "an_id", "endpoint": "/v1/completions"}
        found = {(await client.post("/v1/batches", json=body)).json()["by"] for _ in range(4)}

    assert found == {"e1"}


@pytest.mark.parametrize("door", DOORS)
async def test_lists_of_all_engines_are_put_together(door: str) -> None:
    async with fleet(door) as (client, engines):
        for one in engines:
            listed = f'{{"object": "list", "data": [{{"id": "f-{one.name}"}}]}}'
            one.answers["/v1/files"] = listed.encode()
        answer = (await client.get("/v1/files?limit=9")).json()

    assert answer["object"] == "list"
    assert [one["id"] for one in answer["data"]] == ["f-e0", "f-e1", "f-e2"]


async def test_engines_that_do_not_answer_are_told_beside_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_pages, "MOST_BYTES", 100)
    monkeypatch.setattr(fleet_pages, "TIMEOUT_S", 0.5)
    async with fleet("router") as (client, engines):
        engines[0].answers["/version"] = b"x" * 101
        engines[1].answers["/version"] = b"no JSON"
        mixed = await client.get("/version")
        engines[2].answers["/version"] = engines[1].answers["/version"] = b"x" * 101
        none = await client.get("/version")

    workers = mixed.json()["workers"]
    assert mixed.status_code == 200
    assert workers["e0"] == {"status": 0, "error": "an answer above 100 bytes"}
    assert workers["e1"] == {"status": 200, "body": "no JSON"}
    assert workers["e2"]["body"]["by"] == "e2"
    assert none.status_code == 502
