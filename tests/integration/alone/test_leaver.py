"""What an engine alone keeps is computed by the others before it leaves."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator

import httpx
import pytest

from kvmesh_lab.mocker.command import Mocker
from tests.integration.support.live_router import client_of, mockers, router
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

CHATS = 8
TURNS = 20
LEAST_SHARE = 0.9
SETTLED_S = 3.0
"""Long enough for what was to be handed over to be seen."""

LONG = "We speak of many things, and at length. " * 40


async def ask(client: httpx.AsyncClient, chat: int, turn: int) -> tuple[str, float]:
    """Return who answered a turn of a conversation, and how much of the turn before was cached."""
    prompts = [f"Conversation {chat}. {LONG}" + "And then? " * turn for turn in (turn - 1, turn)]
    body = {"model": "mock", "max_tokens": 1, "prompt": prompts[1]}
    headers = {"x-claude-code-session-id": f"agent-{chat}"}  # a program
    answer = await client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer.headers["x-kvmesh-worker"], cached / len(prompts[0])


async def handed_over(client: httpx.AsyncClient) -> dict[str, float]:
    """Return what was sent, by metric and how."""
    lines = (await client.get("/metrics")).text.splitlines()
    found = (one.split() for one in lines if one.startswith(("kvmesh_hand", "kvmesh_warm_")))
    return {name: float(value) for name, value in found}


async def converse(client: httpx.AsyncClient) -> dict[str, list[int]]:
    """Take turns until it is known that they come soon; return which conversations each worker
    alone keeps.
    """
    answered: dict[int, set[str]] = defaultdict(set)
    for turn in range(TURNS):
        for chat in range(CHATS):
            worker, _ = await ask(client, chat, turn)
            answered[chat].add(worker)
    homes: dict[str, list[int]] = defaultdict(list)
    for chat, workers in answered.items():
        if len(workers) == 1:
            homes[workers.pop()].append(chat)
    return homes


@contextlib.asynccontextmanager
async def fleet(share: float) -> AsyncIterator[tuple[httpx.AsyncClient, list[Mocker]]]:
    async with mockers(2, num_gpu_blocks_override=4096, block_size=16) as engines:
        urls = [one.url for one in engines]
        running = router(urls, kv_events=True, warm_share=share)
        async with client_of(running) as client:
            yield client, engines


async def drain(client: httpx.AsyncClient, worker: str) -> None:
    answer = await client.post("/admin/drain", json={"worker": worker, "draining": True})
    assert answer.status_code == 202, answer.text


async def test_the_next_turns_of_an_engine_that_leaves_hit_elsewhere() -> None:
    async with fleet(1.0) as (client, _):
        homes = await converse(client)
        leaver = max(homes, key=lambda one: len(homes[one]))
        await drain(client, leaver)

        async def done() -> bool:
            sent = await handed_over(client)
            return sent['kvmesh_hand_over_requests_total{how="done"}'] >= len(homes[leaver])

        await until(done, 15.0)
        asked = [await ask(client, chat, TURNS) for chat in homes[leaver]]
        sent = await handed_over(client)

    assert all(worker != leaver for worker, _ in asked)
    assert min(share for _, share in asked) >= LEAST_SHARE
    assert sent['kvmesh_hand_over_requests_total{how="failed"}'] == 0
    assert sent["kvmesh_handed_over_tokens_total"] > LEAST_SHARE * len(LONG) * len(homes[leaver])


async def test_without_a_budget_nothing_is_handed_over() -> None:
    async with fleet(0.0) as (client, _):
        homes = await converse(client)
        leaver = max(homes, key=lambda one: len(homes[one]))
        await drain(client, leaver)
        await asyncio.sleep(SETTLED_S)
        asked = [await ask(client, chat, TURNS) for chat in homes[leaver]]

    # Of the first prompts some may be there: their tokens were checked by an engine.
    assert min(share for _, share in asked) < 1.0 - LEAST_SHARE


async def test_an_engine_that_dies_while_it_drains_breaks_nothing() -> None:
    async with fleet(1.0) as (client, engines):
        homes = await converse(client)
        leaver = max(homes, key=lambda one: len(homes[one]))
        await drain(client, leaver)
        await engines[int(leaver[1:])].stop()

        async def done() -> bool:
            sent = await handed_over(client)
            return sent['kvmesh_hand_over_requests_total{how="done"}'] >= len(homes[leaver])

        await until(done, 15.0)
        asked = await asyncio.gather(*(ask(client, chat, TURNS) for chat in range(CHATS)))

    assert {worker for worker, _ in asked} == {"w0", "w1"} - {leaver}
    assert min(share for _, share in asked) >= LEAST_SHARE
