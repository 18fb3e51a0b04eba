"""Simulated engines that hold few LoRA adapters: routers that know which ones send there."""

import random

import pytest

from kvmesh.core.members.worker_info import NO_ADAPTERS
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests, prompt_hashes
from kvmesh_lab.traces.trace import TraceRequest
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE, fleet

OPTIONS = FleetOptions(
    engines=4,
    engine=EngineOptions(
        block_size=BLOCK_SIZE, num_gpu_blocks=4096, max_loras=3, lora_load_ms=400.0
    ),
)


def adapters(count: int, requests: int = 160, gap_ms: float = 150.0) -> list[TraceRequest]:
    """Requests for adapters in turn, drawn with a seed; prompts have nothing in common."""
    rng = random.Random(5)
    return [
        TraceRequest(
            number, number * gap_ms, 6 * BLOCK_SIZE, 8, (), lora=f"adapter {rng.randrange(count)}"
        )
        for number in range(requests)
    ]


def mean_ttft_ms(outcomes: list[RequestOutcome]) -> float:
    return sum(one.ttft_ms or 0.0 for one in outcomes) / len(outcomes)


def test_what_engines_tell_of_their_adapters_saves_most_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = adapters(12)
    reported = fleet(requests, options=OPTIONS)
    outcomes = reported.run()
    monkeypatch.setattr("kvmesh_lab.simulator.fleet.engine.AdapterReport", lambda *_: NO_ADAPTERS)
    untold = fleet(requests, options=OPTIONS)
    blind = untold.run()

    loads = [
        sum(engine.model.adapters.loads for engine in each.engines) for each in (reported, untold)
    ]
    assert loads[0] < 0.2 * loads[1]
    assert mean_ttft_ms(outcomes) < 0.3 * mean_ttft_ms(blind)


def test_prompts_of_different_adapters_share_no_block() -> None:
    one, two, plain = (
        TraceRequest(0, 0.0, 2 * BLOCK_SIZE, 1, (1, 2), lora=name) for name in ("x", "y", "")
    )

    hashes = [prompt_hashes(each, BLOCK_SIZE, BLOCK_SIZE) for each in (one, two, plain)]

    assert len({block for each in hashes for block in each}) == 6
    (made,) = make_requests([one], BLOCK_SIZE, BLOCK_SIZE)
    assert made.hashes == hashes[0]
