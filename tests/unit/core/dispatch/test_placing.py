"""The compiled way of requests where it is none, and what it leaves to `Dispatch`."""

import random
from typing import Any

import msgspec
import pytest

from kvmesh._native import Placed, scan
from kvmesh.app.prompts.request_wishes import NO_WISHES, RequestWishes
from kvmesh.core.admission.ledger import Ledger
from kvmesh.core.admission.queue import AdmissionOptions
from kvmesh.core.blocks.events import ROOT, Reuse, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.cost.arm_tally import Counter
from kvmesh.core.cost.arms import Arms
from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.core.cost.targets import Targets
from kvmesh.core.dispatch import placing
from kvmesh.core.dispatch.dispatch import Dispatch, Ending
from kvmesh.core.dispatch.dispatched import Dispatched, at_once
from kvmesh.core.dispatch.placing import Placer, ScannedPrompt
from kvmesh.core.engines.sse import Usage
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.predictions import AnswerSeen, Distrust
from kvmesh.core.members.left_out import LeftOut
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED, UNKNOWN
from kvmesh.core.members.worker_info import BusyThresholds, WorkerInfo
from kvmesh.core.routing.choice.courses import MOST_COURSES
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.sessions import SessionOptions, Sessions
from kvmesh.errors import RequestError

BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"long " * 30)


def dispatch_to(*workers: str, index: KvIndex | None = None, **options: Any) -> Dispatch:
    """Return what decides among workers."""
    scheduler = Scheduler(
        RouterOptions(block_size=4, **options),
        random.Random(1),
        membership=Membership(),
        sequences=new_sequences(4),
        index=index,
        routed=new_approx(thinned=True),
    )
    for worker in workers:
        scheduler.workers.membership.add(WorkerId(worker), 0.0)
    log = DecisionLog(capacity=8, whole_per_s=0)
    return Dispatch(scheduler, log, lambda: 0.0, doubt_nobody, follows_events=True)


def doubt_nobody(worker: WorkerId, distrust: Distrust) -> None:
    raise AssertionError((worker, distrust))


class Way(Placer):
    """The way of requests that are placed as they were scanned."""

    def __init__(self, dispatch: Dispatch) -> None:
        super().__init__(dispatch)
        self.dispatch = dispatch

    def begun(self, placed: Placed) -> Dispatched:
        targets = None if placed.inputs is None else placed.inputs.asks.targets
        return at_once(placed, RequestWishes(targets=targets), None)

    def seen(self, placed: Placed, tokens: int, now: float) -> None:
        self.dispatch.seen(self.begun(placed), tokens, now)

    def finish(self, placed: Placed, status: int, usage: Usage | None, now: float) -> None:
        end = Ending(SERVED, "finished", status, usage)
        self.dispatch.finished(self.begun(placed), end, now)


def tried(
    one: Way, name: str = "r", body: bytes = BODY, wishes: RequestWishes = NO_WISHES
) -> Placed | float | None:
    """Return what becomes of a chat."""
    scanned = scan(body, True)
    assert scanned is not None
    return one.decide(ScannedPrompt(scanned), name.encode(), wishes, 1.0)


def decide(one: Way, name: str = "r", body: bytes = BODY) -> Placed:
    return placed_of(tried(one, name, body))


@pytest.mark.parametrize("options", [{"cost": "dynamo"}, {"mode": "direct"}])
def test_a_policy_that_is_not_compiled_is_the_affair_of_dispatch(options: dict[str, Any]) -> None:
    assert tried(Way(dispatch_to("w", **options))) is None


def test_a_prompt_that_is_no_plain_text_is_the_affair_of_dispatch() -> None:
    media = b'[{"type":"image_url","image_url":{"url":"data:,"}}]'
    body = b'{"model":"m","messages":[{"role":"user","content":%b}]}' % media

    assert tried(Way(dispatch_to("w")), body=body) is None


def test_of_a_turn_nothing_is_held_against_what_events_told() -> None:
    placed = decide(Way(dispatch_to("w", mode="round-robin")))

    assert (placed.event_tokens, placed.record.by_cache, placed.record.estimated) == (
        -1,
        False,
        True,
    )


def test_what_the_engine_found_cached_is_held_against_what_was_predicted() -> None:
    dispatch = dispatch_to("w")
    judged: list[tuple[WorkerId, AnswerSeen, float]] = []
    dispatch.predictions.compare = lambda *seen: judged.append(seen)  # type: ignore[method-assign]
    one = Way(dispatch)
    first, second = decide(one, "r1"), decide(one, "r2")

    one.finish(first, 200, None, 2.0)
    one.finish(second, 200, Usage(165, 5, 100), 3.0)

    ((worker, answer, now),) = judged
    predicted = second.record.overlap_blocks * 4
    assert predicted > 100
    assert (worker, now, answer.cached, answer.predicted) == ("w", 3.0, 100, predicted)
    assert answer.reported is None


@pytest.mark.parametrize("token", [True, False])
def test_what_was_revoked_with_another_request_is_believed_again_once_served(token: bool) -> None:
    dispatch = dispatch_to("w")
    one, routed = Way(dispatch), dispatch.scheduler.overlaps.routed
    assert routed is not None
    placed, other = decide(one, "r1"), decide(one, "r2")
    blocks = routed.sizes([WorkerId("w")])
    dispatch.scheduler.finish("r2", 1.1, UNKNOWN)
    assert routed.sizes([WorkerId("w")]) == blocks, "known of the first, which may yet be served"
    dispatch.scheduler.overlaps.retract(WorkerId("w"), other.hashes or b"", 0)
    assert routed.sizes([WorkerId("w")]) == [0]

    if token:
        one.seen(placed, 1, 1.2)
        assert routed.sizes([WorkerId("w")]) == blocks
    one.finish(placed, 200, None, 1.3)

    assert routed.sizes([WorkerId("w")]) == blocks


def test_a_whole_answer_ends_the_prefill_of_a_late_prompt() -> None:
    dispatch = dispatch_to("w")
    scheduler = dispatch.scheduler
    scheduler.workers.describe(WorkerId("w"), WorkerInfo(caches_late=True))
    one = Way(dispatch)
    placed = [decide(one, name, BODY.replace(b"long", name.encode())) for name in ("r1ng", "r2ng")]
    assert scheduler.late.waiting
    first = placed[0]

    one.finish(first, 200, None, 2.0)

    assert not scheduler.late.waiting


def test_an_answer_tells_whether_what_was_sent_before_is_found_at_a_late_worker() -> None:
    index = KvIndex()
    dispatch = dispatch_to("w", index=index)
    worker = WorkerId("w")
    late = dispatch.scheduler.workers.late
    dispatch.scheduler.workers.describe(worker, WorkerInfo(caches_late=True))
    one = Way(dispatch)
    body = BODY.replace(b"long", b"long" * 9)
    for name, counted in (("r1ng", 0), ("r2ng", 1), ("r3ng", 0)):
        placed = decide(one, name, body)
        tokens = placed.prompt_tokens
        one.finish(placed, 200, Usage(tokens + counted, 4, cached_tokens=0), 2.0)

    assert late == {worker: -4}, "the first expected nothing, the second was of other tokens"


def ask(one: Way, name: str = "r", **wishes: Any) -> Placed | float | None:
    """Return what becomes of a chat with wishes."""
    return tried(one, name, wishes=RequestWishes(**wishes, chooses=True))


def left(ledger: Ledger) -> int:
    return ledger.left(ledger.account("acme"))


def placed_of(answer: Placed | float | None) -> Placed:
    assert answer is not None
    assert not isinstance(answer, int | float)
    return answer


def test_a_formula_or_weight_that_there_is_not_is_refused() -> None:
    one = Way(dispatch_to("w"))

    with pytest.raises(RequestError, match="x-kvmesh-cost"):
        ask(one, cost="nonsense")
    with pytest.raises(RequestError, match="x-kvmesh-overlap-score-weight"):
        ask(one, cost="lmetric", overlap_score_weight=1.0)


@pytest.mark.parametrize("wish", [{"mode": "direct"}, {"pinned_worker": WorkerId("gone")}])
def test_what_the_compiled_core_cannot_choose_is_the_affair_of_dispatch(
    wish: dict[str, Any],
) -> None:
    assert ask(Way(dispatch_to("w")), **wish) is None


def test_policies_of_requests_are_made_once_and_no_more_are_kept_than_a_bound() -> None:
    one = Way(dispatch_to("w"))
    first = placed_of(ask(one, "r", temperature=0.5))

    for number in range(MOST_COURSES + 1):
        ask(one, f"r{number}", temperature=1.0 + number)

    assert first.record.decision.candidates
    assert placed_of(ask(one, "last", temperature=0.5)).record.worker == "w"


def test_who_names_a_policy_is_on_record_where_it_is_another() -> None:
    one = Way(dispatch_to("w", "v"))

    other = placed_of(ask(one, "r1", mode="random", overridden=True))
    same = placed_of(ask(one, "r2", mode="kv", overridden=True))

    assert (other.record.overridden, same.record.overridden) == (True, False)
    assert other.record.decision.policy == "random"


def test_of_a_blind_router_prompts_are_looked_at_where_backlogs_count() -> None:
    dispatch = dispatch_to("w", mode="round-robin")
    one = Way(dispatch)

    assert ask(one, "r1", mode="random") is not None
    dispatch.binding.change(AdmissionOptions(max_backlog_ms=1e6))

    assert ask(one, "r2", mode="random") is None
    assert ask(one, "r3", mode="kv") is not None


def test_a_session_keeps_its_worker_as_long_as_that_may_take_it() -> None:
    dispatch = dispatch_to("w", "v")
    sessions = dispatch.scheduler.sessions = Sessions(SessionOptions(affinity="hard"))
    one = Way(dispatch)
    home = placed_of(ask(one, "r1", session="s")).record.worker

    kept = placed_of(ask(one, "r2", session="s"))
    assert (kept.record.worker, kept.record.decision.kept) == (home, True)
    assert ask(one, "r3", session="s", labels=frozenset({"none"})) is None

    sessions = Sessions(SessionOptions(affinity="soft", slack_ms=0.0))
    sessions.bind("s", home, 0.0)
    dispatch.scheduler.sessions = sessions
    assert not placed_of(ask(one, "r4", session="s")).record.decision.kept


def test_a_request_that_goes_at_once_is_charged_and_settled() -> None:
    dispatch = dispatch_to("w")
    dispatch.binding.change(AdmissionOptions(max_backlog_ms=1e6))
    one, ledger = Way(dispatch), dispatch.scheduler.ledger
    full = left(ledger)

    placed = placed_of(ask(one, tenant="acme"))
    charged = left(ledger)
    assert placed.record.held_ms == 0.0
    one.finish(placed, 200, Usage(165, 5000, None), 2.0)

    assert charged < full
    assert left(ledger) < charged
    again = one.begun(placed_of(ask(one, "r2")))
    assert (again.charged, again.asked_s) == (True, 1.0)


def test_a_backlog_that_is_too_long_is_told_and_what_waits_has_to_be_asked_about() -> None:
    dispatch = dispatch_to("w")
    one = Way(dispatch)
    placed_of(ask(one, "r1"))
    dispatch.scheduler.speeds.first_token(WorkerId("w"), 100, 1.0, 1.0)
    dispatch.binding.change(AdmissionOptions(max_backlog_ms=0.001))

    wait_ms = ask(one, "r2")

    assert isinstance(wait_ms, float)
    assert wait_ms > 0.001
    assert list(dispatch.scheduler.sequences.bookings) == ["r1"]
    request = RouteRequest("r2", BlockHashes.of((), 4), 100)
    twin = dispatch.enter(request, b"r2")
    twin.tried = True
    assert dispatch.decide(twin, 1.0) is None
    assert ask(one, "r3") is None, "nobody goes before those that wait"


def test_who_is_left_out_is_on_record_where_all_were_weighed() -> None:
    dispatch = dispatch_to("w", "v")
    left_out = LeftOut(count=1)
    dispatch.log.left_out = lambda _now: left_out
    one = Way(dispatch)

    alone = placed_of(ask(one, "r1", pinned_worker=WorkerId("w")))
    chosen = placed_of(ask(one, "r2", labels=frozenset()))

    assert alone.record.left_out is left_out
    assert chosen.record.left_out is not left_out


def test_workers_that_may_be_taken_are_found_anew_where_load_or_what_they_are_matters() -> None:
    dispatch = dispatch_to("w", "v")
    workers, one = dispatch.scheduler.workers, Way(dispatch)
    workers.describe(WorkerId("w"), WorkerInfo(models=("m",), labels=frozenset({"a"})))
    labelled = RouteRequest("", BlockHashes.of((), 4), 0, labels=frozenset({"a"}))

    first = workers.wished(labelled, 1.0)
    assert [one.worker for one in first] == ["w"]
    assert workers.wished(labelled, 1.0) is first
    workers.describe(WorkerId("v"), WorkerInfo(labels=frozenset({"a"})))
    assert [one.worker for one in workers.wished(labelled, 1.0)] == ["v", "w"]

    many = msgspec.structs.replace(labelled, tolerations=frozenset(map(str, range(9))))
    assert workers.wished(many, 1.0) is not workers.wished(many, 1.0)
    for number in range(70):
        wish = msgspec.structs.replace(labelled, tolerations=frozenset({str(number)}))
        assert workers.wished(wish, 1.0)
    workers.thresholds = BusyThresholds(active_prefill_tokens=1)
    ask(one, "r1", pinned_worker=WorkerId("w"))
    assert [one.worker for one in workers.wished(labelled, 1.0)] == ["v"]


@pytest.mark.parametrize("has_lookahead", [False, True])
def test_tiers_whose_hits_depend_on_what_follows_are_the_affair_of_dispatch(
    has_lookahead: bool,
) -> None:
    index = KvIndex()
    dispatch = dispatch_to("w", index=index)
    index.store(WorkerId("w"), ROOT, pack_hashes([1, 2]), 1)
    if has_lookahead:
        index.apply(WorkerId("w"), Reuse(lookahead=1))

    assert (tried(Way(dispatch)) is None) == has_lookahead


def test_few_requests_at_sessions_workers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "MOST_PINNED", 1)
    dispatch = dispatch_to("v", "w")
    one = Way(dispatch)
    dispatch.scheduler.sessions = Sessions(SessionOptions(affinity="hard"))
    workers = {placed_of(ask(one, f"{n}", session=f"s{n % 9}")).record.worker for n in range(99)}

    assert (workers, len(one._pinned)) == ({"v", "w"}, 1)


def test_where_no_events_tell_nothing_is_asked_of_them() -> None:
    dispatch = dispatch_to("v")
    dispatch.follows_events = False

    assert placed_of(ask(Way(dispatch))).event_tokens == -1


@pytest.mark.parametrize("affinity", ["hard", "soft"])
def test_a_session_with_targets_that_its_worker_would_miss(affinity: Any) -> None:
    dispatch = dispatch_to("v", "w")
    dispatch.scheduler.sessions = Sessions(SessionOptions(affinity=affinity))
    one = Way(dispatch)
    first = placed_of(ask(one, session="s"))

    assert ask(one, session="s", targets=Targets(1e-9, None)) is None
    assert placed_of(ask(one, session="s")).record.worker == first.record.worker


def test_a_trial_counts_what_its_arms_served() -> None:
    dispatch = dispatch_to("w")
    policy = PUBLISHED.plain("predicted-time")
    counter = Counter()
    arms = Arms(policy, PUBLISHED.plain("lmetric"), "candidate", counter, 1)
    dispatch.scheduler.follow(policy, arms)
    one = Way(dispatch)
    placed = decide(one)
    after = decide(one)

    one.seen(placed, 1, 1.5)
    one.finish(placed, 200, Usage(9, 5, None), 2.0)

    assert placed.record.decision.arm is arms.now
    assert after.record.decision.arm is None
    assert (counter.tally().requests, counter.tally().ttft.count) == (1, 1)


def test_a_request_with_targets_whose_booking_is_gone_is_closed() -> None:
    dispatch = dispatch_to("w")
    one = Way(dispatch)
    placed = placed_of(ask(one, targets=Targets(1e9, None)))
    dispatch.scheduler.remove_worker(WorkerId("w"))

    one.finish(placed, 200, None, 2.0)

    assert dict(dispatch.scheduler.slo.statistics().results)["unserved"] == 1
