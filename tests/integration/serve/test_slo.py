"""Targets of requests through a real router: refused early, served in time, counted."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from kvmesh.settings.requests import AdmissionSettings, SloSettings
from tests.conftest import Eventually
from tests.integration.support.gated_engine import GatedEngine, gated_engine
from tests.integration.support.live_router import chat, client_of, router

pytestmark = pytest.mark.integration

LONG = "Some long prompt that takes its time. " * 300
"""11,000 tokens: half a second, as routers believe before they know better."""


@pytest.fixture
async def engine() -> AsyncIterator[GatedEngine]:
    async with gated_engine() as engine:
        yield engine


def asked(client: httpx.AsyncClient, name: str, **headers: str) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(chat(client, f"{name}: {LONG}", name, **headers))


def results(metrics: str) -> dict[str, float]:
    """Return the counts of requests with targets, those above 0."""
    lines = [one for one in metrics.splitlines() if one.startswith("kvmesh_slo_requests_total{")]
    found = {
        one.partition('"')[2].partition('"')[0]: float(one.rpartition(" ")[2]) for one in lines
    }
    return {name: count for name, count in found.items() if count}


async def test_what_cannot_be_met_is_refused_at_once_and_nothing_else(
    engine: GatedEngine, eventually: Eventually
) -> None:
    async with client_of(router([engine.url])) as client:
        plain = asked(client, "plain")
        await eventually(lambda: engine.seen == ["plain"])
        soon = await chat(client, "Hello", "soon", slo_ttft_ms="20")
        never = await chat(client, LONG, "never", slo_ttft_ms="1")
        wrong = await chat(client, "Hello", "wrong", slo_tpot_ms="soon")
        explained = await client.post(
            "/v1/route", json={"messages": [], "kvmesh": {"slo_ttft_ms": 1e6, "slo_tpot_ms": 1e3}}
        )
        patient = asked(client, "patient", slo_ttft_ms="60000")
        await eventually(lambda: engine.seen == ["plain", "patient"])
        for _ in range(2):
            engine.let_go()
        served = await asyncio.gather(plain, patient)
        metrics = (await client.get("/metrics")).text
        status = (await client.get("/v1/status")).json()

    assert [one.status_code for one in served] == [200, 200]
    error = soon.json()["error"]
    assert (soon.status_code, error["code"], error["type"]) == (
        429,
        "slo_unattainable",
        "rate_limit_error",
    )
    assert int(soon.headers["retry-after"]) >= 1
    assert "first token in 20 ms" in error["message"]
    assert never.status_code == 429
    assert "retry-after" not in never.headers
    assert never.headers["x-should-retry"] == "false"
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "x-kvmesh-slo-tpot-ms"
    assert "meets its targets with a chance of" in explained.json()["why"]
    assert [one["worker"] for one in explained.json()["forecasts"]] == ["w0"]
    assert results(metrics) == {"met": 1.0, "refused": 2.0}
    assert status["slo"]["results"]["refused"] == 2


async def test_a_held_request_is_refused_before_it_would_be_late(
    engine: GatedEngine, eventually: Eventually
) -> None:
    admission = AdmissionSettings(max_backlog_ms=100.0, busy_prefill_tokens=100)
    slo = SloSettings(slo=("tenant=fast,ttft-ms=2500",))
    async with client_of(router([engine.url], admission=admission, slo=slo)) as client:
        first = asked(client, "first")
        await eventually(lambda: engine.seen == ["first"])
        late = await asked(client, "late", tenant="fast")
        patient = asked(client, "patient", tenant="slow")
        engine.let_go()
        await eventually(lambda: engine.seen == ["first", "patient"])
        engine.let_go()
        served = await asyncio.gather(first, patient)
        metrics = (await client.get("/metrics")).text

    assert (late.status_code, late.json()["error"]["code"]) == (429, "slo_unattainable")
    assert [one.status_code for one in served] == [200, 200]
    assert results(metrics) == {"refused": 1.0}
