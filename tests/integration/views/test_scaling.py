"""What autoscalers read of a live router: how full its workers are, and which may leave first."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvmesh.core.insight.scaling import ScalingOptions
from kvmesh.settings.requests import AdmissionSettings
from kvmesh_lab.mocker.command import MockerOptions
from tests.integration.support import live_router
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

LONG = "A story that goes on and on, and has to be read first. " * 60
LARGE = 64_000
"""Tokens of a cache that holds a long context."""
SLOW = MockerOptions(
    port=0, kv_events_port=0, replay_port=0, num_gpu_blocks_override=1000, speedup_ratio=0.02
)


async def samples(client: httpx.AsyncClient) -> dict[tuple[str, str], float]:
    """Return the figures for autoscalers by name and by the word of their label."""
    page = (await client.get("/metrics")).text
    return {
        (one.name, "".join(one.labels.values())): one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
        if family.name.startswith(("kvmesh_sat", "kvmesh_want", "kvmesh_worker_drain"))
    }


async def figures_when(
    client: httpx.AsyncClient, ready: Callable[[dict[tuple[str, str], float]], bool]
) -> dict[tuple[str, str], float]:
    async def good() -> dict[tuple[str, str], float] | None:
        found = await samples(client)
        return found if ready(found) else None

    found: dict[tuple[str, str], float] = await until(good)
    return found


def body(number: int) -> dict[str, Any]:
    return {
        "model": "mock",
        "prompt": f"{number} {LONG}",
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": True,
    }


async def test_load_fills_the_workers_and_the_idle_one_leaves_first() -> None:
    async with (
        live_router.engine(SLOW) as one,
        live_router.engine(SLOW) as two,
        live_router.client_of(
            live_router.router([one.url, two.url], scaling=ScalingOptions(backlog_s=0.5))
        ) as client,
    ):
        at_rest = await samples(client)
        async with client.stream("POST", "/v1/completions", json=body(0)) as answer:
            busy = answer.headers["x-kvmesh-worker"]
            loaded = await figures_when(
                client, lambda found: found["kvmesh_saturation", "memory"] > 0.01
            )
            overview = (await client.get("/v1/overview")).json()

    (idle,) = {"w0", "w1"} - {busy}
    assert at_rest["kvmesh_saturation", "backlog"] == 0.0
    assert max(at_rest[key] for key in at_rest if key[0] == "kvmesh_wanted_workers") < 0.1
    cost = {name: loaded["kvmesh_worker_drain_cost_seconds", name] for name in (busy, idle)}
    assert cost[busy] > cost[idle]
    assert loaded["kvmesh_worker_drain_order", idle] == 1
    assert loaded["kvmesh_worker_drain_order", busy] == 2
    order = {one["worker"]: one["figures"]["drain_order"] for one in overview["workers"]}
    assert order == {idle: 1, busy: 2}
    assert overview["buckets"][0]["figures"]["saturation"] > 0.0


async def test_what_is_held_wants_more_workers() -> None:
    held = AdmissionSettings(max_backlog_ms=1.0, max_wait_s=60.0)
    async with (
        live_router.engine(SLOW) as engine,
        live_router.client_of(
            live_router.router([engine.url], admission=held, scaling=ScalingOptions(backlog_s=0.01))
        ) as client,
    ):
        sent = [
            asyncio.create_task(client.post("/v1/completions", json=body(number)))
            for number in range(6)
        ]
        full = await figures_when(
            client, lambda found: found["kvmesh_wanted_workers", "held"] > 1.0
        )
        for request in sent:
            request.cancel()
        await asyncio.gather(*sent, return_exceptions=True)
        empty = await figures_when(
            client, lambda found: found["kvmesh_wanted_workers", "held"] == 0.0
        )

    assert full["kvmesh_saturation", "held"] > 1.0
    assert full["kvmesh_saturation", "backlog"] > 1.0
    assert empty["kvmesh_saturation", "held"] == 0.0


async def test_live_programs_fill_caches_while_they_pause() -> None:
    """Figures are made once a second: a context so long is kept for ten, on a slow machine, too."""
    large = MockerOptions(
        port=0, kv_events_port=0, replay_port=0, num_gpu_blocks_override=LARGE // 16
    )
    prompt = LONG * 12
    async with (
        live_router.engine(large) as one,
        live_router.engine(large) as two,
        live_router.client_of(live_router.router([one.url, two.url])) as client,
    ):
        sent = {"model": "mock", "prompt": prompt, "max_tokens": 4}
        headers = {"x-claude-code-session-id": "an-agent"}
        answer = await client.post("/v1/completions", json=sent, headers=headers)
        home = answer.headers["x-kvmesh-worker"]
        paused = await figures_when(
            client, lambda found: found["kvmesh_saturation", "programs"] > share_of(len(prompt))
        )

    assert answer.status_code == 200
    share = share_of(len(prompt) + 4)
    assert paused["kvmesh_saturation", "programs"] == pytest.approx(share)
    assert paused["kvmesh_wanted_workers", "programs"] == pytest.approx(2 * share / 0.8)
    (other,) = {"w0", "w1"} - {home}
    assert paused["kvmesh_worker_drain_order", other] == 1
    assert paused["kvmesh_worker_drain_cost_seconds", home] > 0.0


def share_of(tokens: int) -> float:
    """Return how much of two engines' caches so many tokens take; a prompt counts as its bytes."""
    return tokens / (2 * LARGE)
