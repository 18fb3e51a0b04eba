"""Real, unchanged vLLM under eviction: what routers predict is what the engine reuses.

Run by `make test-engines`, which builds the environment first; the table is in its output.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvmesh.app.doctor import DoctorSettings, examine
from kvmesh.core.diagnosis import Level
from tests.engines.processes import free_ports
from tests.engines.stack import Stack, running
from tests.engines.vllm_engine import VllmEngine

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

BLOCKS = 97
"""Of each engine; vLLM keeps one for itself."""

REQUESTS, REQUESTS_AFTER_A_BREAK = 320, 40
GOAL = 0.99


@pytest.fixture(scope="module")
def stack(python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("vllm")
    ports = free_ports(6)
    engines = {
        f"vllm-{number}": VllmEngine(
            python,
            model,
            (ports[number], ports[2 + number], ports[4 + number]),
            directory / f"engine-{number}.log",
            blocks=BLOCKS,
        )
        for number in range(2)
    }
    with running(directory, model, engines, list(engines)) as stack:
        yield stack


def test_predictions_are_what_vllm_reuses_under_eviction(stack: Stack) -> None:
    share = stack.measure("sequential, under eviction", REQUESTS)

    held = stack.mesh.blocks()
    assert share >= GOAL
    assert held[0] == held[1]
    assert all(BLOCKS // 2 < blocks < BLOCKS for blocks in held[0].values())


def test_a_sidecar_killed_and_started_again_replays_the_engines_history(stack: Stack) -> None:
    before = stack.mesh.blocks()
    sidecar = stack.mesh.sidecars["vllm-0"]

    def restart() -> None:
        sidecar.kill()
        sidecar.start()

    stack.mesh.wait_for_new_epoch("vllm-0", restart)
    stack.mesh.settle()

    assert stack.mesh.blocks() == before
    assert stack.measure("sidecar killed, late join by replay", REQUESTS_AFTER_A_BREAK) >= GOAL


def test_a_router_killed_and_started_again_knows_what_it_knew(stack: Stack) -> None:
    before = stack.mesh.blocks()[1]

    stack.mesh.routers[0].kill()
    stack.mesh.routers[0].start()
    stack.mesh.wait_for_trust(stack.workers)
    stack.mesh.settle()

    assert stack.mesh.blocks() == [before, before]
    assert stack.measure("router killed", REQUESTS_AFTER_A_BREAK) >= GOAL


def test_an_engine_killed_and_started_again_holds_nothing(stack: Stack) -> None:
    engine = stack.engines["vllm-1"]

    engine.kill()
    engine.start()
    engine.wait()
    stack.mesh.wait_for_trust(stack.workers)

    assert stack.measure("engine killed", REQUESTS_AFTER_A_BREAK) >= GOAL


def test_the_doctor_finds_nothing_wrong(stack: Stack) -> None:
    findings = asyncio.run(
        examine(
            DoctorSettings(
                engine_url=stack.engines["vllm-0"].url,
                router_url=stack.mesh.router_urls[1],
                tokenizer=stack.model,
            )
        )
    )

    assert [one for one in findings if one.level is not Level.OK] == []
    assert {"tokenizer", "reuse", "end to end"} <= {one.topic for one in findings}
