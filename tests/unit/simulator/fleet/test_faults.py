import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.outcomes import SERVED, Attempt, Verdict
from kvmesh.core.members.outcomes import UNKNOWN as NO_VERDICT
from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.faults import FaultOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.report.outcome import UNKNOWN, RequestOutcome
from kvmesh_lab.simulator.fleet.faults import HashedDraws, make_plans, parse_fleet_faults
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.router import AttemptEnd, AttemptKind
from kvmesh_lab.traces.trace import TraceRequest
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE, families, fleet

AT_ONCE = ("500", "429=1", "dead", "reset", "garbage", "half-head", "empty-body")
W0, W1 = WorkerId("worker-0"), WorkerId("worker-1")
POLICIES = ("round-robin", "kv", "oracle")


def sick(
    *fail: str,
    requests: list[TraceRequest] | None = None,
    policy: str = "round-robin",
    flap: str = "",
    **changes: object,
) -> SimulatedFleet:
    """Return a fleet of four engines, some of them sick, about to play."""
    engine = EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=4096)
    options = FleetOptions(engines=4, engine=engine, faults=parse_fleet_faults(fail, flap, 4))
    options = msgspec.structs.replace(options, **changes)
    return fleet(requests or families(40), policy, options=options)


def by_index(outcomes: list[RequestOutcome]) -> dict[int, RequestOutcome]:
    return {one.index: one for one in outcomes}


def is_empty(simulated: SimulatedFleet) -> bool:
    """Whether nothing is booked or computed, once the last news have reached the peers."""
    simulated.outcomes.clear()
    simulated.advance(50)
    booked = [router.sequences.statistics().active_requests for router in simulated.routers]
    held = [engine.model.statistics().active_blocks for engine in simulated.engines]
    return not any(booked) and not any(held)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", AT_ONCE)
def test_what_fails_at_once_is_answered_by_another_engine(kind: str, policy: str) -> None:
    simulated = sick(f"1=1:{kind}", policy=policy)

    outcomes = simulated.run()

    assert len(outcomes) == 40
    assert not any(one.error for one in outcomes)
    assert {one.worker for one in outcomes} <= {"worker-0", "worker-2", "worker-3"}
    assert simulated.retried > 0
    assert is_empty(simulated)


@pytest.mark.parametrize("routers", [1, 3])
@pytest.mark.parametrize("backlog_ms", [0.0, 20.0])
def test_every_request_ends_once_whatever_the_faults(routers: int, backlog_ms: float) -> None:
    kinds = ("500", "hang", "slow=3", "reset", "cut")
    simulated = sick(
        *(f"all=0.1:{kind}" for kind in kinds),
        "2=0.4:503=1",
        requests=families(120, gap_ms=8.0),
        policy="kv",
        routers=routers,
        max_backlog_ms=backlog_ms,
        client_timeout_s=2.0,
    )

    outcomes = list(simulated.run())

    assert sorted(one.index for one in outcomes) == list(range(120))
    lost = {one.error for one in outcomes if one.error}
    assert {"hang", "cut"} <= lost <= {"hang", "cut", "500", "503", "reset"}
    assert is_empty(simulated)


def test_after_so_many_retries_a_request_is_lost_with_the_last_failure() -> None:
    few, none = sick("all=1:502", retries=1), sick("all=1:502", retries=0)

    for simulated, retried in ((few, 40), (none, 0)):
        outcomes = simulated.run()
        assert {(one.error, one.status, one.ttft_ms) for one in outcomes} == {("502", 502, None)}
        assert all(one.worker != UNKNOWN for one in outcomes)
        assert simulated.retried == retried


def test_the_clients_own_fault_is_not_tried_elsewhere() -> None:
    simulated = sick("0=1:422")

    lost = [one for one in simulated.run() if one.error]

    assert {(one.worker, one.status) for one in lost} == {("worker-0", 422)}
    assert simulated.retried == 0


def test_a_request_that_hangs_is_booked_until_its_client_has_left() -> None:
    requests = families(8, gap_ms=100.0)
    simulated = sick("1=1:hang", requests=requests, client_timeout_s=5.0, routers=2)
    while simulated.now < 3.0:
        simulated.advance(1)
    booked = [router.sequences.statistics().active_requests for router in simulated.routers]

    outcomes = by_index(simulated.run())

    lost = [one for one in outcomes.values() if one.error]
    assert booked == [len(lost), len(lost)]
    assert {(one.error, one.status, one.worker) for one in lost} == {("hang", 0, "worker-1")}
    assert all(one.latency_ms == pytest.approx(5000.0) for one in lost)
    assert simulated.retried == 0
    assert is_empty(simulated)


def test_everything_of_a_slow_answer_is_seen_so_many_times_as_late() -> None:
    requests = [TraceRequest(0, 100.0, 20 * BLOCK_SIZE, 60, ())]
    (quick,), (slow,) = sick(requests=requests).run(), sick("all=1:slow=7", requests=requests).run()

    assert slow.ttft_ms == pytest.approx(7 * (quick.ttft_ms or 0.0))
    assert slow.latency_ms == pytest.approx(7 * quick.latency_ms)
    assert slow.itl_ms == pytest.approx([7 * pause for pause in quick.itl_ms])
    assert slow.output_tokens == quick.output_tokens == 60
    assert slow.error == ""


@pytest.mark.parametrize("output_tokens", [1, 2, 40])
def test_a_cut_answer_is_lost_and_its_engine_makes_half_of_it(output_tokens: int) -> None:
    requests = [TraceRequest(0, 0.0, 4 * BLOCK_SIZE, output_tokens, ())]
    (whole,) = sick(requests=requests).run()
    simulated = sick("all=1:cut", requests=requests)
    (outcome,) = simulated.run()

    assert (outcome.error, outcome.status, outcome.ttft_ms) == ("cut", 0, None)
    assert simulated.retried == 0
    assert outcome.latency_ms <= whole.latency_ms
    if output_tokens == 40:
        assert outcome.latency_ms < 0.7 * whole.latency_ms
    assert is_empty(simulated)


def test_faults_apply_in_the_bad_phases_only() -> None:
    requests = families(100, gap_ms=100.0)
    simulated = sick("all=1:500", requests=requests, flap="2:1", retries=0)

    outcomes = simulated.run()

    bad = {one.index for one in outcomes if one.error}
    assert bad == {one.index for one in outcomes if one.sent_ms % 3000.0 >= 2000.0}
    assert 20 < len(bad) < 40


def test_the_next_turn_of_a_session_is_sent_though_the_one_before_was_lost() -> None:
    first, second = families(2)
    requests = [
        msgspec.structs.replace(first, session="s"),
        msgspec.structs.replace(second, session="s", delay_ms=500.0),
    ]

    one, two = sick("all=1:500", requests=requests, retries=0).run()

    assert two.sent_ms == pytest.approx(one.sent_ms + 500.0)


def test_a_held_request_is_tried_elsewhere_and_lost_when_nobody_is_left() -> None:
    requests = [TraceRequest(index, 0.0, 60 * BLOCK_SIZE, 2, ()) for index in range(60)]

    def run(*fail: str) -> SimulatedFleet:
        simulated = sick(*fail, requests=requests, policy="kv", max_backlog_ms=1.0, retries=9)
        simulated.run()
        return simulated

    answered, some = run("0=1:500", "1=1:500", "2=1:500"), run("all=0.7:500")

    assert {one.worker for one in answered.outcomes} == {"worker-3"}
    assert answered.retried > 0
    assert sorted(one.index for one in some.outcomes) == list(range(60))
    assert {one.error for one in some.outcomes} == {"", "500"}
    assert is_empty(some)


def test_the_same_seed_draws_the_same_faults_and_another_does_not() -> None:
    fail = ("all=0.3:500", "all=0.1:cut")

    first, second = (sick(*fail, seed=7).run() for _ in range(2))

    assert first == second
    assert first != sick(*fail, seed=8).run()


def test_routers_are_told_how_every_attempt_ended() -> None:
    simulated = sick("0=1:429=3", "1=1:cut", requests=families(8))

    outcomes = simulated.run()

    ended = simulated.routers[0].ended
    cut = sum(one.error == "cut" for one in outcomes)
    assert {kind for _, kind in ended} == {"status", "cut", "served"}
    assert ended[W0, "status"] == simulated.retried > 0
    assert ended[W1, "cut"] == cut > 0
    assert sum(count for (_, kind), count in ended.items() if kind == "served") == 8 - cut


@pytest.mark.parametrize("who", ["3", "w3", "worker-3", "worker-03"])
def test_engines_are_named_by_number_or_as_reports_do(who: str) -> None:
    found = parse_fleet_faults([f"{who}=0.3:429=2", "3=0.1:hang"], "2:1", 5)

    sick_one = FaultOptions(fail=("0.3:429=2", "0.1:hang"), flap="2:1")
    assert found == (*[FaultOptions(flap="2:1")] * 3, sick_one, FaultOptions(flap="2:1"))
    assert list(make_plans(found, 0)) == [3]


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (["0.3:500"], "--fail 0.3:500: write WHO=SHARE:KIND"),
        (["0.3:429=2"], "--fail 0.3:429=2: write WHO=SHARE:KIND"),
        (["4=0.3:500"], "--fail 4=0.3:500: write WHO=SHARE:KIND, where WHO is .* from 0 to 3"),
        (["w=0.3:500"], "write WHO="),
        (["x3=0.3:500"], "write WHO="),
        ([f"{10**25}=0.3:500"], "write WHO="),
        (["-1=0.3:500"], "write WHO="),
        (["1=nan:500"], "fault nan:500: write SHARE:KIND"),
        (["1=0.3:explode"], "no such fault"),
        (["1=0.3:die-after=2"], "--fail 1=0.3:die-after=2: die-after is for the mocker"),
        (["1=0.6:500", "all=0.6:hang"], "--fail of engine 1: the shares sum up to 1.2"),
        (["1=0.01:500"] * 40, "--fail of engine 1: 40 faults are more than 32"),
    ],
)
def test_what_makes_no_sense_is_named_with_its_place_and_remedy(
    fail: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_fleet_faults(fail, "", 4)
    with pytest.raises(ConfigError, match="--flap 2: write GOOD:BAD"):
        parse_fleet_faults([], "2", 4)


@given(st.text() | st.from_regex(r"(all|w[0-9]|[0-9])=[-0-9.ena]{0,5}:[-a-z0-9]{0,9}(=[0-9]*)?"))
def test_any_text_is_a_fault_or_a_config_error(text: str) -> None:
    try:
        found = parse_fleet_faults([text], "", 4)
    except ConfigError as error:
        shown = str(error)
    else:
        shown = str(len(found))
    assert re.fullmatch("4|--f.{0,400}", shown, re.DOTALL)


def test_draws_are_even_and_differ_between_engines_and_seeds() -> None:
    first, other, reseeded = HashedDraws(0, 0), HashedDraws(0, 1), HashedDraws(1, 0)
    drawn = [first.random() for _ in range(4000)]

    assert all(0.0 <= one < 1.0 for one in drawn)
    assert sum(one < 0.25 for one in drawn) == pytest.approx(1000, rel=0.1)
    assert drawn[:5] != [other.random() for _ in range(5)]
    assert drawn[:5] != [reseeded.random() for _ in range(5)]


EVERY_POLICY = (
    "round-robin", "random", "least-loaded", "power-of-two", "kv", "kv:prefill-decode",
    "kv:dynamo", "kv:lmetric", "kv:preble", "kv:sglang", "oracle",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "policy"),
    [("500", policy) for policy in EVERY_POLICY]
    + [(kind, "kv") for kind in ("reset", "garbage", "empty-body", "no-tokens")],
)
def test_an_engine_that_fails_everything_at_once_gets_a_handful_of_requests(
    kind: str, policy: str
) -> None:
    requests = families(200, gap_ms=20.0)
    simulated = sick(f"1=1:{kind}", requests=requests, policy=policy, routers=2)

    outcomes = simulated.run()

    ended = [router.ended for router in simulated.routers]
    sent = sum(count for one in ended for (worker, _), count in one.items() if worker == W1)
    assert not any(one.error for one in outcomes)
    assert 1 <= sent == simulated.retried <= 12


@pytest.mark.parametrize(
    ("kind", "status", "attempt"),
    [
        ("served", 200, SERVED),
        ("slow", 200, SERVED),
        ("refused", 400, Attempt(Verdict.CLIENT, "400")),
        ("status", 429, Attempt(Verdict.OVERLOAD, "429", 0.5, 3.0)),
        ("dead", 500, Attempt(Verdict.WORKER, "500", 0.5, 3.0)),
        ("hang", 0, NO_VERDICT),
        ("reset", 0, Attempt(Verdict.WORKER, "reset", 0.5)),
        ("cut", 200, Attempt(Verdict.WORKER, "cut", 0.5)),
        ("die-after", 200, Attempt(Verdict.WORKER, "die-after", 0.5)),
        ("hang-after", 0, NO_VERDICT),
        ("garbage", 0, Attempt(Verdict.WORKER, "malformed", 0.5)),
        ("half-head", 0, Attempt(Verdict.WORKER, "malformed", 0.5)),
        ("bad-answer", 0, Attempt(Verdict.WORKER, "bad_answer", 0.5)),
    ],
)
def test_routers_judge_an_end_as_a_proxy_would(
    kind: AttemptKind, status: int, attempt: Attempt
) -> None:
    assert AttemptEnd("0", W0, kind, status, retry_after_s=3).attempt(0.5) == attempt


def test_peers_learn_of_failures_they_never_knew_as_bookings() -> None:
    simulated = sick(requests=families(4, gap_ms=0.0), routers=2)
    router = simulated.routers[0]

    for number in range(3):
        router.peer_ended(f"{number}", W1, Attempt(Verdict.WORKER, "500"), 0.6 * number)

    assert W1 not in router.scheduler.workers.everyone(1.3)
    assert router.scheduler.workers.state(W1).failure_share > 0.0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_that_no_engine_is_left_for_is_lost(policy: str) -> None:
    outcomes = sick("all=1:reset", policy=policy, retries=9).run()

    assert {(one.error, one.status) for one in outcomes} == {("reset", 0)}
