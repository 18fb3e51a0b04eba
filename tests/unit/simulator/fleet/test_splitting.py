"""Prefill and decode engines of a simulated fleet."""

import random

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.engine import EngineModel
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import EngineRequest, Step
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.report.statistics import Slo, summarize
from kvmesh_lab.simulator.fleet.faults import parse_fleet_faults
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.traces.trace import TraceRequest
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE, fleet

TOKENS = 40 * BLOCK_SIZE


def unrelated(
    count: int, gap_ms: float, tokens: int = TOKENS, output: int = 40
) -> list[TraceRequest]:
    return [TraceRequest(number, number * gap_ms, tokens, output, ()) for number in range(count)]


def divided(**more: object) -> FleetOptions:
    engine = EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=4096, timing=PROFILES["linear"])
    given: dict[str, object] = {"engines": 3, "prefillers": 1, "engine": engine, **more}
    return FleetOptions(**given)  # type: ignore[arg-type]  # as each test names them


def ways(simulated: SimulatedFleet) -> dict[str, int]:
    splitting = simulated.routers[0].splitting
    assert splitting is not None
    return splitting.split


def at_rest(simulated: SimulatedFleet) -> bool:
    """Return whether nothing is booked, queued or held anywhere."""
    return not any(
        router.sequences.statistics().active_requests for router in simulated.routers
    ) and not any(engine.model.statistics().active_blocks for engine in simulated.engines)


def test_a_split_request_is_prefilled_moved_and_decoded() -> None:
    options = divided(split_share=1.0, transfer_ms=3.0, transfer_ms_per_token=0.01)
    (outcome,) = (simulated := fleet(unrelated(1, 0.0), options=options)).run()

    prefill_ms = 5.0 + TOKENS * 0.05
    # The decode engine recomputes the last token in a step of its own.
    assert outcome.ttft_ms == pytest.approx(prefill_ms + 3.0 + TOKENS * 0.01 + 10.0)
    assert outcome.worker != simulated.engines[0].worker
    assert outcome.output_tokens == 40
    assert simulated.engines[0].model.statistics().generated_tokens == 1
    assert ways(simulated) == {"": 1}


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0, None])
@pytest.mark.parametrize("routers", [1, 3])
def test_whatever_is_split_all_is_answered_and_given_back(
    share: float | None, routers: int
) -> None:
    requests = unrelated(60, 20.0)
    options = divided(split_share=share, routers=routers, max_backlog_ms=50.0)
    simulated = fleet(requests, options=options)
    outcomes = list(simulated.run())
    simulated.outcomes.clear()
    simulated.advance(200)

    assert sorted(one.index for one in outcomes) == [*range(60)]
    assert not any(one.error for one in outcomes)
    assert at_rest(simulated)
    counts = [router.splitting.split for router in simulated.routers if router.splitting]
    assert sum(sum(one.values()) for one in counts) == 60
    if share == 1.0:
        assert {*counts[0]} == {""}
    if share == 0.0:
        assert "" not in counts[0]


def test_a_failing_prefill_engine_loses_no_request() -> None:
    faults = parse_fleet_faults(("w0=0.5:500",), "", 3)
    simulated = fleet(unrelated(40, 30.0), options=divided(split_share=1.0, faults=faults))
    outcomes = simulated.run()

    assert not any(one.error for one in outcomes)
    assert {one.worker for one in outcomes} <= {one.worker for one in simulated.engines[1:]}


def test_a_failing_decode_engine_has_the_prompt_computed_again() -> None:
    faults = parse_fleet_faults(("w1=1:500",), "", 3)
    simulated = fleet(unrelated(30, 60.0), options=divided(split_share=1.0, faults=faults))
    outcomes = simulated.run()

    assert not any(one.error for one in outcomes)
    assert {one.worker for one in outcomes} == {simulated.engines[2].worker}


def test_the_way_between_them_is_learned() -> None:
    options = divided(split_share=1.0, transfer_ms_per_token=0.03)
    simulated = fleet(unrelated(60, 200.0, 4000), options=options)
    simulated.run()

    splitting = simulated.routers[0].splitting
    assert splitting is not None
    assert splitting.transfers.ms_per_token == pytest.approx(0.03, rel=0.2)


def test_what_is_decided_is_no_worse_than_any_fixed_share() -> None:
    """The whole comparison is benchmarks/quality/bench_split.py."""
    rng, now = random.Random(3), 0.0
    requests: list[TraceRequest] = []
    for number in range(120):
        now += rng.expovariate(1 / 90.0)
        requests.append(TraceRequest(number, now, rng.randint(1000, 6000), 120, ()))

    def good(share: float | None) -> float:
        outcomes = fleet(requests, options=divided(split_share=share)).run()
        return summarize(outcomes, Slo(ttft_ms=1500.0, itl_ms=25.0)).goodput_share

    fixed = [good(share) for share in (0.0, 1.0)]
    assert good(None) >= max(fixed)
    assert min(fixed) < 0.5


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prefillers": 3}, "leave one to decode"),
        ({"prefillers": -1}, "prefillers is -1"),
        ({"split_share": 1.5}, "split_share is 1.5"),
        ({"transfer_ms": -1.0}, "transfer_ms is -1.0"),
        ({"transfer_ms_per_token": float("nan")}, "transfer_ms_per_token is nan"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        divided(**options)


def test_a_preempted_request_computes_its_prompt_itself() -> None:
    engine = EngineModel(EngineOptions(block_size=4, num_gpu_blocks=12, timing=PROFILES["linear"]))
    first = EngineRequest("first", [], 12, 30)
    moved = EngineRequest("moved", [], 16, 20)
    moved.received = True
    engine.add(first, 0.0)
    engine.add(moved, 0.0)

    steps: list[Step] = []
    while (step := engine.step(0.0)) is not None:
        steps.append(step)

    assert (steps[0].prefill_tokens, len(steps[0].prefilled)) == (12, 2)
    assert moved.preemptions
    assert sum(step.prefill_tokens for step in steps) > 12 + 16
    assert (first.generated, moved.generated) == (30, 20)
