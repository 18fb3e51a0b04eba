"""Real, unchanged engines under eviction: what routers predict is what the engine reuses.

Run by `make test-engines`, which builds the environments first; the table is in its output.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvmesh.core.engines.diagnosis import Level
from kvmesh.core.engines.kv_events.cache import EngineCache
from tests.engines.capture import capture, clear_cache, facts_of, save
from tests.engines.engine import (
    SGLANG_BLOCK_SIZE,
    VLLM_BLOCK_SIZE,
    Engine,
    sglang_engine,
    vllm_engine,
)
from tests.engines.engine_venv import SGLANG, VLLM
from tests.engines.processes import free_ports
from tests.engines.stack import Plan, Stack, running

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

TOKENS = 3104
"""Cached at most, by each engine."""

REQUESTS, REQUESTS_AFTER_A_BREAK = 320, 40
GOAL = 0.99


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def stack(
    request: pytest.FixtureRequest,
    model: Path,
    report: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    python: Path = request.getfixturevalue(request.param)
    directory = tmp_path_factory.mktemp(request.param)
    vllm = request.param == "vllm"
    size = VLLM_BLOCK_SIZE if vllm else SGLANG_BLOCK_SIZE
    start, version = (vllm_engine, VLLM.version) if vllm else (sglang_engine, SGLANG.version)
    blocks = TOKENS // size
    engines: dict[str, Engine] = {}
    ports = free_ports(6)
    for number in range(2):
        name = f"{request.param}-{number}"
        three = (ports[number], ports[2 + number], ports[4 + number])
        engines[name] = start(python, model, three, directory / f"{name}.log", blocks=blocks)
    plan = Plan(f"{request.param} {version}", engines, list(engines), model, size, blocks)
    with running(directory, plan, report) as stack:
        yield stack


def test_predictions_are_what_the_engine_reuses_under_eviction(stack: Stack) -> None:
    share = stack.measure("sequential, under eviction", REQUESTS)
    # SGLang stores what it generated when the request is over.
    stack.mesh.settle()

    held, blocks = stack.mesh.blocks(), stack.plan.blocks
    assert share >= GOAL
    assert held[0] == held[1]
    assert all(blocks // 2 < count <= blocks for count in held[0].values())


def test_a_sidecar_killed_and_started_again_replays_the_engines_history(stack: Stack) -> None:
    stack.mesh.settle()
    before = stack.mesh.blocks()
    worker = stack.plan.workers[0]
    sidecar = stack.mesh.sidecars[worker]

    def restart() -> None:
        sidecar.kill()
        sidecar.start()

    stack.mesh.wait_for_new_epoch(worker, restart)
    stack.mesh.settle()

    assert stack.mesh.blocks() == before
    assert stack.measure("sidecar killed, late join by replay", REQUESTS_AFTER_A_BREAK) >= GOAL


def test_a_router_killed_and_started_again_knows_what_it_knew(stack: Stack) -> None:
    stack.mesh.settle()
    before = stack.mesh.blocks()[1]

    stack.mesh.routers[0].kill()
    stack.mesh.routers[0].start()
    stack.mesh.wait_for_trust(stack.plan.workers)
    stack.mesh.settle()

    assert stack.mesh.blocks() == [before, before]
    assert stack.measure("router killed", REQUESTS_AFTER_A_BREAK) >= GOAL


def test_a_cleared_cache_is_foreseen_to_be_empty(stack: Stack) -> None:
    worker = stack.plan.workers[0]

    clear_cache(stack.plan.engines[worker].url)

    assert stack.measure("one cache cleared", REQUESTS_AFTER_A_BREAK) >= GOAL


def test_every_byte_of_the_history_is_understood_and_leads_to_the_same_blocks(
    stack: Stack, tmp_path: Path
) -> None:
    stack.mesh.settle()
    for worker, held in stack.mesh.blocks()[0].items():
        [source] = asyncio.run(facts_of(stack.plan.engines[worker].url)).endpoints
        batches = capture(source.replay)
        save(batches, tmp_path / f"{worker}.jsonl")
        cache = EngineCache(stack.plan.block_size)
        for batch in batches:
            cache.take(batch.payload)

        statistics = cache.statistics()
        print(f"{worker}: {len(batches)} batches in {tmp_path}")  # noqa: T201 - to refresh fixtures
        assert (statistics.unknown_fields, statistics.unknown_tags) == (0, 0)
        assert statistics.visible_blocks == held


def test_an_engine_killed_and_started_again_holds_nothing(stack: Stack) -> None:
    engine = stack.plan.engines[stack.plan.workers[1]]

    engine.kill()
    engine.start()
    engine.wait()
    stack.mesh.wait_for_trust(stack.plan.workers)

    assert stack.measure("engine killed", REQUESTS_AFTER_A_BREAK) >= GOAL


def test_the_doctor_finds_nothing_wrong(stack: Stack) -> None:
    findings = stack.examine(stack.plan.workers[0])

    assert [one for one in findings if one.level is not Level.OK] == []
    assert {"tokenizer", "reuse", "end to end"} <= {one.topic for one in findings}
