"""Answers that are not streamed: what they hold at their engine while nobody sees them."""

import asyncio

import httpx
import pytest

from tests.integration.support.live_router import client_of, mockers, router

pytestmark = pytest.mark.integration

PROMPT = "What everybody asks about, again and again. " * 4
ANSWERS = 8
STREAMED_TOKENS = 40
WITHIN_S = 30.0


async def ask(client: httpx.AsyncClient, tokens: int, *, stream: bool) -> None:
    body = {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    answer = await client.post("/v1/completions", json={"model": "mock"} | body)
    assert answer.status_code == 200


async def booked(client: httpx.AsyncClient) -> tuple[int, int]:
    (worker,) = (await client.get("/v1/status")).json()["workers"]
    return worker["active_requests"], worker["active_blocks"]


async def test_their_blocks_grow_while_they_are_generated_and_go_with_them() -> None:
    async with (
        mockers(timing_profile="dynamo") as (mocker,),
        client_of(router([mocker.url])) as client,
        asyncio.timeout(WITHIN_S),
    ):
        # A stream shows how fast answers come and how long they become.
        await ask(client, STREAMED_TOKENS, stream=True)
        # What comes beyond that shows only when three reports of the engine tell of it.
        asked = [asyncio.create_task(ask(client, 2000, stream=False)) for _ in range(ANSWERS)]
        while (await booked(client))[0] < ANSWERS:  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0)
        began = (await booked(client))[1]
        while (now := await booked(client))[1] == began:  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.02)
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        while (left := await booked(client))[0]:  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.02)

    assert now[0] == ANSWERS
    assert began < now[1] <= began + ANSWERS * (STREAMED_TOKENS // 16 + 1)
    assert left == (0, 0)
