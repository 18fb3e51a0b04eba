import random
from itertools import count
from typing import Any

import msgspec
import pytest

from kvmesh._native import Placed, Record
from kvmesh.core.admission.queue import AdmissionOptions, Refusal
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES, BlockHashes, pack_hashes
from kvmesh.core.cost.arm_tally import Counter
from kvmesh.core.cost.arms import Arm, Arms
from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.core.dispatch.dispatch import Dispatch, Ending
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.engines.kv_events.regaining import CacheHit
from kvmesh.core.engines.sse import Usage
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.decision_record import State
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.predictions import AccessReport, Distrust
from kvmesh.core.insight.trace_ring import TraceRing
from kvmesh.core.members.loads import PRIOR_MS_PER_TOKEN, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED, UNKNOWN, failed_attempt
from kvmesh.core.members.worker_info import Trust, WorkerInfo
from kvmesh.core.programs.turn import Turn
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.late_binding import LateBinding
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import NoWorkerError, RequestError
from tests.reference.routing.output_lengths import NO_FORECAST
from tests.unit.core.programs.program_cases import SmallFleet, key, make_governor, make_turn

W1, W2 = WorkerId("w1"), WorkerId("w2")
HASHES = list(range(1, 33))
USAGE = Usage(prompt_tokens=512, completion_tokens=4, cached_tokens=128)


class Routers:
    """A dispatch over two workers of which one told that it holds eight blocks of the prompt."""

    def __init__(self, *, whole_per_s: int = 0, follows_events: bool = True) -> None:
        membership = Membership()
        self.index = KvIndex()
        self.scheduler = Scheduler(
            RouterOptions(),
            random.Random(1),
            membership=membership,
            sequences=new_sequences(16),
            index=self.index,
            routed=new_approx(),
        )
        for worker in (W1, W2):
            membership.add(worker, 0.0)
            self.scheduler.workers.describe(worker, WorkerInfo(trust=Trust.EXACT))
        self.index.store(W1, ROOT, pack_hashes(HASHES[:8]))
        self.log = DecisionLog(whole_per_s=whole_per_s)
        self.doubts: list[tuple[WorkerId, Distrust]] = []
        self.dispatch = Dispatch(
            self.scheduler,
            self.log,
            map(float, count()).__next__,
            lambda worker, distrust: self.doubts.append((worker, distrust)),
            follows_events=follows_events,
        )

    def enter(self, name: str = "q", **wishes: Any) -> Dispatched:
        request = RouteRequest(name, BlockHashes.of(HASHES, 16), 512, **wishes)
        return self.dispatch.enter(request, name.encode())

    def decided(self, now: float = 1.0, name: str = "q", **wishes: Any) -> Dispatched:
        one = self.enter(name, **wishes)
        assert isinstance(self.dispatch.decide(one, now), Placed)
        return one

    def serve(self, one: Dispatched, now: float, usage: Usage | None = USAGE) -> None:
        """Have an answer end whole."""
        self.dispatch.release(one, SERVED, now)
        self.dispatch.finished(one, Ending(SERVED, "finished", 200, usage), now)

    def booked(self) -> list[str]:
        return [one.request_id for one in self.scheduler.sequences.owned()]


def placed_of(one: Dispatched) -> Placed:
    assert one.placed is not None
    return one.placed


def record_of(one: Dispatched) -> Record:
    return placed_of(one).record


def test_a_formula_that_there_is_not_is_refused_before_anything_is_done() -> None:
    routers = Routers()

    with pytest.raises(RequestError, match="'best' is unknown"):
        routers.enter(cost="best")
    with pytest.raises(RequestError, match="lmetric: there is no weight 'overlap_score_weight'"):
        routers.enter(cost="lmetric", overlap_score_weight=0.0)
    assert routers.enter(cost="dynamo", overlap_score_weight=2.0).request.cost == "dynamo"


def test_a_request_is_chosen_booked_and_recorded_at_once() -> None:
    routers = Routers()

    one = routers.decided()

    assert (record_of(one).decision.worker, routers.booked()) == (W1, ["q"])
    assert record_of(one) is routers.log.records.find(b"q")
    assert (record_of(one).decided_s, record_of(one).forecast) == (1.0, NO_FORECAST)
    assert record_of(one).held_ms is None
    assert placed_of(one).sent_s == 1.0


def test_without_workers_it_is_refused() -> None:
    routers = Routers()
    one = routers.enter(pinned_worker=WorkerId("gone"))

    with pytest.raises(NoWorkerError):
        routers.dispatch.decide(one, 1.0)
    routers.dispatch.finished(one, Ending(UNKNOWN, "refused", 503, None), 1.0)

    assert one.placed is None
    assert routers.log.seconds(1)[0].refused == 1


@pytest.mark.parametrize(
    ("allowed", "expected"), [(0, 30), (20, 20), (100, 30)], ids=["none", "less", "more"]
)
def test_no_more_is_expected_than_the_client_allows(allowed: int, expected: int) -> None:
    routers = Routers()
    lengths = routers.scheduler.lengths
    families, forecast = lengths.forecast(BlockHashes.of(HASHES, 16))
    lengths.learn(families, 30, forecast)

    one = routers.enter(expected_output_tokens=allowed)

    assert one.request.expected_output_tokens == expected
    routers.dispatch.decide(one, 1.0)
    known = record_of(one).forecast
    assert known is not None
    assert known.tokens == 30


@pytest.mark.parametrize(
    ("usage", "tokens"), [(USAGE, 4), (None, 9), (Usage(512, 0, 128), 9)], ids=str
)
def test_a_served_answer_teaches_its_length(usage: Usage | None, tokens: int) -> None:
    routers = Routers()
    one = routers.decided()
    routers.dispatch.seen(one, 9, 2.0)

    routers.serve(one, 3.0, usage)

    assert routers.booked() == []
    assert routers.scheduler.lengths.forecast(BlockHashes.of(HASHES, 16))[1].tokens == tokens
    assert (record_of(one).state, record_of(one).status, record_of(one).reported) == (
        "finished",
        200,
        usage,
    )


@pytest.mark.parametrize(
    ("wishes", "usage"),
    [
        ({}, None),
        ({}, Usage(512, 4, None)),
        ({"prefilled": True}, USAGE),
        ({"approximate": True}, USAGE),
        ({"unforeseen": "siblings"}, USAGE),
        ({"mode": "round-robin"}, USAGE),
    ],
    ids=["no usage", "not told", "prefilled elsewhere", "approximate", "unforeseen", "blind"],
)
def test_an_answer_that_proves_nothing_is_not_judged(
    wishes: dict[str, Any], usage: Usage | None
) -> None:
    routers = Routers()
    one = routers.decided(**wishes)

    routers.dispatch.finished(one, Ending(SERVED, "finished", 200, usage), 3.0)

    assert (routers.dispatch.tokens.prompt, routers.dispatch.predictions.workers()) == (512, ())


@pytest.mark.parametrize(
    ("status", "usage", "counted"),
    [
        (200, Usage(520, 4, 96), (520, 96, 520, 96)),
        (200, Usage(520, 4, None), (512, 128, 0, 0)),
        (200, None, (512, 128, 0, 0)),
        (0, None, (512, 128, 0, 0)),
        (400, None, (0, 0, 0, 0)),
    ],
    ids=["told", "not told", "no usage", "nobody saw", "rejected"],
)
def test_what_caches_saved_is_as_told_else_as_predicted(
    status: int, usage: Usage | None, counted: tuple[int, ...]
) -> None:
    routers = Routers()
    one = routers.decided()
    record = record_of(one)

    attempt = SERVED if usage is not None else UNKNOWN
    routers.dispatch.finished(one, Ending(attempt, "finished", status, usage), 3.0)

    tokens, second = routers.dispatch.tokens, routers.log.seconds(0)[-1]
    saved = counted[1]
    assert (tokens.prompt, tokens.saved, tokens.reported, tokens.cached) == counted
    told = second.reported_tokens, second.cached_tokens
    assert (second.answered_tokens, second.saved_tokens, *told) == counted
    assert tokens.saved_s == pytest.approx(saved * record.ms_per_token / 1000.0)
    assert second.saved_us == pytest.approx(saved * record.ms_per_token * 1000.0, abs=1.0)


def test_what_was_not_foretold_is_counted_and_on_record_with_its_reason() -> None:
    routers = Routers()
    one = routers.decided(unforeseen="batch")

    routers.dispatch.finished(one, Ending(SERVED, "finished", 200, None), 3.0)

    assert {name: n for name, n in routers.dispatch.unforeseen.items() if n} == {"batch": 1}
    assert record_of(one).decision.unforeseen == "batch"


def test_misses_make_a_worker_doubted() -> None:
    routers = Routers()
    missed = Usage(prompt_tokens=512, completion_tokens=4, cached_tokens=0)

    for turn in range(12):
        one = routers.decided(1.0 + turn, f"q{turn}", pinned_worker=W1)
        routers.dispatch.release(one, UNKNOWN, 1.0 + turn)
        routers.dispatch.finished(one, Ending(SERVED, "finished", 200, missed), 1.5 + turn)

    assert [(worker, distrust.misses) for worker, distrust in routers.doubts] == [(W1, 12)]


def test_how_long_a_decision_takes_is_measured() -> None:
    routers = Routers()

    for turn in range(33):
        routers.decided(1.0, f"q{turn}")

    phases = dict(routers.dispatch.phases.named())
    counts = {name: one.cumulative()[-1][1] for name, one in phases.items()}
    assert counts == {"tokenize": 0, "decide": 33, "hash": 0, "find": 0, "score": 0}


def test_a_held_request_is_given_its_worker_later() -> None:
    routers = Routers()
    binding = routers.dispatch.binding
    binding.change(AdmissionOptions(max_backlog_ms=0.001))
    for worker in (W1, W2):
        routers.decided(1.0, worker, pinned_worker=worker)
    one = routers.enter()

    assert routers.dispatch.decide(one, 1.0) is None
    assert one.asked_s == 1.0
    for worker in (W1, W2):
        routers.scheduler.finish(worker, 2.5)
    (released,) = binding.release(3.0, lambda: False)
    verdict = released.verdict
    assert isinstance(verdict, Placed)
    one.given = verdict

    assert routers.dispatch.decide(one, 4.0) is verdict
    assert routers.log.records.latest(1)[0].held_ms == 3000.0


def test_a_held_request_is_charged_to_its_tenant_and_settled_at_its_end() -> None:
    routers = Routers()
    routers.dispatch.binding.change(AdmissionOptions(max_backlog_ms=100.0))
    ledger = routers.scheduler.ledger
    one = routers.decided(tenant="a", expected_output_tokens=50)
    assert ledger.shares(1)[0].service == 384 + 2 * 50

    routers.serve(one, 2.0)

    assert ledger.shares(1)[0].service == 384 + 2 * 4
    routers.dispatch.binding.change(AdmissionOptions(max_backlog_ms=0.0))
    free = routers.decided(2.0, "free", tenant="a")
    routers.serve(free, 3.0)
    assert ledger.shares(1)[0].service == 384 + 2 * 4


def test_a_request_that_may_not_wait_is_refused() -> None:
    routers = Routers()
    routers.dispatch.binding.change(AdmissionOptions(max_backlog_ms=0.001, max_queued=1))
    for worker in (W1, W2):
        routers.decided(1.0, worker, pinned_worker=worker)
    assert routers.dispatch.decide(routers.enter("first"), 1.0) is None

    assert isinstance(routers.dispatch.decide(routers.enter(), 1.0), Refusal)
    gone = routers.enter("gone", pinned_worker=WorkerId("gone"))
    routers.dispatch.binding.cancel("first")
    assert isinstance(routers.dispatch.decide(gone, 1.0), NoWorkerError)


@pytest.mark.parametrize(
    ("wishes", "departs"),
    [
        ({}, False),
        ({"mode": "kv", "cost": "predicted-time", "temperature": 0.0}, False),
        ({"overlap_score_weight": 1.0}, False),
        ({"mode": "round-robin"}, True),
        ({"cost": "lmetric"}, True),
        ({"temperature": 0.5}, True),
        ({"overlap_score_weight": 2.0}, True),
        ({"pinned_worker": W1}, True),
    ],
)
def test_another_policy_than_the_routers_is_noted_where_a_client_named_it(
    wishes: dict[str, Any], departs: bool
) -> None:
    for overridden in (False, True):
        one = Routers().decided(overridden=overridden, **wishes)

        assert record_of(one).overridden == (departs and overridden)


def test_another_block_size_is_decided_and_judged_by() -> None:
    routers = Routers()
    before = routers.decided(name="before")
    routers.dispatch.resize(64)
    ring = routers.dispatch.log.ring = TraceRing(64, window_s=60.0, max_bytes=1 << 20)

    routers.dispatch.resize(32)
    larger = [one + 1000 for one in HASHES[:16]]
    routers.index.store(W1, ROOT, pack_hashes(larger[:8]))
    hashes = BlockHashes.of(larger, 32)
    after = routers.dispatch.enter(RouteRequest("after", hashes, 512), b"after")
    decision = routers.dispatch.decide(after, 2.0)
    for one, cached in ((before, 128), (after, 256)):
        routers.serve(one, 3.0, Usage(512, 8, cached))

    assert isinstance(decision, Placed)
    assert (decision.record.overlap_blocks, decision.record.block_size) == (8, 32)
    assert (ring.stride, ring.block_tokens) == (4, 128)
    assert routers.dispatch.predictions.report(W1).hits == 2
    assert (routers.dispatch.tokens.predicted, routers.dispatch.tokens.cached) == (384, 384)


def test_what_workers_reused_is_counted_unless_it_came_from_another_worker() -> None:
    routers = Routers()
    for name, wishes in (("q", {}), ("stream", {"streams": True}), ("split", {"prefilled": True})):
        one = routers.decided(name=name, **wishes)
        routers.serve(one, 2.0, None if name == "stream" else Usage(512, 8, 128))

    assert routers.dispatch.accesses.reports == {
        W1: AccessReport(reported=1, untold=1, tokens=128, blocks=8)
    }


UNSETTLED_MS = (3000.0 - 1.5 * PRIOR_MS_PER_TOKEN * (512 - 128)) / 4
"""Of a prefill that nobody looked at it is known when it should have ended at the latest."""


@pytest.mark.parametrize(
    ("streams", "settled", "usage", "ms"),
    [
        (False, True, USAGE, 500.0),
        (False, True, None, 0.0),
        (False, False, USAGE, UNSETTLED_MS),
        (True, True, USAGE, 0.0),
    ],
)
def test_a_whole_answer_teaches_the_time_per_token_behind_its_prefill(
    streams: bool, settled: bool, usage: Usage | None, ms: float
) -> None:
    routers = Routers()
    one = routers.decided(0.0, streams=streams)
    if settled:
        routers.scheduler.sequences.first_token("q", 1.0)

    routers.serve(one, 3.0, usage)

    assert routers.scheduler.speeds.ms_per_output_token(W1) == pytest.approx(ms)


def on_trial(routers: Routers) -> Arm:
    """Have every request be the candidate's, and return its arm."""
    policy = PolicySpec("lmetric").find(PUBLISHED)
    arms = Arms(policy, policy, "candidate", Counter())
    routers.scheduler.follow(policy, arms)
    assert arms.now is not None
    return arms.now


def test_an_arm_counts_the_first_token_when_it_comes_and_the_rest_at_the_end() -> None:
    routers = Routers()
    arm = on_trial(routers)
    one = routers.decided(1.0)

    routers.dispatch.seen(one, 1, 1.5)
    began = arm.counter.tally()
    routers.serve(one, 1.8)

    tally = arm.counter.tally()
    assert began.requests == 0
    assert began.ttft.count == 1
    assert began.ttft.mean_ms() == pytest.approx(500.0)
    assert (tally.requests, tally.errors, tally.tpot.count) == (1, 0, 1)
    assert tally.tpot.mean_ms() == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("state", "status", "errors", "times"),
    [
        ("finished", 200, 0, 1),
        ("client_gone", 0, 0, 1),
        ("finished", 500, 1, 1),
        ("finished", 400, 0, 1),
        ("failed", 502, 1, 0),
        ("failed", 422, 0, 0),
        ("cut", 200, 1, 0),
        ("refused", 429, 0, 0),
    ],
)
def test_what_ends_without_a_first_token_counts_as_it_ended(
    state: State, status: int, errors: int, times: int
) -> None:
    routers = Routers()
    arm = on_trial(routers)
    one = routers.decided(1.0, streams=False)

    routers.dispatch.release(one, UNKNOWN, 3.0)
    routers.dispatch.finished(one, Ending(UNKNOWN, state, status, None), 3.0)

    tally = arm.counter.tally()
    assert (tally.requests, tally.errors, tally.ttft.count) == (1, errors, times)
    if times:
        assert tally.ttft.mean_ms() == pytest.approx(2000.0)


def test_a_cut_answer_has_no_time_per_token() -> None:
    routers = Routers()
    arm = on_trial(routers)
    one = routers.decided(1.0)

    routers.dispatch.seen(one, 1, 1.5)
    routers.dispatch.release(one, UNKNOWN, 2.0)
    routers.dispatch.finished(one, Ending(UNKNOWN, "cut", 200, None), 2.0)

    tally = arm.counter.tally()
    assert (tally.errors, tally.ttft.count, tally.tpot.count) == (1, 1, 0)


def test_what_a_request_was_held_is_part_of_its_first_token() -> None:
    routers = Routers()
    arm = on_trial(routers)
    routers.dispatch.binding = LateBinding(
        routers.scheduler, AdmissionOptions(max_backlog_ms=1000.0)
    )
    one = routers.decided(1.0)
    record_of(one).held_ms = 500.0

    routers.dispatch.seen(one, 1, 1.5)

    assert arm.counter.tally().ttft.mean_ms() == pytest.approx(1000.0)


def named(agent: str, tokens: int) -> Turn:
    return msgspec.structs.replace(make_turn(agent, tokens), request_id="q")


class Governed(Routers):
    """The same with a governor over caches of 1,000 tokens each."""

    def __init__(self) -> None:
        super().__init__()
        self.governor = make_governor(SmallFleet(w1=1000, w2=1000))
        self.dispatch = Dispatch(
            self.scheduler,
            self.log,
            map(float, count()).__next__,
            lambda worker, distrust: self.doubts.append((worker, distrust)),
            follows_events=True,
            governor=self.governor,
        )

    def phase(self, name: str) -> str:
        return self.governor.table.agents[key(name)].phase

    def fill(self) -> None:
        for number, worker in enumerate((W1, W2)):
            self.governor.chosen(make_turn(f"old{number}", 900), worker, 0.0)


def test_a_turn_that_passes_is_taken_and_ends_with_what_was_served() -> None:
    routers = Governed()
    one = routers.decided(turn=make_turn("a", 512))
    taken = routers.phase("a")
    routers.serve(one, 2.0)
    agent = routers.governor.table.agents[key("a")]

    assert (taken, agent.phase, agent.worker) == ("running", "paused", W1)
    assert (agent.served_tokens, agent.tokens) == (512 - 128 + 4, 512 + 4)
    assert one.asked_s < 0.0
    assert not one.charged


def test_a_retry_keeps_its_turn_and_takes_it_elsewhere() -> None:
    routers = Governed()
    one = routers.decided(turn=make_turn("a", 512))
    routers.dispatch.release(one, failed_attempt("reset", 0.5), 1.5)
    routers.dispatch.decide(one, 2.0, frozenset((W1,)))
    agent = routers.governor.table.agents[key("a")]
    moved = (agent.worker, agent.running, agent.phase)
    routers.dispatch.finished(one, Ending(UNKNOWN, "client_gone", 0, None), 3.0)

    assert moved == (W2, 1, "running")
    assert (agent.running, agent.phase, agent.served_tokens) == (0, "paused", 0)


def test_a_turn_that_has_to_wait_is_taken_when_it_is_given() -> None:
    routers = Governed()
    routers.fill()
    one = routers.enter(turn=named("a", 512))
    held = routers.dispatch.decide(one, 1.0)
    waits = "q" in routers.dispatch.binding.governed
    [released] = routers.dispatch.binding.release(121.0, lambda: False)
    assert isinstance(released.verdict, Placed)
    one.given = released.verdict
    decided = routers.dispatch.decide(one, 121.0)
    running = routers.phase("a")
    routers.dispatch.finished(one, Ending(SERVED, "finished", 200, None), 32.0)

    assert (held, waits, decided) == (None, True, released.verdict)
    assert (running, routers.phase("a")) == ("running", "paused")
    assert record_of(one).held_ms == 120_000.0


def test_a_turn_that_was_given_to_nobody_is_over() -> None:
    routers = Governed()
    routers.fill()
    one = routers.enter(turn=named("a", 512))
    routers.dispatch.decide(one, 1.0)
    [released] = routers.dispatch.binding.release(121.0, lambda: False)
    assert isinstance(released.verdict, Placed)
    one.given = released.verdict

    routers.dispatch.leave_turn(one, 32.0)
    routers.dispatch.leave_turn(one, 33.0)

    assert (routers.governor.table.agents[key("a")].running, routers.phase("a")) == (0, "paused")


@pytest.mark.parametrize("seen", [True, False])
def test_a_worker_that_wants_answers_is_told_what_was_cached_of_a_prompt(*, seen: bool) -> None:
    routers = Routers()
    reported: list[tuple[WorkerId, CacheHit]] = []
    routers.dispatch.on_served = lambda worker, hit: reported.append((worker, hit))
    routers.dispatch.wanting = {W1}
    one = routers.decided()
    if seen:
        routers.dispatch.seen(one, 1, 2.0)
        assert one.request.hashes is NO_HASHES

    usage = Usage(prompt_tokens=512, completion_tokens=4, cached_tokens=128 + 15)
    routers.dispatch.finished(one, Ending(SERVED, "finished", 200, usage), 3.0)

    [(worker, hit)] = reported
    assert (worker, list(hit.hashes), hit.cached, hit.lasted_s) == (W1, HASHES[:9], 8, 2.0)


@pytest.mark.parametrize(
    "usage",
    [
        Usage(prompt_tokens=512, completion_tokens=4, cached_tokens=0),
        Usage(prompt_tokens=512, completion_tokens=4, cached_tokens=512),
        Usage(prompt_tokens=500, completion_tokens=4, cached_tokens=128),
        Usage(prompt_tokens=512, completion_tokens=4),
    ],
)
def test_an_answer_that_shows_no_place_is_not_told(usage: Usage) -> None:
    routers = Routers()
    reported: list[CacheHit] = []
    routers.dispatch.on_served = lambda _, hit: reported.append(hit)
    routers.dispatch.wanting = {W1, W2}

    routers.dispatch.finished(routers.decided(), Ending(SERVED, "finished", 200, usage), 3.0)
    routers.dispatch.on_served = None
    routers.dispatch.finished(
        routers.decided(name="r"), Ending(SERVED, "finished", 200, USAGE), 3.0
    )

    assert reported == []
