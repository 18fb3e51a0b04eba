"""What routing by cache gains over round robin, on simulated engines in virtual time."""

from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.quality.workloads import related_queries, shared_prompt
from kvmesh.mocker.model.timing import DYNAMO_CAPACITY_TOKENS
from kvmesh.replay.plan import TraceSlice
from kvmesh.report.outcome import RequestOutcome
from kvmesh.simulator.load import spread
from kvmesh.simulator.options import SimulateOptions
from kvmesh.simulator.slices import Setting, Simulator

REQUESTS = 640
ENGINES = 4


def play(
    trace: TraceSlice, load: float, *, profile: str
) -> dict[str, tuple[list[RequestOutcome], float]]:
    """Return outcomes and utilisation spread by policy, at `load` of what round robin bears."""
    options = SimulateOptions(
        Path("generated"),
        engines=ENGINES,
        timing_profile=profile,
        blocks=DYNAMO_CAPACITY_TOKENS // trace.block_size,
    )
    simulator = Simulator(options, trace)
    saturation = simulator.saturation_speedup(lambda _: None)
    played = {}
    for policy in ("round-robin", "kv"):
        fleet = simulator.play(policy, Setting("", load * saturation), lambda _: None)
        assert len(fleet.outcomes) == REQUESTS
        played[policy] = (fleet.outcomes, spread(fleet.busy_s))
    return played


@pytest.fixture(scope="module")
def played() -> dict[str, tuple[list[RequestOutcome], float]]:
    trace = TraceSlice("related queries", 64, tuple(related_queries(REQUESTS)))
    return play(trace, 1.0, profile="preble-70b")


def test_the_first_token_comes_three_times_sooner_where_round_robin_is_at_its_limit(
    played: dict[str, tuple[list[RequestOutcome], float]],
) -> None:
    ttft_ms = {
        policy: fmean(one.ttft_ms or 0.0 for one in outcomes)
        for policy, (outcomes, _) in played.items()
    }

    assert ttft_ms["round-robin"] >= 3.0 * ttft_ms["kv"]


def test_requests_take_half_the_time_where_round_robin_is_at_its_limit(
    played: dict[str, tuple[list[RequestOutcome], float]],
) -> None:
    latency_ms = {
        policy: fmean(one.latency_ms for one in outcomes)
        for policy, (outcomes, _) in played.items()
    }

    assert latency_ms["round-robin"] >= 2.0 * latency_ms["kv"]


@pytest.mark.parametrize("load", [0.7, 1.0])
def test_hot_prompts_keep_every_engine_as_busy_as_the_others(load: float) -> None:
    trace = TraceSlice("shared prompts", 64, tuple(shared_prompt(REQUESTS)))
    _, busy_spread = play(trace, load, profile="dynamo")["kv"]

    assert busy_spread <= 0.2
