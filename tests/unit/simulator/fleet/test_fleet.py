import random
from collections import Counter

import msgspec
import pytest

from kvmesh.core.admission.queue import QueuePolicy
from kvmesh.core.cost.targets import Targets
from kvmesh.core.routing.decision import RouterOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.report.statistics import Slo, summarize
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.traces.trace import TraceRequest, infinite_cache_hit_rate
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE, families, fleet

POLICIES = ("round-robin", "random", "kv", "kv:sglang")


def counts(outcomes: list[RequestOutcome]) -> list[int]:
    return [share.requests for share in summarize(outcomes, Slo()).workers]


def longest_queue(simulated: SimulatedFleet) -> int:
    """Play everything; return the most requests that ever waited at one engine."""
    longest = 0
    while simulated.advance(1):
        longest = max(longest, *(len(engine.model.queue) for engine in simulated.engines))
    return longest


def settle(simulated: SimulatedFleet) -> None:
    """Let the last bookings reach the peers: reports keep time going."""
    simulated.outcomes.clear()
    simulated.advance(50)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("routers", [1, 3])
def test_the_same_seed_gives_the_same_outcomes(policy: str, routers: int) -> None:
    requests = families(40)

    first = fleet(requests, policy, routers=routers, seed=7).run()
    second = fleet(requests, policy, routers=routers, seed=7).run()

    assert first == second


@pytest.mark.parametrize("profile", ["dynamo", "preble-70b", "instant"])
@pytest.mark.parametrize(("routers", "blocks", "backlog_ms"), [(1, 90, 0.0), (3, 4096, 40.0)])
def test_steps_at_once_bring_what_they_would_bring_one_by_one(
    profile: str, routers: int, blocks: int, backlog_ms: float
) -> None:
    requests = families(60, gap_ms=25.0)
    options = FleetOptions(
        engines=3,
        routers=routers,
        engine=EngineOptions(
            block_size=BLOCK_SIZE, num_gpu_blocks=blocks, timing=PROFILES[profile], max_num_seqs=4
        ),
        max_backlog_ms=backlog_ms,
    )
    at_once, one_by_one = fleet(requests, options=options), fleet(requests, options=options)
    for engine in one_by_one.engines:
        engine.strides = False

    assert at_once.run() == one_by_one.run()

    for fast, slow in zip(at_once.engines, one_by_one.engines, strict=True):
        assert (fast.busy_s, fast.step_number) == (slow.busy_s, slow.step_number)
        assert fast.model.statistics() == slow.model.statistics()


def test_a_request_joins_after_the_step_under_way_not_after_the_whole_run() -> None:
    requests = [
        TraceRequest(0, 0.0, 2 * BLOCK_SIZE, 200, ()),
        TraceRequest(1, 300.0, 2 * BLOCK_SIZE, 200, ()),
    ]

    first, second = fleet(requests, engines=1, profile="linear").run()

    assert first.index == 0
    assert second.ttft_ms == pytest.approx(10.0 + 5.0 + 2 * BLOCK_SIZE * 0.05 + 10.0, abs=10.0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("routers", [1, 4])
def test_every_request_ends_once_and_every_booking_is_released(policy: str, routers: int) -> None:
    requests = families(50, gap_ms=20.0)
    simulated = fleet(requests, policy, routers=routers, blocks=90)

    outcomes = list(simulated.run())
    settle(simulated)

    assert sorted(one.index for one in outcomes) == list(range(50))
    assert not any(one.error for one in outcomes)
    for outcome in outcomes:
        assert outcome.output_tokens == requests[outcome.index].output_tokens
        assert len(outcome.itl_ms) == outcome.output_tokens - 1
        assert outcome.ttft_ms is not None
        assert outcome.latency_ms == pytest.approx(outcome.ttft_ms + sum(outcome.itl_ms))
    for router in simulated.routers:
        found = router.sequences.statistics()
        assert (found.active_requests, found.prefill_tokens, found.active_blocks) == (0, 0, 0)
    for engine in simulated.engines:
        assert engine.model.statistics().active_blocks == 0
        assert not engine.passages


def test_a_preempted_request_gets_all_its_tokens_and_its_pause_is_counted() -> None:
    requests = families(12, shared=6, gap_ms=1.0, output=400)
    simulated = fleet(requests, "round-robin", engines=1, blocks=60)

    outcomes = simulated.run()

    assert simulated.engines[0].model.statistics().preemptions > 0
    for outcome in outcomes:
        assert len(outcome.itl_ms) == outcome.output_tokens - 1
        assert outcome.latency_ms == pytest.approx((outcome.ttft_ms or 0) + sum(outcome.itl_ms))


def test_one_large_engine_hits_what_an_infinite_cache_would() -> None:
    requests = families(80, gap_ms=10.0)

    outcomes = fleet(requests, "kv", engines=1, blocks=1 << 16).run()

    bound = infinite_cache_hit_rate(requests, BLOCK_SIZE)
    assert summarize(outcomes, Slo()).hit_rate == pytest.approx(bound, abs=1e-12)


@pytest.mark.parametrize("policy", ["kv", "kv:lmetric"])
def test_kv_hits_more_and_answers_sooner_than_round_robin(policy: str) -> None:
    requests = families(150, groups=30, gap_ms=25.0, output=8)

    blind = summarize(fleet(requests, "round-robin", blocks=300).run(), Slo())
    kv = summarize(fleet(requests, policy, blocks=300).run(), Slo())

    assert kv.hit_rate > blind.hit_rate + 0.1
    assert kv.ttft_ms is not None
    assert blind.ttft_ms is not None
    assert kv.ttft_ms.p90 < blind.ttft_ms.p90


def test_routers_without_events_still_route_by_what_they_sent() -> None:
    requests = families(80, gap_ms=25.0, output=8)
    options = FleetOptions(
        engines=4,
        kv_events=False,
        engine=EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=600),
    )

    blind = summarize(fleet(requests, "round-robin", options=options).run(), Slo())
    kv = summarize(fleet(requests, "kv", options=options).run(), Slo())

    assert kv.hit_rate > blind.hit_rate


def test_engines_are_busy_alike_until_the_last_request_is_sent_then_run_empty() -> None:
    short, long = families(2, shared=1, output=1)
    requests = [
        msgspec.structs.replace(long, index=0, timestamp_ms=0.0, output_tokens=30),
        msgspec.structs.replace(short, index=1, timestamp_ms=1.0, output_tokens=400),
        msgspec.structs.replace(short, index=2, timestamp_ms=200.0, output_tokens=1),
    ]

    simulated = fleet(requests, "round-robin", engines=2, profile="linear")
    simulated.run()

    assert simulated.busy_s == pytest.approx([0.2, 0.199])
    assert simulated.engines[1].busy_s > 10 * simulated.engines[0].busy_s


@pytest.mark.parametrize("routers", [1, 4])
@pytest.mark.parametrize(("gap_ms", "homes"), [(1600.0, 1), (400.0, 2), (12.0, 4)])
def test_a_hot_prefix_gets_more_homes_the_more_ask_for_it_at_once(
    gap_ms: float, homes: int, routers: int
) -> None:
    requests = families(200, groups=1, shared=40, gap_ms=gap_ms)
    hashes = make_requests(requests, BLOCK_SIZE, BLOCK_SIZE)[0].hashes
    simulated = fleet(requests, routers=routers)

    served = counts(simulated.run())

    held = [len(engine.model.pool.find_cached(hashes, 40)) for engine in simulated.engines]
    assert held.count(40) == len(served) == homes
    assert min(served) >= 0.75 * 200 / homes


@pytest.mark.parametrize("routers", [1, 4])
@pytest.mark.parametrize("gap_ms", [40.0, 12.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_engine_of_a_busy_fleet_starves(gap_ms: float, routers: int, seed: int) -> None:
    requests = families(200, shared=40, gap_ms=gap_ms)

    served = counts(fleet(requests, routers=routers, seed=seed).run())

    assert len(served) == 4
    assert min(served) >= 25


def test_a_request_larger_than_the_cache_is_refused_and_not_booked() -> None:
    requests = families(10)
    simulated = fleet(requests, engines=2, blocks=10)

    outcomes = simulated.run()

    assert {one.error for one in outcomes} == {"refused"}
    assert "KV cache" in outcomes[0].detail
    assert simulated.routers[0].sequences.statistics().active_requests == 0


def test_turns_wait_for_the_turn_before_them() -> None:
    first, second, third = families(3)
    requests = [
        msgspec.structs.replace(first, session="s"),
        msgspec.structs.replace(second, session="s", delay_ms=500.0),
        msgspec.structs.replace(third, session="s", timestamp_ms=0.0),
    ]

    one, two, three = sorted(fleet(requests).run(), key=lambda outcome: outcome.index)

    assert two.sent_ms == pytest.approx(one.sent_ms + one.latency_ms + 500.0)
    assert three.sent_ms == pytest.approx(two.sent_ms + two.latency_ms)


def test_a_booking_that_ended_before_peers_heard_of_it_stays_unknown_to_them() -> None:
    options = FleetOptions(
        engines=2,
        routers=2,
        sync_delay_s=1.0,
        engine=EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=512, timing=PROFILES["instant"]),
    )
    simulated = fleet(families(20), options=options)

    simulated.run()
    settle(simulated)

    for router in simulated.routers:
        assert router.sequences.statistics().active_requests == 0


@pytest.mark.parametrize("queue_policy", ["fcfs", "wspt"])
@pytest.mark.parametrize("routers", [1, 3])
def test_held_requests_all_end_and_wait_at_the_router_not_at_an_engine(
    routers: int, queue_policy: QueuePolicy
) -> None:
    requests = families(80, gap_ms=2.0)
    at_once = fleet(requests, engines=2, routers=routers)
    held = fleet(
        requests,
        options=msgspec.structs.replace(
            at_once.options, max_backlog_ms=60.0, queue_policy=queue_policy
        ),
    )

    assert longest_queue(held) < longest_queue(at_once)

    assert sorted(one.index for one in held.outcomes) == list(range(80))
    assert not any(one.error for one in held.outcomes)
    assert not any(router.waiting for router in held.routers)


@pytest.mark.parametrize("routers", [1, 3])
def test_held_requests_of_tenants_all_end_where_caches_count_in_their_shares(routers: int) -> None:
    requests = [
        msgspec.structs.replace(one, tenant=f"t{one.index % 3}") for one in families(60, gap_ms=2.0)
    ]
    options = msgspec.structs.replace(
        fleet(requests, engines=2, routers=routers).options,
        max_backlog_ms=60.0,
        queue_fairness="locality",
    )
    simulated = fleet(requests, options=options)

    outcomes = simulated.run()

    assert sorted(one.index for one in outcomes) == list(range(60))
    assert not any(one.error for one in outcomes)
    served = [router.scheduler.ledger.statistics() for router in simulated.routers]
    assert all(one.tenants for one in served), "each heard of the tenants"


def test_a_held_request_counts_its_time_to_first_token_from_when_it_was_sent() -> None:
    requests = [TraceRequest(index, 0.0, 60 * BLOCK_SIZE, 2, ()) for index in range(3)]
    options = msgspec.structs.replace(fleet(requests, engines=1).options, max_backlog_ms=1.0)

    outcomes = fleet(requests, options=options).run()

    first, second, third = sorted(one.ttft_ms or 0.0 for one in outcomes)
    assert {one.sent_ms for one in outcomes} == {0.0}
    assert 0.0 < first < second < third


def test_an_engine_that_something_else_woke_is_not_woken_again() -> None:
    simulated = fleet(families(1), engines=1)
    (engine,) = simulated.engines
    while not engine.awake:
        simulated.advance(1)
    turns = engine.turns

    simulated._wake(engine, 0.0)

    assert (engine.awake, engine.turns) == (True, turns)


def test_what_hardly_meets_its_targets_is_refused() -> None:
    requests = families(40, gap_ms=1.0)
    options = msgspec.structs.replace(
        fleet(requests, engines=1).options, targets=Targets(ttft_ms=0.001)
    )

    refused = [one for one in fleet(requests, options=options).run() if one.error]

    assert len(refused) >= 30
    assert not any(one.ttft_ms for one in refused)


def test_a_request_that_is_none_of_the_trace_is_sent_when_told() -> None:
    fleet = SimulatedFleet(FleetOptions(engines=1), RouterOptions(), (), random.Random(0))
    (request,) = make_requests([TraceRequest(0, 0.0, 160, 4, ())], 16, 16)

    fleet.send_at(3.0, request)
    while not fleet.outcomes:
        fleet.step()

    (outcome,) = fleet.outcomes
    assert (outcome.sent_ms, outcome.output_tokens) == (3000.0, 4)


def test_engines_of_two_kinds_have_their_own_caches_and_speeds() -> None:
    slow = EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=512, speedup_ratio=0.25)
    quick = EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=4096)
    options = FleetOptions(engines=2, engine=slow, kinds=(slow, quick))
    played = fleet(families(200), options=options)

    outcomes = played.run()

    assert [one.model.options for one in played.engines] == [slow, quick]
    taken = Counter(one.worker for one in outcomes)
    assert taken["worker-1"] > taken["worker-0"] > 0
