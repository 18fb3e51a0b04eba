"""Gateways that show a picker no response bodies, or no responses: what becomes of bookings."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.picker.envoy_options import Address, GatewayOptions
from kvmesh.app.picker.envoy_server import EnvoyServer
from tests.integration.picker.asking import chat
from tests.integration.picker.live_picker import LivePicker, engines, picker
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

CHATS = "/v1/chat/completions"
NOTHING = {"response_body": "NONE", "response_headers": False}
HEADS = {"response_body": "NONE"}
HEADS_AND_ENDS = {"response_body": "NONE", "response_trailers": True}
BUFFERED = {**NOTHING, "request_body": "BUFFERED"}
WAYS: list[dict[str, Any]] = [NOTHING, HEADS, BUFFERED]


class Quiet:
    """A real Envoy before one picker and simulated engines: `client` sends to it."""

    def __init__(self, client: httpx.AsyncClient, live: LivePicker) -> None:
        self.client = client
        self.live = live

    async def figures(self) -> dict[str, float]:
        """Return the picker's metrics, by name with labels."""
        page = (await self.live.views.get("/metrics")).text
        rows = re.findall(r"^(kvmesh_.+) (\S+)$", page, re.MULTILINE)
        return {name: float(value) for name, value in rows}

    async def booked(self) -> float:
        """Return how many requests are booked."""
        return (await self.figures())["kvmesh_booked_requests"]

    async def none_booked(self) -> bool:
        return not await self.booked() and not (await self.figures())["kvmesh_picks_unwatched"]


@contextlib.asynccontextmanager
async def quiet(folder: Path, options: dict[str, Any], count: int = 2) -> AsyncGenerator[Quiet]:
    async with engines(count) as urls, picker(urls) as live, contextlib.AsyncExitStack() as stack:
        known = tuple(Address("127.0.0.1", httpx.URL(url).port or 80) for url in urls)
        asked = GatewayOptions(
            pickers=(Address("127.0.0.1", live.port),), endpoints=known, **options
        )
        server = EnvoyServer(asked, folder / "envoy")
        stack.push_async_callback(server.stop)
        await server.start()
        client = httpx.AsyncClient(base_url=server.url, timeout=30)
        await stack.enter_async_context(client)
        yield Quiet(client, live)


@pytest.mark.parametrize("options", WAYS, ids=str)
async def test_bookings_end_whatever_a_gateway_shows(
    options: dict[str, Any], tmp_path: Path
) -> None:
    async with quiet(tmp_path, options) as one:
        bodies = [
            chat(f"question {number} " * 60, tokens=20, stream=bool(number % 2))
            for number in range(8)
        ]
        answers = await asyncio.gather(*(one.client.post(CHATS, content=body) for body in bodies))
        await until(one.none_booked, within_s=20)
        ends = {name: n for name, n in (await one.figures()).items() if "outcome" in name}

    assert [answer.status_code for answer in answers] == [200] * 8
    assert all(answer.content for answer in answers)
    assert not any(n for name, n in ends.items() if "client_gone" in name or "crashed" in name)


async def test_a_long_answer_that_nobody_sees_stays_booked_until_its_engine_is_done(
    tmp_path: Path,
) -> None:
    async with quiet(tmp_path, NOTHING) as one:
        body = chat("tell me all of it " * 60, tokens=12_000)
        asked = asyncio.create_task(one.client.post(CHATS, content=body))
        await until(one.booked)
        during = await one.figures()
        answer = await asked
        await until(one.none_booked, within_s=20)
        after = await one.figures()

    assert answer.status_code == 200
    assert during["kvmesh_picks_unwatched"] == 1
    assert during["kvmesh_picks_open"] == 0
    ended = {name: n for name, n in after.items() if "unwatched_ends_total" in name and n}
    assert sum(ended.values()) == 1


async def test_the_second_chat_of_a_prefix_goes_where_the_first_went(tmp_path: Path) -> None:
    system = "you are a helpful assistant " * 200

    async with quiet(tmp_path, NOTHING, count=3) as one:
        for number in range(3):
            await one.client.post(CHATS, content=chat(system + f"question {number}"))
            await until(one.none_booked, within_s=20)
        figures = await one.figures()
        decided = (await one.live.views.get("/v1/decisions")).json()

    workers = {row["worker"] for row in decided["decisions"]}
    assert any(row["ttft_ms"] for row in decided["decisions"])
    assert len(workers) == 1
    assert figures['kvmesh_unwatched_prefills_total{shown_by="events"}'] > 0


async def test_a_client_that_leaves_ends_its_booking_where_ends_are_told(tmp_path: Path) -> None:
    async with quiet(tmp_path, HEADS_AND_ENDS) as one:
        body = chat("tell me all of it " * 60, tokens=100_000)
        async with one.client.stream("POST", CHATS, content=body) as answer:
            async for _ in answer.aiter_bytes():
                break
        await until(one.none_booked, within_s=5)
        figures = await one.figures()

    assert figures['kvmesh_picks_followed_total{until="to the end"}'] == 1
