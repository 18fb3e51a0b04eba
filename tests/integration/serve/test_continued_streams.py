"""Streams whose engine breaks off in their middle go on at another; clients do not notice."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.settings.http import UpstreamSettings
from kvmesh.settings.requests import FailureSettings, TenantSettings
from tests.integration.support.breaking_front import Break, BreakingFront, breaking_fronts
from tests.integration.support.failing_engine import RawClient, request_bytes
from tests.integration.support.live_router import client_of, router
from tests.integration.support.told_stream import FORMS, TOOL, WORDS, Told, asked, form, tell
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration


class Door:
    """A client of one router."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def figure(self, name: str) -> float:
        lines = (await self.client.get("/metrics")).text.splitlines()
        return sum(float(one.split()[-1]) for one in lines if one.startswith(name))


@contextlib.asynccontextmanager
async def door_to(fronts: list[BreakingFront], **settings: Any) -> AsyncIterator[Door]:
    settings.setdefault("parity_sample", 0)
    async with client_of(router([one.url for one in fronts], **settings)) as client:
        yield Door(client)


async def undisturbed(front: BreakingFront, path: str, body: dict[str, Any]) -> Told:
    """Return what the engine itself says."""
    async with httpx.AsyncClient(base_url=front.url, timeout=30.0) as client:
        told = await tell(client, path, body)
    front.prompts.clear()
    return told


HOWS = ("reset", "torn", "error", "end")
"""How a stream breaks off. That is known before its form matters: each form meets two of them."""


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, HOWS[(at + k) % 4]) for at, name in enumerate(FORMS) for k in (0, 1)],
)
async def test_a_stream_goes_on_as_if_nothing_had_happened(name: str, how: Any) -> None:
    path, body = form(name)
    async with breaking_fronts(2, Break(99), Break(13, how)) as fronts, door_to(fronts) as door:
        before = await undisturbed(fronts[0], path, body)

        told = await tell(door.client, path, body)

        assert told.said == before.said
        assert told.resumable == WORDS.get(name, "exact")
        assert sum(len(one.prompts) for one in fronts) == 2
        assert await door.figure('kvmesh_streams_cut_total{result="continued"') == 1


@pytest.mark.parametrize(
    "more",
    [{"n": 2, "temperature": 0}, {"tools": [TOOL]}, {"stop": ["never said"]}],
    ids=["two answers", "tools, sampled", "stop strings, sampled"],
)
async def test_a_form_that_cannot_go_on_says_so_and_ends_with_one_error(more: Any) -> None:
    path, body = asked(more, 0, 40)
    async with breaking_fronts(2, Break(13)) as fronts, door_to(fronts) as door:
        told = await tell(door.client, path, body)

        assert told.resumable == "no"
        assert (told.dones, told.broken, told.reason) == (0, True, "")
        assert [one["code"] for one in told.errors] == ["upstream_failed"]
        assert sum(len(one.prompts) for one in fronts) == 1
        assert "return_token_ids" not in (fronts[0].prompts + fronts[1].prompts)[0]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("chat", "reset"),
        ("sampled chat", "error"),
        ("chat with tools", "reset"),
        ("completion with ids", "error"),
    ],
)
async def test_two_losses_are_survived_and_the_third_ends_the_stream(name: str, how: Any) -> None:
    path, body = form(name)
    breaks = Break(99), Break(9, how), Break(7, how), Break(99), Break(9), Break(8), Break(7, how)
    cuts = 25 if "tools" not in name else 9
    async with breaking_fronts(4, *breaks) as fronts, door_to(fronts) as door:
        before = await undisturbed(fronts[0], path, body)

        survived = await tell(door.client, path, body)
        lost = await tell(door.client, path, body)

        assert survived.said == before.said
        assert (lost.dones, lost.reason, lost.broken) == (int(how == "error"), "", True)
        assert len(lost.errors) == 1
        assert lost.texts == before.texts[: len(lost.texts)]
        assert abs(len(lost.texts) - cuts) < 3


async def test_a_prompt_that_ended_its_engines_is_refused() -> None:
    path, body = form("chat")
    deaths = Break(5, "die"), Break(5, "die"), Break(5, "die")
    async with breaking_fronts(4, *deaths) as fronts, door_to(fronts) as door:
        ended = await tell(door.client, path, body)
        async with asyncio.timeout(20):
            while (again := await tell(door.client, path, body)).status == 200:
                pass
        other = await tell(door.client, *form("chat", 1))

        assert (len(ended.errors), ended.dones) == (1, 0)
        assert again.status == 422
        assert "poison" in again.errors[0]
        assert other.dones == 1


@pytest.mark.parametrize(
    ("settings", "word", "not_kept"),
    [
        ({"failure": FailureSettings(retry_budget=0.0)}, "exact", 0),
        ({"upstream": UpstreamSettings(keep_stream_bytes=0)}, "no", 0),
        ({"upstream": UpstreamSettings(keep_stream_bytes=1000)}, "no", 1),
    ],
    ids=["no retries", "nothing is kept", "too little may be kept"],
)
async def test_a_stream_ends_where_none_may_go_on(
    settings: dict[str, Any], word: str, not_kept: int
) -> None:
    path, body = form("chat")
    async with breaking_fronts(2, Break(13)) as fronts, door_to(fronts, **settings) as door:
        told = await tell(door.client, path, body)

        assert (told.resumable, len(told.errors), told.dones) == (word, 1, 0)
        assert await door.figure("kvmesh_streams_not_kept_total") == not_kept
        assert await door.figure("kvmesh_stream_kept_bytes") == 0
        assert sum(len(one.prompts) for one in fronts) == 1


async def test_an_engine_that_hangs_in_a_stream_is_found_and_its_stream_goes_on() -> None:
    path, body = form("chat")
    breaks = Break(99), Break(13, "hang")
    async with breaking_fronts(3, *breaks) as fronts, door_to(fronts) as door:
        before = await undisturbed(fronts[0], path, body)
        began = time.monotonic()

        told = await tell(door.client, path, body)

        assert told.said == before.said
        assert time.monotonic() - began < 12.0
        assert await door.figure('kvmesh_worker_failures_total{kind="hung"') == 1


async def test_an_engine_that_rejects_a_request_for_ids_is_asked_without_from_then_on() -> None:
    async with breaking_fronts(1) as fronts, door_to(fronts) as door:
        fronts[0].rejects = "ids"
        first = await tell(door.client, *form("chat", 1))
        second = await tell(door.client, *form("chat", 2))
        sampled = await tell(door.client, *form("sampled chat", 3))

        told = (first, second, sampled)
        assert [(one.dones, one.errors) for one in told] == [(1, [])] * 3
        assert [one.resumable for one in told] == ["exact", "exact", "no"]
        asked = [one.get("return_token_ids", False) for one in fronts[0].prompts]
        assert asked == [True, False, False, False]


async def test_an_engine_that_rejects_the_request_itself_is_asked_for_ids_all_the_same() -> None:
    path, body = form("chat")
    async with breaking_fronts(1) as fronts, door_to(fronts) as door:
        fronts[0].rejects = "all"
        bad = await tell(door.client, path, body)
        fronts[0].rejects = ""
        good = await tell(door.client, path, body)

        assert (bad.status, good.resumable, good.dones) == (400, "exact", 1)
        asked = [one.get("return_token_ids", False) for one in fronts[0].prompts]
        assert asked == [True, False, True]


async def test_a_stream_without_ids_goes_on_where_the_same_answer_comes_again() -> None:
    path, body = form("chat")
    breaks = Break(99), Break(13), Break(30)
    async with breaking_fronts(3, *breaks) as fronts, door_to(fronts) as door:
        before = await undisturbed(fronts[0], path, body)
        for one in fronts:
            one.rejects = "ids"

        told = await tell(door.client, path, body)

        assert told.said == before.said


async def test_a_client_that_does_not_read_gets_all_when_it_does() -> None:
    path, body = form("chat", tokens=3000)
    breaks = Break(9999), Break(600)
    async with breaking_fronts(2, *breaks, max_model_len=4096) as fronts, door_to(fronts) as door:
        before = await undisturbed(fronts[0], path, body)
        told = Told()

        async with door.client.stream("POST", path, json=body) as answer:
            await until(lambda: sum(len(one.prompts) for one in fronts) == 2)
            async for line in answer.aiter_lines():
                told.take(line)

        assert told.said == before.said
        assert len(told.texts) == len(before.texts) >= 2500


async def test_two_tenants_are_kept_apart_by_what_goes_on(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    tenant = TenantSettings(tenant_secret_file=tmp_path / "secret")
    path, body = form("chat")
    breaks = Break(13), Break(99), Break(99), Break(17)
    async with breaking_fronts(2, *breaks) as fronts, door_to(fronts, tenant=tenant) as door:
        told = {}
        for name in ("ann", "ben"):
            headers = {"x-kvmesh-tenant": name}
            told[name] = [await tell(door.client, path, body, headers=headers) for _ in range(2)]
        salts = [one["cache_salt"] for front in fronts for one in front.prompts]

        assert told["ann"][0].said == told["ann"][1].said != told["ben"][0].said
        assert told["ben"][0].said == told["ben"][1].said
        assert sorted(salts.count(one) for one in set(salts)) == [3, 3]


async def test_a_client_may_leave_while_its_stream_is_between_engines() -> None:
    path, body = form("chat")
    async with breaking_fronts(2, Break(13)) as fronts, door_to(fronts) as door:
        for one in fronts:
            one.held = asyncio.Event()
        async with door.client.stream("POST", path, json=body):
            await until(lambda: sum(len(one.prompts) for one in fronts) == 2)

        await until(lambda: sum(one.left for one in fronts) == 1)
        status = (await door.client.get("/v1/status")).json()
        assert [one["active_requests"] for one in status["workers"]] == [0, 0]
        assert await door.figure("kvmesh_stream_kept_bytes") == 0
        assert await door.figure('kvmesh_requests_total{outcome="client_gone"') == 1


async def test_a_client_of_http_1_0_gets_the_same() -> None:
    path, body = form("chat")
    async with breaking_fronts(2, Break(99), Break(13)) as fronts, door_to(fronts) as door:
        before = await undisturbed(fronts[0], path, body)
        client = await RawClient.connect(str(door.client.base_url))
        data = request_bytes(json.dumps(body).encode(), path)
        await client.send(data.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        head, _, lines = (await client.rest()).decode().partition("\r\n\r\n")
        client.close()

        told = Told()
        for line in lines.splitlines():
            told.take(line)
        assert "chunked" not in head
        assert told.said == before.said


async def test_what_goes_on_has_the_id_of_its_request() -> None:
    path, body = form("chat")
    async with breaking_fronts(2, Break(13)) as fronts, door_to(fronts) as door:
        told = await tell(door.client, path, body, headers={"x-request-id": "mine"})

        assert told.dones == 1
        names = [head["x-request-id"] for one in fronts for head in one.heads]
        assert names == ["mine", "mine"]
        decision = (await door.client.get("/v1/decisions/mine")).json()
        outcome = decision["outcome"]
        assert (outcome["state"], outcome["output_tokens"]) == ("finished", 40)
        assert "goes on behind token 13" in outcome["failures"][-1]
