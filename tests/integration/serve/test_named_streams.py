"""A client that loses its connection asks its router for the rest of its stream."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from kvmesh.settings.requests import TenantSettings
from tests.integration.serve.test_continued_streams import door_to, undisturbed
from tests.integration.support.breaking_front import Break, breaking_fronts
from tests.integration.support.named_stream import KNOWN, NAME, Reader
from tests.integration.support.told_stream import FORMS, TOOL, asked, form

pytestmark = pytest.mark.integration

CUTS = 20
EVENTS = "text/event-stream"


@pytest.mark.parametrize("name", FORMS)
async def test_a_stream_that_is_cut_twenty_times_comes_whole(name: str) -> None:
    path, body = form(name, tokens=100)
    rng = random.Random(7)
    async with breaking_fronts(2) as fronts, door_to(fronts) as door:
        before = await undisturbed(fronts[0], path, body)
        reader = Reader("mine")
        await reader.begin(door.client, path, body, lambda events: events < 3)

        for _ in range(CUTS - 1):
            answer = await reader.resume(door.client, reader.lacks(rng.randint(1, 6)))
            assert answer.status_code == 200, answer.text
        await reader.resume(door.client)

        assert reader.told.said == before.said
        assert await door.figure("kvmesh_streams_resumed_total") == CUTS
        assert await door.figure("kvmesh_stream_kept_bytes") == 0
        assert await door.figure("kvmesh_stream_named_bytes") > 0


async def test_a_stream_whose_engine_was_lost_before_its_client_comes_whole() -> None:
    path, body = form("chat", tokens=60)
    breaks = Break(99), Break(13), Break(99), Break(11)
    async with breaking_fronts(2, *breaks) as fronts, door_to(fronts) as door:
        before = await undisturbed(fronts[0], path, body)
        reader = Reader("mine")

        await reader.begin(door.client, path, body, lambda events: events < 30)
        await reader.resume(door.client)

        assert reader.told.said == before.said
        assert await door.figure('kvmesh_streams_cut_total{result="continued"') == 2


@pytest.mark.parametrize("name", ["chat", "chat with tools"])
async def test_any_event_may_be_the_last_that_its_client_has(name: str) -> None:
    path, body = form(name, tokens=12)
    async with breaking_fronts(1) as fronts, door_to(fronts) as door:
        whole = Reader("mine")
        await whole.begin(door.client, path, body)

        for after in range(len(whole.events) + 1):
            reader = Reader("mine", events=whole.events[:after])
            answer = await reader.resume(door.client)
            assert (answer.status_code, answer.headers["content-type"][:17]) == (200, EVENTS)
            if after != len(whole.events) - 1:
                assert reader.told.said == whole.told.said
            assert reader.told.said[0] == whole.told.said[0]
            assert (bool(reader.told.usage) or "tools" in name, reader.ends) == (True, 1)


async def test_a_stream_that_is_still_read_ends_where_its_client_asks_for_the_rest() -> None:
    path, body = form("chat")
    breaks = Break(99), Break(13, "hang")
    async with breaking_fronts(2, *breaks) as fronts, door_to(fronts) as door:
        before = await undisturbed(fronts[0], path, body)
        first, begun = Reader("mine"), asyncio.Event()
        reading = asyncio.ensure_future(
            first.begin(door.client, path, body, lambda n: begun.set() if n > 9 else None)
        )
        await begun.wait()
        second = Reader("mine", events=first.events[:5])

        await second.resume(door.client)
        await reading

        assert (first.broken, first.ends) == (True, 0)
        assert second.told.said == before.said
        status = (await door.client.get("/v1/status")).json()
        assert [one["active_requests"] for one in status["workers"]] == [0, 0]


async def test_what_cannot_be_resumed_says_why() -> None:
    path, body = form("chat")
    async with breaking_fronts(1) as fronts, door_to(fronts) as door:
        sampled = asked({"tools": [TOOL], "temperature": 1}, 1, 9)
        await Reader("tools").begin(door.client, *sampled)
        reader = Reader("mine")
        await reader.begin(door.client, path, body)
        count = len(reader.events)

        async def ask(target: str, method: str = "GET") -> tuple[int, str]:
            answer = await door.client.request(method, f"/v1/streams/{target}")
            assert answer.json()["error"]["message"]
            return answer.status_code, answer.json()["error"]["message"]

        answer = await door.client.get(f"/v1/streams/mine?after={count + 1}")
        assert (answer.status_code, answer.headers[KNOWN]) == (409, str(count))
        assert await ask("tools?after=0") == (
            409,
            "stream 'tools' cannot go on: tools, sampled; ask anew, from the start",
        )
        assert (await ask("other?after=0"))[0] == 404
        for target in ("mine", "mine?after=-1", "mine?after=x"):
            assert (await ask(target))[0] == 400
        assert (await ask("mine?after=0", "POST"))[0] == 405


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a" * 129, "a b"])
async def test_a_name_that_is_none_is_refused(name: str) -> None:
    path, body = form("chat")
    async with breaking_fronts(1) as fronts, door_to(fronts) as door:
        answer = await door.client.post(path, json=body, headers={NAME: name})

        assert answer.status_code == 400
        assert "x-kvmesh-stream-id" in answer.json()["error"]["message"]
        assert fronts[0].prompts == []


async def test_another_tenant_is_told_nothing_of_a_stream(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    tenant = TenantSettings(tenant_secret_file=tmp_path / "secret")
    path, body = form("chat")
    async with breaking_fronts(1) as fronts, door_to(fronts, tenant=tenant) as door:
        ann, ben = ({"x-kvmesh-tenant": one} for one in ("ann", "ben"))
        reader, foreign = Reader("mine", headers=ann), Reader("mine", headers=ben)
        await reader.begin(door.client, path, body, lambda events: events < 9)

        refused = await foreign.resume(door.client, after=0)
        unknown = await Reader("other", headers=ben).resume(door.client, after=0)
        answer = await reader.resume(door.client)

        assert (refused.status_code, unknown.status_code, answer.status_code) == (404, 404, 200)
        assert refused.json()["error"]["code"] == unknown.json()["error"]["code"]
        assert (reader.ends, len(reader.told.texts)) == (1, 40)


async def test_an_unnamed_stream_is_not_kept_behind_its_end() -> None:
    path, body = form("chat")
    async with breaking_fronts(1) as fronts, door_to(fronts) as door:
        await door.client.post(path, json=body)

        assert await door.figure("kvmesh_stream_named_bytes") == 0


async def test_a_decision_tells_that_its_client_asked_again() -> None:
    path, body = form("chat")
    async with breaking_fronts(1) as fronts, door_to(fronts) as door:
        reader = Reader("mine")
        await reader.begin(door.client, path, body, lambda events: events < 9)
        answer = await reader.resume(door.client)

        name = answer.headers["x-request-id"]
        decision: dict[str, Any] = (await door.client.get(f"/v1/decisions/{name}")).json()
        assert "asked for the stream again, behind token" in decision["outcome"]["failures"][-1]
