"""Usage at real front doors: who sees what, by page and by command."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest
from rich.console import Console

from kvmesh.app.views.usage_command import UsageOptions, command, draw, fetch_usage, read_usage
from kvmesh.errors import TransportError
from kvmesh.settings.requests import AdmissionSettings
from tests.integration.support.live_router import client_of, mockers, router
from tests.integration.support.two_tenants import Kind, Tenants, tenants
from tests.integration.views.test_metrics import families, value

pytestmark = pytest.mark.integration


async def counted(client: httpx.AsyncClient, requests: int, **asked: Any) -> dict[str, Any]:
    """Return the page once it has counted so many requests."""
    async with asyncio.timeout(10):
        while True:
            answer = await client.get("/v1/usage", **asked)
            assert answer.status_code == 200, answer.text
            page: dict[str, Any] = answer.json()
            if page["total"]["requests"] >= requests:
                return page
            await asyncio.sleep(0.2)


async def usage(made: Tenants, holder: str, query: str, requests: int) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {made.keys[holder]}"}
    params = dict(parse_qsl(query))
    return await counted(made.http, requests, headers=headers, params=params)


def names(page: dict[str, Any]) -> dict[str, int]:
    return {one["name"]: one["requests"] for one in page["rows"]}


@pytest.mark.parametrize("kind", ["router", "meta, proxy key", "meta, keys passed on"])
async def test_a_tenant_sees_its_own_usage_and_operators_all(kind: Kind, tmp_path: Path) -> None:
    async with tenants(kind, tmp_path, apart=False) as made:
        for number in range(3):
            await made.chat("ann", f"question {number}", x_kvmesh_session="s")
        await made.chat("ann's program", "another", x_kvmesh_key="ben")
        await made.chat("ben", "his")
        operator = "boss"
        if kind == "meta, keys passed on":  # its meta-router may not ask routers itself
            empty = await made.get(operator, "/v1/usage")
            assert "no answer from default" in empty["missing"]
            return
        everybody = await usage(made, operator, "by=key", 5)
        own = await usage(made, "ann", "by=key", 4)
        sessions = await usage(made, "ann", "by=session", 4)
        models = await usage(made, operator, "by=model&tenant=cellar", 1)
        foreign = await made.send("ann", "GET", "/v1/usage?tenant=cellar")
        barred = await made.send("ann's program", "GET", "/v1/usage")
        again = await made.get(operator, "/v1/usage?by=key")

    assert names(everybody) == {"ann": 3, "ann's program": 1, "ben": 1}
    assert names(own) == {"ann": 3, "ann's program": 1}
    assert {one["tenant"] for one in own["rows"]} == {"kitchen"}
    assert own["total"]["requests"] == 4
    assert list(names(sessions).values()) == [3]
    assert len(next(iter(names(sessions)))) == 32
    assert names(models) == {"mock": 1}
    assert models["rows"][0]["output_tokens"] == 2
    assert (foreign.status_code, barred.status_code) == (403, 403)
    assert names(again) == names(everybody)


async def test_streams_that_clients_leave_count_what_was_passed_on() -> None:
    body = {"model": "mock", "prompt": "a" * 320, "max_tokens": 400, "stream": True}
    async with (
        mockers(1, timing_profile="linear,decode_base=4") as engines,
        client_of(router([engines[0].url], parity_sample=0)) as client,
    ):
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            seen = 0
            async for line in answer.aiter_lines():
                seen += line.startswith("data: {")
                if seen >= 40:
                    break
        total = (await counted(client, 1))["total"]

    assert (total["errors"], total["prompt_tokens"]) == (0, 320)
    assert seen <= total["output_tokens"] < seen + 12


async def test_the_command_prints_a_table_or_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = {"model": "mock", "prompt": "a" * 320, "max_tokens": 2}
    async with (
        mockers(1) as engines,
        client_of(
            router(
                [engines[0].url],
                parity_sample=0,
                admission=AdmissionSettings(metrics_tenant=("t",)),
            )
        ) as client,
    ):
        url = str(client.base_url)
        for tenant in ("t", "u"):
            headers = {"x-kvmesh-tenant": tenant, "x-kvmesh-session": "s"}
            assert (await client.post("/v1/completions", json=body, headers=headers)).is_success
        await counted(client, 2)
        options = UsageOptions(url=url, by="session", tenant="t", api_key="k")
        view = read_usage(await fetch_usage(options), url)
        await asyncio.to_thread(command, UsageOptions(url=url))
        await asyncio.to_thread(command, UsageOptions(url=url, json=True))
        page = (await client.get("/v1/usage?by=session&limit=1")).json()
        metrics = families((await client.get("/metrics")).text)

    shown = partial(value, metrics, "kvmesh_usage_tokens_total", kind="prompt")
    assert (shown(tenant="t"), shown(tenant="other")) == (320, 320)
    lost = partial(value, metrics, "kvmesh_usage_lost_requests_total")
    assert (lost(why="dropped"), lost(why="uncounted")) == (0, 0)
    assert "what ended before" in page["missing"]
    assert [(one.tenant, one.requests) for one in view.rows] == [("t", 1)]
    printed = capsys.readouterr().out
    assert "bucket default, by tenant" in printed
    assert printed.count('"prompt_tokens": 320') == 2
    assert len(page["rows"]) == 1
    console = Console(width=140, record=True)
    console.print(draw(view))
    assert view.rows[0].name in console.export_text()


def test_an_answer_that_is_none_is_said_to_be() -> None:
    with pytest.raises(TransportError, match="is --url a kvmesh router"):
        read_usage(b"{}", "http://h")
