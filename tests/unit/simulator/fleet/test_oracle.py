import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.weight_sets import PredictedTimeWeights
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import EngineRequest
from kvmesh_lab.mocker.model.timing import PROFILES, TimingProfile
from kvmesh_lab.report.statistics import Slo, summarize
from kvmesh_lab.simulator.fleet.engine import FleetEngine
from kvmesh_lab.simulator.fleet.oracle import Oracle, alone_ttfts_ms
from kvmesh_lab.simulator.fleet.request import FleetRequest, make_requests
from kvmesh_lab.traces.trace import TraceRequest
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE, families, fleet


def make_engine(name: str, profile: TimingProfile = PROFILES["linear"]) -> FleetEngine:
    options = EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=4096, timing=profile)
    return FleetEngine(WorkerId(name), options)


def make_request(index: int, blocks: list[int], output: int = 4) -> FleetRequest:
    trace = TraceRequest(index, 0.0, len(blocks) * BLOCK_SIZE + 1, output, tuple(blocks))
    return make_requests([trace], BLOCK_SIZE, BLOCK_SIZE)[0]


def give(engine: FleetEngine, request: FleetRequest) -> EngineRequest:
    trace = request.trace
    model = EngineRequest(str(trace.index), request.hashes, trace.input_tokens, trace.output_tokens)
    engine.model.add(model, 0.0)
    return model


def begin(engine: FleetEngine, now: float) -> float:
    engine.awake = True
    ends_s = engine.begin(now)
    assert ends_s is not None
    return ends_s


def test_the_oracle_takes_the_first_of_equal_engines_and_the_idle_one() -> None:
    engines = [make_engine("a"), make_engine("b"), make_engine("c")]
    oracle = Oracle()

    assert oracle.choose(engines, make_request(1, [1, 2]), 0.0) == 0
    give(engines[0], make_request(2, [7] * 9))
    assert oracle.choose(engines, make_request(1, [1, 2]), 0.0) == 1


def test_the_oracle_sees_what_is_cached_prefilling_and_queued() -> None:
    engines = [make_engine("a"), make_engine("b")]
    long = list(range(100, 300))
    oracle = Oracle(PredictedTimeWeights(contention=0.0))
    give(engines[1], make_request(2, long))
    assert oracle.choose(engines, make_request(1, [*long, 7]), 0.0) == 1

    ends_s = begin(engines[1], 0.0)
    assert engines[1].model.prefilling is not None
    assert oracle.choose(engines, make_request(1, [*long, 7]), ends_s) == 1
    assert oracle.choose(engines, make_request(3, [1, 2]), 0.0) == 0

    give(engines[1], make_request(4, [*long, *range(400, 450)]))
    while engines[1].model.statistics().running_requests or engines[1].model.queue:
        engines[1].end(ends_s)
        ends_s = engines[1].begin(ends_s) or ends_s
    assert oracle.choose(engines, make_request(1, [*long, 7]), ends_s) == 1


@pytest.mark.parametrize("profile", ["linear", "preble-70b"])
def test_the_oracle_counts_the_decoding_and_the_step_under_way(profile: str) -> None:
    busy, idle = make_engine("a", PROFILES[profile]), make_engine("b", PROFILES[profile])
    give(busy, make_request(2, [1, 2], output=50))
    busy.end(begin(busy, 0.0))
    begin(busy, 1.0)

    assert busy.model.decoding
    assert Oracle().choose([busy, idle], make_request(1, [8, 9]), 1.0) == 1
    oracle, asked = Oracle(PredictedTimeWeights(contention=0.0)), make_request(1, [8, 9])
    soon, late = (oracle._cost(busy, asked, now, 0.0) for now in (1.001, 1.002))
    assert soon - late == pytest.approx(1.0), "a millisecond less of the step is left"


def test_alone_a_request_takes_its_prefill_behind_all_that_was_ever_cached() -> None:
    engine = EngineOptions(block_size=BLOCK_SIZE, timing=PROFILES["linear"])
    first, again = (TraceRequest(n, 0.0, 4 * BLOCK_SIZE, 1, (1, 2, 3, 4)) for n in (0, 1))
    longer = TraceRequest(2, 0.0, 200 * BLOCK_SIZE, 1, (1, 2, *range(10, 208)))

    found = alone_ttfts_ms([first, again, longer], BLOCK_SIZE, engine)

    assert found == pytest.approx([5 + 256 * 0.05, 5 + 64 * 0.05, 2 * 5 + 198 * 64 * 0.05])


@pytest.mark.parametrize("policy", ["oracle", "kv", "kv:lmetric", "round-robin"])
def test_no_policy_answers_sooner_than_alone(policy: str) -> None:
    requests = families(60, gap_ms=25.0, output=8)

    simulated = fleet(requests, policy)
    outcomes = sorted(simulated.run(), key=lambda one: one.index)

    alone = alone_ttfts_ms(requests, BLOCK_SIZE, simulated.engines[0].model.options)
    for outcome, least in zip(outcomes, alone, strict=True):
        assert outcome.ttft_ms is not None
        assert outcome.ttft_ms >= least - 1e-6


def test_the_oracle_beats_round_robin_and_needs_no_events() -> None:
    requests = families(150, groups=30, gap_ms=25.0, output=8)

    blind = summarize(fleet(requests, "round-robin", blocks=300).run(), Slo())
    seeing = summarize(fleet(requests, "oracle", blocks=300).run(), Slo())

    assert seeing.hit_rate > blind.hit_rate + 0.1
    assert seeing.ttft_ms is not None
    assert blind.ttft_ms is not None
    assert seeing.ttft_ms.p90 < blind.ttft_ms.p90
