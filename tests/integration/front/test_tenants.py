"""Two tenants at every kind of front door: what one is told of the other's requests."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.core.admission.tenant_salt import TenantSalts
from kvmesh.settings.requests import TenantSettings
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from tests.integration.serve.test_disaggregation import engines, routed, until_idle
from tests.integration.support.failing_engine import answer_well
from tests.integration.support.live_router import client_of, events, router
from tests.integration.support.replay_endpoint import ReplayEndpoint, serve
from tests.integration.support.two_tenants import SECRET, Kind, Tenants, cached, chat, tenants

pytestmark = pytest.mark.integration

OVERLAP = "x-kvmesh-overlap-blocks"


async def route(door: Tenants, holder: str, text: str = SECRET, **headers: str) -> Any:
    answer = await door.send(holder, "POST", "/v1/route", chat(text), **headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("kind", ["router", "meta, proxy key", "meta, keys passed on"])
async def test_without_isolation_no_answer_of_ours_tells_of_others_prompts(
    kind: Kind, tmp_path: Path
) -> None:
    async with tenants(kind, tmp_path, apart=False) as door:
        first = await door.chat("ann", SECRET, x_request_id="ann-1")
        reported = await route(door, "ben")
        lied = await route(door, "ben", x_kvmesh_roles="operate", x_kvmesh_tenant="house")
        known = await route(door, "boss")
        probe = await door.chat("ben", SECRET, x_request_id="ben-1")
        ours = await door.chat("boss", SECRET)
        if kind != "meta, keys passed on":  # a meta-router without a key of its own sees nothing
            await nothing_of_ann(door, counts=False)

        assert OVERLAP not in first.headers
        assert OVERLAP not in probe.headers
        assert int(ours.headers[OVERLAP]) > 0
        for one in (reported, lied):
            assert one["worker"] == "w0"
            assert one["candidates"] == []
            assert not {"overlap_blocks", "left_out", "expected_output"} & set(one)
        assert known["overlap_blocks"] > 0


@pytest.mark.parametrize("kind", ["router", "meta, open routers"])
async def test_with_isolation_each_tenant_is_told_of_its_own_blocks_and_no_others(
    kind: Kind, tmp_path: Path
) -> None:
    async with tenants(kind, tmp_path, apart=True) as door:
        await door.chat("ann", SECRET, x_request_id="ann-1")
        reported, known = await route(door, "ben"), await route(door, "ann")
        probe = await door.chat("ben", SECRET, x_request_id="ben-1")
        again = await door.chat("ann", SECRET)
        program = await door.chat("ann's program", SECRET)
        other = await door.send("ann", "POST", "/v1/rerank", {"model": "mock"})
        hashes = await door.http.post(
            "/v1/route",
            content=bytes(80),
            headers={
                "authorization": f"Bearer {door.keys['ben']}",
                "content-type": "application/octet-stream",
                "x-kvmesh-body": "hashes",
            },
        )
        foreign = await door.send(
            "ben",
            "POST",
            "/v1/chat/completions",
            chat("x") | {"kv_transfer_params": {"do_remote_prefill": True}},
        )
        await nothing_of_ann(door, counts=True)
        if not kind.startswith("meta"):
            mark = (await door.get("boss", "/v1/status"))["tenant_secret"]
            assert mark == TenantSalts(b"0123456789abcdef").mark

        assert (reported["overlap_blocks"], probe.headers[OVERLAP], cached(probe)) == (0, "0", 0)
        assert [one["overlap_blocks"] for one in reported["candidates"]] == [0]
        assert known["overlap_blocks"] > 0
        for own in (again, program):
            assert int(own.headers[OVERLAP]) * 16 == cached(own) == known["overlap_blocks"] * 16
        for refused in (other, hashes, foreign):
            assert (refused.status_code, "tenant" in refused.text) == (403, True)


async def nothing_of_ann(door: Tenants, *, counts: bool) -> None:
    """Ask as ben for all that pages show; `counts`: he may know how much of his own was cached."""
    # With his own id he learns nothing of hers of the same name, and does not hide hers.
    await door.chat("ben", SECRET, x_request_id="ann-1")
    listed = (await door.get("ben", "/v1/decisions"))["decisions"]
    overview = await door.get("ben", "/v1/overview?limit=1000")
    async with httpx.AsyncClient(
        base_url=door.url, headers={"authorization": f"Bearer {door.keys['ben']}"}, timeout=60
    ) as client:
        stream = events(client)
        hello = (await anext(stream))[1]
        await stream.aclose()
    status = await door.get("ben", "/v1/status")
    hers = await door.get("ann", "/v1/decisions/ann-1")
    his = await door.get("ben", "/v1/decisions/ann-1")
    missing = await door.send("ann", "GET", "/v1/decisions/ben-1")
    all_ = (await door.get("boss", "/v1/decisions"))["decisions"]

    for rows in (listed, overview["decisions"], hello["decisions"]):
        assert {one["request_id"] for one in rows} == {"ben-1", "ann-1"}
        assert {one["tenant"] for one in rows} == {"cellar"}
        assert all(one["cached_tokens"] is None for one in rows) != counts
    for page in (overview, hello):
        assert [one["worker"] for one in page["workers"]] == ["w0"]
        assert not any(one["active_requests"] or one["figures"] for one in page["workers"])
        for name in ("prefixes", "seconds", "counters", "replicas", "shadows", "warnings"):
            assert not page[name]
    assert set(status) == {"name", "ready", "tenant", "requests"}
    assert status["tenant"] == "cellar"
    assert hers["outcome"]["tenant"] == "kitchen"
    assert his["outcome"]["tenant"] == "cellar"
    assert ("decision" in his) == counts
    assert missing.status_code == 404
    assert {"kitchen", "cellar"} <= {one["tenant"] for one in all_}


SHARING = f"""
[groups]
family = ["kitchen", "cellar"]

[[public]]
messages = [{{role = "user", content = "{SECRET}"}}]
"""


async def test_groups_share_their_blocks_and_strangers_only_what_is_wholly_public(
    tmp_path: Path,
) -> None:
    async with tenants("router", tmp_path, apart=True, sharing=SHARING) as door:
        await door.chat("ann", SECRET)
        public = await door.chat("boss", SECRET)
        tail = await door.chat("ann", f"{SECRET} and a private end " * 2)
        private = await door.chat("boss", f"{SECRET} and a private end " * 2)
        grouped = await door.chat("ben", f"{SECRET} and a private end " * 2)

        assert cached(public) > 0
        # A public beginning does not make what follows it, nor itself then, anybody else's.
        assert (cached(tail), cached(private)) == (0, 0)
        assert cached(grouped) > 0


async def test_a_gateways_word_makes_tenants_where_no_key_is_asked(tmp_path: Path) -> None:
    async with tenants("router, no keys", tmp_path, apart=True) as door:
        for tenant in ("kitchen", "cellar"):
            await door.chat("", SECRET, x_kvmesh_tenant=tenant, x_request_id=f"{tenant}-1")
        reported = await route(door, "", x_kvmesh_tenant="attic", x_kvmesh_roles="operate")
        pages = [
            await door.send("", "GET", "/v1/decisions", **headers)
            for headers in (
                {"x_kvmesh_tenant": "cellar"},
                {"x_kvmesh_tenant": "cellar", "x_kvmesh_roles": "operate"},
                {"x_kvmesh_tenant": ""},
                {},
            )
        ]
        twice = await door.http.post(
            "/v1/chat/completions",
            json=chat(SECRET),
            headers=[("x-kvmesh-tenant", "attic"), ("x-kvmesh-tenant", "kitchen")],
        )

        seen = [{one["request_id"] for one in page.json()["decisions"]} for page in pages]
        assert reported["overlap_blocks"] == 0
        assert seen == [{"cellar-1"}, {"cellar-1"}, set(), {"kitchen-1", "cellar-1"}]
        assert twice.status_code == 400


async def test_sessions_of_two_tenants_are_two_whatever_their_names(tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        for holder in ("ann", "ben", "ann"):
            await door.chat(holder, "hello", x_kvmesh_session="lunch")
        sessions = (await door.get("boss", "/v1/status"))["sessions"]

        assert (sessions["sessions"], sessions["began"], sessions["kept"]) == (2, 2, 1)


def auc(right: list[float], wrong: list[float]) -> float:
    """Return how often a right guess is answered sooner than a wrong one; a tie counts half."""
    pairs = [(one < other) + 0.5 * (one == other) for one in right for other in wrong]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("apart", [False, True])
async def test_times_and_cached_tokens_tell_of_others_prompts_only_without_isolation(
    tmp_path: Path, *, apart: bool
) -> None:
    # A pretend engine's cached tokens are its times; a real one is timed in tests/engines.
    async with tenants("router", tmp_path, apart=apart) as door:
        reported = [f"{number} {SECRET}" for number in range(40)]
        untold = [f"{number} {SECRET}" for number in range(40, 80)]
        for text in reported:
            await door.chat("ann", text)
        right = [-float(cached(await door.chat("ben", text))) for text in reported]
        wrong = [-float(cached(await door.chat("ben", text))) for text in untold]

        assert auc(right, wrong) == (0.5 if apart else 1.0)


async def test_an_engine_of_no_kind_that_takes_a_salt_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    kept = TenantSettings(tenant_secret_file=tmp_path / "secret")
    unknown = ReplayEndpoint(workers=1)
    async with (
        tenants("router, no keys", tmp_path, apart=True) as door,
        serve(unknown) as first,
        client_of(router([first, door.engine.url], tenant=kept, kv_events=True)) as client,
        asyncio.timeout(20),
    ):
        warnings: list[str] = []
        while not any("cache_salt" in line for line in warnings):
            warnings = (await client.get("/ready")).json().get("warnings", [])

    assert [line.split(":")[0] for line in warnings if "cache_salt" in line] == ["w0"]


async def test_a_prompt_split_between_two_workers_is_split_by_the_tenants_own_blocks(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    kept = TenantSettings(tenant_secret_file=tmp_path / "secret")
    async with engines("prefill", "decode") as mockers, routed(mockers, tenant=kept) as client:

        async def ask(tenant: str) -> tuple[bool, int]:
            headers = {"x-kvmesh-tenant": tenant}
            body = chat(SECRET)
            answer = await client.post("/v1/chat/completions", json=body, headers=headers)
            return "x-kvmesh-prefill-worker" in answer.headers, cached(answer)

        first = await ask("kitchen")
        async with asyncio.timeout(20):
            while (await ask("kitchen"))[0]:
                await until_idle(client)
        other = await ask("cellar")

        assert first[0]
        assert other == first


async def test_a_path_at_which_an_engine_takes_no_salt_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    kept = TenantSettings(tenant_secret_file=tmp_path / "secret")
    pages = {"/v1/models": b'{"data": [{"id": "mock"}]}', "/server_info": b'{"page_size": 16}'}

    def answer(exchange: Exchange) -> None:
        path = exchange.request.path
        if path.startswith("/v1/") and exchange.request.method == "POST":
            answer_well(exchange)
        else:
            exchange.respond(200 if path in pages else 404, pages.get(path, b"{}"))

    server = HttpServer(answer)
    await server.start("127.0.0.1", 0)
    try:
        async with (
            client_of(
                router([f"http://127.0.0.1:{server.port}"], tenant=kept, kv_events=True)
            ) as client,
        ):
            statuses = {
                path: (await client.post(path, json=chat("hi") | {"input": "hi"})).status_code
                for path in ("/v1/messages", "/v1/embeddings", "/v1/chat/completions")
            }
    finally:
        await server.close()

    assert statuses == {"/v1/messages": 403, "/v1/embeddings": 403, "/v1/chat/completions": 200}
