"""Sessions over two live engines behind a real router, and the same ones in `kvmesh simulate`."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.replay.command import run_replay
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.replay.plan import load_slice, program_facts
from kvmesh_lab.report.statistics import RunSummary, Slo, summarize
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from tests.integration.support.live_router import router
from tests.integration.tools.mocker_process import mocker_process

pytestmark = [pytest.mark.integration, pytest.mark.chaos]

BLOCK = 64
BLOCKS = 320
"""Some 20k tokens an engine: nearly all of the sessions, as long as they get, fit the fleet. Where
much less fits, which of them thrash is chance: two live runs differ by 0.05 in their hit rates."""

PROFILE = "preble-70b"
HIT_TOLERANCE = 0.05
TTFT_TOLERANCE = 0.2


def write_trace(path: Path, sessions: int, turns: int) -> Path:
    """Write sessions of steadily growing prompts, one of them with a sub-agent."""
    rng = random.Random(7)
    lines = []
    for number in range(sessions):
        shared, grown = 0, []
        for turn in range(turns):
            tokens = shared + rng.randrange(256, 768)
            pause_s = round(rng.uniform(0.3, 1.2), 2) if turn else 0.0
            grown.append([pause_s, tokens, rng.randrange(4, 12), shared, 0.5, "tool_use"])
            shared = tokens
        lines.append(
            {
                "session": number,
                "start_s": 0.4 * number,
                "common": 0,
                "parent": 0 if number == sessions - 1 else None,
                "turns": grown,
            }
        )
    path.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))
    return path


@pytest.fixture
async def fleet_url() -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                mocker_process(
                    block_size=BLOCK,
                    num_gpu_blocks_override=BLOCKS,
                    max_model_len=BLOCK * BLOCKS,
                    timing_profile=PROFILE,
                )
            )
            for _ in range(2)
        ]
        yield await stack.enter_async_context(router(engines))


def simulate(options: ReplayOptions) -> RunSummary:
    trace = load_slice(options)
    engine = EngineOptions(block_size=BLOCK, num_gpu_blocks=BLOCKS, timing=PROFILES[PROFILE])
    fleet = SimulatedFleet(
        FleetOptions(engines=2, engine=engine, kv_events=False),
        parse_policy("kv", BLOCK),
        make_requests(trace.requests, trace.block_size, BLOCK),
        random.Random(0),
    )
    return summarize(fleet.run(), Slo(), programs=program_facts(trace))


async def test_sessions_fare_live_as_they_do_in_the_simulator(
    fleet_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # What is timed wants a machine of its own.
    alone = "chaos" in request.config.getoption("-m")
    sessions, turns = (9, 10) if alone else (5, 5)
    options = ReplayOptions(
        write_trace(tmp_path / "sessions.jsonl", sessions, turns),
        url=fleet_url,
        endpoint="completions",
        prompt_unit="token-ids",
        trace_block_size=BLOCK,
        progress=False,
    )

    live = (await run_replay(options)).runs[0].summary
    simulated = simulate(options)

    assert live.ttft_ms is not None
    assert simulated.ttft_ms is not None
    assert live.programs is not None
    assert simulated.programs is not None
    print(  # noqa: T201  the figures, with -s
        f"hit rate {live.hit_rate:.2%} live, {simulated.hit_rate:.2%} simulated; TTFT p50 "
        f"{live.ttft_ms.p50:.0f} and {simulated.ttft_ms.p50:.0f} ms, p90 {live.ttft_ms.p90:.0f} "
        f"and {simulated.ttft_ms.p90:.0f} ms; prefill / infinite cache "
        f"{live.programs.prefill_ratio:.2f} and {simulated.programs.prefill_ratio:.2f}"
    )
    assert live.succeeded == simulated.succeeded == sessions * turns
    assert live.programs.finished == simulated.programs.finished == sessions - 1
    assert live.programs.completion_s is not None
    assert simulated.programs.completion_s is not None
    assert live.hit_rate == pytest.approx(simulated.hit_rate, abs=HIT_TOLERANCE)
    assert live.programs.completion_s.p50 > 0.9 * simulated.programs.completion_s.p50
    if alone:
        assert live.ttft_ms.p50 == pytest.approx(simulated.ttft_ms.p50, rel=TTFT_TOLERANCE)
        assert live.programs.completion_s.p50 < 1.1 * simulated.programs.completion_s.p50
