"""The simulator's engine against a live `kvmesh mocker`: the same slice through both."""

import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.replay.command import run_replay
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.replay.plan import load_slice
from kvmesh_lab.report.statistics import RunSummary, Slo, summarize
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from tests.integration.tools.mocker_process import mocker_process

pytestmark = [pytest.mark.integration, pytest.mark.chaos]

TRACE = Path(__file__).parents[2] / "fixtures" / "traces" / "mooncake_conversation_80_b512.jsonl"
BLOCK_SIZE = 512
BLOCKS = 2048
SPEED = 0.5
"""Engines at half speed: what a busy machine adds to each step counts half."""


def mocker() -> AbstractAsyncContextManager[str]:
    """Serve one pretend engine in a process of its own."""
    return mocker_process(
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=BLOCKS,
        speedup_ratio=SPEED,
        max_model_len=200_000,
    )


def simulate(options: ReplayOptions) -> RunSummary:
    trace = load_slice(options)
    engine = EngineOptions(
        block_size=BLOCK_SIZE,
        num_gpu_blocks=BLOCKS,
        timing=PROFILES["dynamo"],
        speedup_ratio=SPEED,
    )
    fleet = SimulatedFleet(
        FleetOptions(engines=1, engine=engine),
        parse_policy("round-robin", BLOCK_SIZE),
        make_requests(trace.requests, trace.block_size, BLOCK_SIZE),
        random.Random(0),
    )
    return summarize(fleet.run(), Slo())


async def test_a_live_engine_hits_and_answers_as_the_simulated_one(
    request: pytest.FixtureRequest,
) -> None:
    # What is timed wants a machine of its own.
    alone = "chaos" in request.config.getoption("-m")
    count = 40 if alone else 16
    async with mocker() as url:
        options = ReplayOptions(
            TRACE,
            url=url,
            endpoint="completions",
            prompt_unit="token-ids",
            requests=count,
            speedup=0.25,
            progress=False,
        )
        live = (await run_replay(options)).runs[0].summary

    simulated = simulate(options)

    assert live.ttft_ms is not None
    assert simulated.ttft_ms is not None
    print(  # noqa: T201  the figures, with -s
        f"hit rate {live.hit_rate:.2%} live, {simulated.hit_rate:.2%} simulated; TTFT p50 "
        f"{live.ttft_ms.p50:.0f} and {simulated.ttft_ms.p50:.0f} ms, p90 {live.ttft_ms.p90:.0f} "
        f"and {simulated.ttft_ms.p90:.0f} ms"
    )
    assert live.succeeded == simulated.succeeded == count
    assert live.hit_rate == pytest.approx(simulated.hit_rate, abs=0.01)
    assert live.ttft_ms.p50 > 0.9 * simulated.ttft_ms.p50
    if alone:
        assert live.ttft_ms.p50 < 1.1 * simulated.ttft_ms.p50
