"""LoRA adapters and tenants' salts: what one caches no other finds, as the engine has it."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kvmesh.settings.roles import CostSettings
from kvmesh_lab.mocker.command import Mocker
from tests.integration.support.live_router import client_of, mockers, router
from tests.integration.support.waiting import seen

pytestmark = pytest.mark.integration

ADAPTERS = "poet", "lawyer"

PROMPT = "What everybody asks about, again and again. " * 20


async def test_requests_for_an_adapter_stay_where_it_is_held_ready() -> None:
    async with (
        mockers(2, lora_modules=ADAPTERS, max_loras=1, lora_load_ms=50.0) as engines,
        client_of(router([one.url for one in engines])) as client,
    ):
        chosen: dict[str, set[str]] = {"poet": set(), "lawyer": set()}
        for number in range(12):
            for name, workers in chosen.items():
                body = {"model": name, "prompt": f"{number} {name} " * 40, "max_tokens": 1}
                answer = await client.post("/v1/completions", json=body)
                workers.add(answer.headers["x-kvmesh-worker"])
        asked = await client.post("/v1/route", json={"model": "poet", "prompt": "Why? " * 40})

    assert len(chosen["poet"]) == len(chosen["lawyer"]) == 1
    assert chosen["poet"] != chosen["lawyer"]
    assert sum(one.ranks[0].statistics().adapter_slots for one in engines) == 2
    loads = {one["worker"]: one["adapter_ms"] for one in asked.json()["candidates"]}
    assert [worker for worker, ms in loads.items() if not ms] == [*chosen["poet"]]


@contextlib.asynccontextmanager
async def routed() -> AsyncIterator[tuple[httpx.AsyncClient, Mocker]]:
    cost = CostSettings(predict_ttl_s=0.0)
    async with (
        mockers(lora_modules=ADAPTERS) as (engine,),
        client_of(router([engine.url], kv_events=True, cost=cost)) as client,
    ):
        yield client, engine


async def ask(client: httpx.AsyncClient, model: str, **more: str) -> tuple[int, int]:
    """Return the overlap that was foreseen, and the engine's own, in blocks."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 1} | more
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return int(answer.headers["x-kvmesh-overlap-blocks"]), cached // 16


async def events_arrived(client: httpx.AsyncClient, engine: Mocker) -> None:
    """Wait until the router knows as many blocks as the engine holds."""

    def all_arrived(status: Any) -> bool:
        known = status["mesh"]["engines"]["w0"]["w0"]["cache"]["visible_blocks"]
        return bool(known == len(engine.ranks[0].dump()) // 8)

    await seen(client, "/v1/status", all_arrived)


@pytest.mark.parametrize("way", ["adapter", "salt"])
async def test_namespaces_are_apart_in_router_and_engine(way: str) -> None:
    async with routed() as (client, engine):
        names = ["mock", "poet", "lawyer"] if way == "adapter" else ["", "tenant-a", "tenant-b"]
        seen: list[tuple[int, int]] = []
        for name in names * 2:
            salt = {"cache_salt": name} if way == "salt" and name else {}
            seen.append(await ask(client, name if way == "adapter" else "mock", **salt))
            await events_arrived(client, engine)

    assert [foreseen for foreseen, _ in seen] == [cached for _, cached in seen]
    assert [foreseen > 40 for foreseen, _ in seen] == [False] * 3 + [True] * 3
