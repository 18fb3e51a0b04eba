"""`--auto-tune` at a live router: its trace, its status, who may have it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from kvmesh.settings.features import TuneSettings
from kvmesh.settings.requests import AdmissionSettings
from kvmesh_lab.traces.trace import block_size_in_name, parse_trace
from tests.conftest import Eventually
from tests.integration.support.gated_engine import GatedEngine, gated_engine
from tests.integration.support.live_router import chat, client_of, router
from tests.integration.support.waiting import seen, until

pytestmark = pytest.mark.integration

LONG = "A text that is shared by all of them. " * 20
TRACE = "/admin/trace"


@pytest.fixture
async def engine() -> AsyncIterator[GatedEngine]:
    async with gated_engine() as engine:
        yield engine


async def ask(client: httpx.AsyncClient, engine: GatedEngine, eventually: Eventually) -> None:
    for number in range(3):
        before = len(engine.seen)
        asked = asyncio.ensure_future(chat(client, f"{LONG}{number}"))
        await eventually(lambda before=before: len(engine.seen) > before)
        engine.let_go()
        assert (await asked).status_code == 200


async def test_the_trace_of_a_router_that_tunes_can_be_downloaded_and_replayed(
    engine: GatedEngine, eventually: Eventually
) -> None:
    tune = TuneSettings(auto_tune="propose", auto_tune_observe_s=1.0)
    async with client_of(router([engine.url], tune=tune)) as client:
        await ask(client, engine, eventually)

        async def told() -> httpx.Response | None:
            answer = await client.get(TRACE)
            return answer if answer.text.count("\n") >= 3 else None

        answer = await until(told)
        status = (await client.get("/v1/status")).json()["tuning"]
        overview = (await client.get("/v1/overview")).json()
        head = await client.head(TRACE)

        requests = parse_trace(answer.content.splitlines(), "trace")
        name = answer.headers["content-disposition"].split('"')[1]
        assert (name, block_size_in_name(name)) == ("default_b128.jsonl", 128)
        assert head.headers["content-disposition"] == answer.headers["content-disposition"]
        first, *others = requests
        assert first.input_tokens > len(LONG)
        assert all(one.block_ids[:5] == first.block_ids[:5] for one in others)
        assert len({one.block_ids for one in requests}) == 3
        assert status["trace"]["rows"] == 3
        assert status["tuner"]["proposal"] == ""
        assert overview["tuning"][0]["router"] == status["router"] == "default-0"
        ready = await seen(client, "/ready", lambda page: page.get("warnings"))
        assert "auto-tune: 1 worker: nothing to choose" in ready["warnings"]


async def test_the_trace_is_for_who_may_change_the_router(
    engine: GatedEngine, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret-of-the-operators")
    admission = AdmissionSettings(admin_token_file=token)
    tune = TuneSettings(auto_tune="propose")
    async with client_of(router([engine.url], tune=tune, admission=admission)) as client:
        refused = await client.get(TRACE)
        bearer = {"authorization": "Bearer a-secret-of-the-operators"}
        allowed = await client.get(TRACE, headers=bearer)

    assert refused.status_code == 401
    assert "--admin-token-file" in refused.text
    assert (allowed.status_code, allowed.content) == (200, b"")


async def test_a_router_that_does_not_tune_keeps_no_trace(engine: GatedEngine) -> None:
    async with router([engine.url]) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        assert (await client.get(TRACE)).status_code == 404
        assert "tuning" not in (await client.get("/v1/status")).json()
        assert (await client.get("/v1/overview")).json()["tuning"] == []
