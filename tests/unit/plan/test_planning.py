"""What is learned of a fleet from its log: played on its own requests, it is that fleet again."""

import random

import msgspec
import pytest

from kvmesh.core.insight.fleet_facts import fleet_facts
from kvmesh.core.insight.weight_search import LoggedFleet
from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.plan.judge import Load, Run
from kvmesh_lab.plan.kinds import Kind
from kvmesh_lab.plan.planning import Basis, learn_engine, least_engines, new_judge
from kvmesh_lab.plan.targets import parse_targets
from kvmesh_lab.plan.workload import Went, Workload
from kvmesh_lab.replay.plan import TraceSlice
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.traces.trace import TraceRequest
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE, families

ENGINES = 3


def served(requests: list[TraceRequest], engine: EngineOptions) -> Workload:
    """Return the log that a router over such engines would keep of them."""
    fleet = SimulatedFleet(
        FleetOptions(engines=ENGINES, engine=engine),
        parse_policy("kv", BLOCK_SIZE),
        make_requests(requests, BLOCK_SIZE, BLOCK_SIZE),
        random.Random(0),
    )
    went = {
        one.index: Went(one.cached_tokens, one.ttft_ms, one.mean_itl_ms(), one.latency_ms)
        for one in fleet.run()
    }
    facts = fleet_facts(fleet.routers[0].scheduler, 1, fleet.now)
    return Workload(
        TraceSlice("log", BLOCK_SIZE, tuple(requests)), went, LoggedFleet("kv", 1.0, facts)
    )


def played(workload: Workload, engine: EngineOptions, engines: int) -> Run:
    basis = Basis(FleetOptions(engine=engine), (Kind("one", engine),), "kv")
    judge = new_judge(workload, basis, parse_targets("ttft=1000s"), Load(seeds=1))
    return judge.runs((engines,))[0]


@pytest.mark.parametrize("profile", ["dynamo", "preble-70b"])
def test_a_fleet_that_is_learned_from_its_log_answers_as_it_did(profile: str) -> None:
    """Under load what routers learn of a token's prefill holds the waiting of the others."""
    engine = EngineOptions(
        block_size=BLOCK_SIZE, num_gpu_blocks=1500, timing=PROFILES[profile], speedup_ratio=0.5
    )
    workload = served(families(300, shared=60, gap_ms=90.0, output=120), engine)

    found = learn_engine(workload, "kv")

    for engines, allowed in ((ENGINES, 0.1), (ENGINES - 1, 0.2), (ENGINES + 2, 0.2)):
        known, learned = (played(workload, one, engines).times for one in (engine, found))
        # At p90 of TTFT hits end and misses begin: one request more changes it fivefold.
        assert learned["ttft"][2] == pytest.approx(known["ttft"][2], rel=allowed)
        assert learned["tpot"][1] == pytest.approx(known["tpot"][1], rel=allowed)
        assert learned["e2e"][1] == pytest.approx(known["e2e"][1], rel=allowed)


def test_a_log_without_times_teaches_what_routers_learned() -> None:
    engine = EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=1500)
    workload = served(families(60), engine)
    blank = msgspec.structs.replace(workload, went={0: Went()})

    found = learn_engine(blank, "kv")

    assert workload.fleet is not None
    assert found.timing.prefill_per_token == workload.fleet.fleet.prefill_token_ms


def test_half_the_speed_needs_twice_the_engines() -> None:
    engine = EngineOptions(block_size=BLOCK_SIZE)
    slow = msgspec.structs.replace(engine, speedup_ratio=0.5)
    workload = Workload(TraceSlice("trace", BLOCK_SIZE, tuple(families(60))), {})

    least = least_engines(workload, engine, Load())

    assert least_engines(workload, slow, Load()) == pytest.approx(2.0 * least)
    assert least_engines(workload, engine, Load(3.0)) == pytest.approx(3.0 * least)
