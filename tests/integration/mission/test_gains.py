"""What routing by cache gains over round robin, on simulated engines in virtual time."""

import random
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.quality.workloads import related_queries, shared_prompt
from kvmesh.core.routing.decision import RouterOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import DYNAMO_CAPACITY_TOKENS, PROFILES
from kvmesh_lab.replay.plan import TraceSlice
from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import FleetRequest, prompt_hashes
from kvmesh_lab.simulator.load import spread
from kvmesh_lab.simulator.options import SimulateOptions
from kvmesh_lab.simulator.slices import Setting, Simulator
from kvmesh_lab.traces.trace import TraceRequest

REQUESTS = 640
ENGINES = 4


def play(
    trace: TraceSlice, load: float, policies: Sequence[str], *, profile: str
) -> dict[str, tuple[list[RequestOutcome], float]]:
    """Return outcomes and utilisation spread by policy, at `load` of what round robin bears."""
    options = SimulateOptions(
        Path("generated"),
        engines=ENGINES,
        timing_profile=profile,
        tell_output_lengths=True,
        blocks=DYNAMO_CAPACITY_TOKENS // trace.block_size,
    )
    simulator = Simulator(options, trace)
    saturation = simulator.saturation_speedup(lambda _: None)
    played = {}
    for policy in policies:
        fleet = simulator.play(policy, Setting("", load * saturation), lambda _: None)
        assert len(fleet.outcomes) == REQUESTS
        played[policy] = (fleet.outcomes, spread(fleet.busy_s))
    return played


@pytest.fixture(scope="module")
def played() -> dict[str, tuple[list[RequestOutcome], float]]:
    trace = TraceSlice("related queries", 64, tuple(related_queries(REQUESTS)))
    return play(trace, 1.0, ("round-robin", "kv"), profile="preble-70b")


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
    _, busy_spread = play(trace, load, ["kv"], profile="dynamo")["kv"]

    assert busy_spread <= 0.2


def one_prompt(requests: int, clients: int, pause_ms: float) -> list[FleetRequest]:
    """Return conversations of four turns behind one system prompt, of so many clients at a time."""
    rng, blocks = random.Random(1), count(1)
    system = [next(blocks) for _ in range(48)]
    lanes: list[list[TraceRequest]] = [[] for _ in range(clients)]
    conversation: list[int] = []
    for index in range(requests):
        lane = lanes[index // 4 % clients]
        conversation = conversation if index % 4 else list(system)
        conversation = [*conversation, *(next(blocks) for _ in range(rng.randint(3, 8)))]
        lane.append(
            TraceRequest(
                index=index,
                timestamp_ms=300.0 * (index // 4 % clients),
                input_tokens=64 * len(conversation),
                output_tokens=rng.randint(50, 250),
                block_ids=tuple(conversation),
                delay_ms=rng.random() * 2.0 * pause_ms,
            )
        )
    found: list[FleetRequest] = []
    for lane in lanes:
        for number, trace in enumerate(lane):
            following = () if trace is lane[-1] else (len(found) + 1,)
            hashes = prompt_hashes(trace, 64, 64)
            found.append(FleetRequest(trace, hashes, is_first=not number, following=following))
    return found


@pytest.mark.parametrize("profile", ["dynamo", "preble-70b"])
@pytest.mark.parametrize("pause_ms", [0.0, 1000.0])
def test_no_engine_is_idle_behind_one_system_prompt(profile: str, pause_ms: float) -> None:
    engine = EngineOptions(block_size=64, num_gpu_blocks=8192, timing=PROFILES[profile])
    options = FleetOptions(engines=ENGINES, engine=engine)
    requests = one_prompt(240, 12, pause_ms)

    fleet = SimulatedFleet(options, RouterOptions(block_size=64), requests, random.Random(1))
    fleet.run()

    assert spread(fleet.busy_s) <= 0.2
