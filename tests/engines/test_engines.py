"""Real, unchanged engines under eviction: what routers predict is what the engine reuses.

Run by `make test-engines`, which builds the environments first; the tables are in its output and
in docs/measured/reuse.md.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.seen import Level
from tests.engines.capture import capture, clear_cache, facts_of, save
from tests.engines.conftest import interpreter
from tests.engines.reuse.kinds import KINDS
from tests.engines.reuse.report import Report
from tests.engines.stack import Stack, plan_of, running

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

REQUESTS, REQUESTS_AFTER_A_BREAK, REQUESTS_IN_FLIGHT, REQUESTS_OF_A_FORM = 120, 24, 96, 6


@pytest.fixture(scope="module", params=KINDS)
def stack(
    request: pytest.FixtureRequest, report: Report, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    kind = KINDS[request.param]
    python = interpreter(request, kind.venv)
    directory = tmp_path_factory.mktemp("engines")
    with running(directory, plan_of(kind, python, directory), report) as stack:
        yield stack


@pytest.fixture(scope="module", params=["Qwen3", "SGLang"])
def ample_stack(
    request: pytest.FixtureRequest, report: Report, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Engines whose caches hold all that is sent."""
    kind = KINDS[request.param]
    python = interpreter(request, kind.venv)
    directory = tmp_path_factory.mktemp("ample")
    ample = msgspec.structs.replace(kind, name=f"{kind.name}, ample cache", blocks=10 * kind.blocks)
    with running(directory, plan_of(ample, python, directory), report) as stack:
        yield stack


def test_predictions_are_what_the_engine_reuses_under_eviction(stack: Stack) -> None:
    share = stack.measure("mesh, under eviction", REQUESTS)
    # SGLang stores what it generated when the request is over.
    stack.mesh.settle()

    held = stack.mesh.blocks()
    least, most = stack.plan.held
    assert share == 1.0
    assert held[0] == held[1]
    assert all(least <= count <= most for count in held[0].values())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_streams_count_and_who_does_not_ask_for_usage_gets_none(stack: Stack, path: str) -> None:
    http, mesh = stack.mesh.http, stack.mesh
    text = f"A stream of {path} that says what it reused. " * 20
    prompt: dict[str, object] = {"prompt": text}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": text}]}
    body = {"model": "tiny", "max_tokens": 4, "stream": True, "temperature": 0, **prompt}

    def accesses() -> int:
        pages = [mesh.status(number)["accesses"] for number in range(len(mesh.routers))]
        return sum(one["told"] for page in pages for one in page.values())

    before = accesses()
    quiet = http.post(mesh.front_url + path, json=body).text
    asked = http.post(
        mesh.front_url + path, json={**body, "stream_options": {"include_usage": True}}
    ).text

    assert '"usage":{' not in quiet
    assert quiet.endswith("data: [DONE]\n\n")
    assert asked.count('"usage":{') == 1
    assert accesses() == before + 2


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
    assert stack.measure("mesh, sidecar killed", REQUESTS_AFTER_A_BREAK) == 1.0


def test_a_router_killed_and_started_again_knows_what_it_knew(stack: Stack) -> None:
    stack.mesh.settle()
    before = stack.mesh.blocks()[1]

    stack.mesh.routers[0].kill()
    stack.mesh.routers[0].start()
    stack.mesh.wait_for_trust(stack.plan.workers)
    stack.mesh.settle()

    assert stack.mesh.blocks() == [before, before]
    assert stack.measure("mesh, router killed", REQUESTS_AFTER_A_BREAK) == 1.0


def test_a_router_alone_reads_the_history_and_predicts_as_well(stack: Stack) -> None:
    stack.alone.start()
    stack.alone.wait_for_trust()

    assert stack.measure("alone, late join by replay", REQUESTS // 2, stack.alone) == 1.0


def test_a_router_alone_killed_and_started_again_predicts_as_well(stack: Stack) -> None:
    stack.alone.process.kill()
    stack.alone.process.start()
    stack.alone.wait_for_trust()

    assert stack.measure("alone, router killed", REQUESTS_AFTER_A_BREAK, stack.alone) == 1.0


def test_a_cleared_cache_is_foreseen_to_be_empty(stack: Stack) -> None:
    worker = stack.plan.workers[0]

    clear_cache(stack.plan.engines[worker].url)

    assert stack.measure("mesh, one cache cleared", REQUESTS_AFTER_A_BREAK) == 1.0


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


def test_every_form_of_a_request_is_foretold_or_left_out_with_its_reason(stack: Stack) -> None:
    said = [stack.measure_form(form, REQUESTS_OF_A_FORM) for form in stack.forms()]

    assert [one for one in said if one] == []


@pytest.mark.parametrize("in_flight", [8, 16, 32])
def test_most_predictions_are_right_with_many_requests_in_flight(
    stack: Stack, in_flight: int
) -> None:
    within = stack.measure_in_flight(REQUESTS_IN_FLIGHT, in_flight)
    stack.mesh.settle()

    held = stack.mesh.blocks()
    assert held[0] == held[1]
    assert within > 0.5


def test_an_engine_killed_and_started_again_holds_nothing(stack: Stack) -> None:
    engine = stack.plan.engines[stack.plan.workers[1]]

    engine.kill()
    engine.start()
    engine.wait()
    stack.mesh.wait_for_trust(stack.plan.workers)
    stack.alone.wait_for_trust()

    assert stack.measure("mesh, engine killed", REQUESTS_AFTER_A_BREAK) == 1.0
    assert stack.measure("alone, engine killed", REQUESTS_AFTER_A_BREAK, stack.alone) == 1.0


def test_many_in_flight_reuse_what_one_at_a_time_reuses(ample_stack: Stack) -> None:
    stack = ample_stack
    stack.begin_anew()
    reusable = stack.reusable(REQUESTS_IN_FLIGHT)
    for in_flight in (8, 16, 32):
        stack.begin_anew()
        within = stack.measure_in_flight(REQUESTS_IN_FLIGHT, in_flight, reusable)
        stack.mesh.settle()

        held = stack.mesh.blocks()
        assert held[0] == held[1]
        assert within > 0.8


def test_the_doctor_finds_nothing_wrong(stack: Stack) -> None:
    findings = stack.examine(stack.plan.workers[0])

    assert [one for one in findings if one.level is not Level.OK] == []
    assert {"tokenizer", "reuse", "end to end"} <= {one.topic for one in findings}
