import random
from collections.abc import Sequence

import pytest

from kvmesh._native import Booking
from kvmesh.actors.members.router import Router
from kvmesh.app.care.failure_counts import FailureCounts
from kvmesh.app.care.hang_watch import HangWatch
from kvmesh.app.care.patience import Patience
from kvmesh.app.front.tracing import tracer_for
from kvmesh.app.serve.admission import AdmissionGate
from kvmesh.app.serve.placement import Placement
from kvmesh.app.serve.routing_context import RoutingContext, RoutingCounters
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.chat.prompt_form import Unforeseen
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.health.blame import Blame
from kvmesh.core.health.outcomes import (
    SERVED,
    UNKNOWN,
    Attempt,
    Verdict,
    failed_attempt,
    status_attempt,
)
from kvmesh.core.health.retry_budget import RetryBudget
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.members.membership import Membership
from kvmesh.core.overlap.approx import new_approx
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.workers.sequences import new_sequences
from kvmesh.observe import get_logger
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.transport.http.upstream.client import UpstreamFailure
from tests.unit.app.told_outbox import NotedOutbox

W1, W2 = WorkerId("w1"), WorkerId("w2")
RESET = UpstreamFailure("after_send", "reset", "w1: reset", "http://w1")
REFUSED = UpstreamFailure("before_send", "refused", "w1: refused", "http://w1")
BUSY = UpstreamFailure("mid_response", "status", "w1: 429", "http://w1", 429, 4.0)


class Routing:
    """A scheduler of two workers, and all that requests share, at a time that tests set."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0
        self.released: list[Booking] = []
        membership = Membership()
        self.scheduler = Scheduler(
            RouterOptions(),
            random.Random(1),
            membership=membership,
            sequences=new_sequences(16),
            routed=new_approx(),
        )
        for worker in (W1, W2):
            membership.add(worker, 0.0)
        self.health = membership.health
        self.noted = NotedOutbox(self.scheduler.sequences)

        def clock() -> float:
            return self.now

        log = DecisionLog()
        dispatch = Dispatch(
            self.scheduler,
            log,
            lambda: 0.0,
            lambda worker, doubt: None,  # noqa: ARG005
            follows_events=False,
        )
        self.context = RoutingContext(
            router=Router(self.scheduler, 16),
            router_id="r1",
            bucket="b",
            counters=RoutingCounters(FailureCounts(), dispatch.tokens),
            clock=clock,
            log=get_logger().bind(),
            fixed_headers=((b"x-kvmesh-router", b"r1"),),
            open_requests=set(),
            outbox=self.noted.outbox,
            released=self.released.append,
            scheduler=self.scheduler,
            workers=self.scheduler.workers,
            routing=dispatch,
            decisions=log,
            gate=AdmissionGate(dispatch, AdmissionSettings(), clock),
            tracer=tracer_for("", "router"),
            budget=RetryBudget(0.2),
            patience=Patience(0.0, lambda: ("w0",), clock),
            hangs=HangWatch(clock),
            ask_suspects=self.ask,
        )

    def ask(self) -> None:
        self.asked += 1

    def place(
        self,
        name: str = "q",
        worker: WorkerId = W1,
        *,
        streams: bool = True,
        unforeseen: Unforeseen = "",
    ) -> Placement:
        request = RouteRequest(
            name,
            BlockHashes.of([1, 2, 3], 16),
            48,
            pinned_worker=worker,
            streams=streams,
            unforeseen=unforeseen,
        )
        one = self.context.routing.enter(request, name.encode())
        decision = self.context.routing.decide(one, self.now)
        assert isinstance(decision, Decision)
        self.noted.place(self.scheduler.sequences.bookings[name])
        return Placement(self.context, one, decision)

    def booked(self) -> Sequence[str]:
        return [one.request_id for one in self.scheduler.sequences.owned()]


def test_a_placement_is_told_and_released_once() -> None:
    routing = Routing()
    placement = routing.place()
    routing.context.open_requests.add("q")
    assert placement.worker == W1
    assert routing.booked() == ["q"]

    assert placement.release(SERVED)
    assert not placement.release(UNKNOWN)

    assert routing.noted.told == [("ended", "q", SERVED)]
    assert routing.context.open_requests == set()
    assert routing.booked() == []
    assert routing.health.recent(W1) == (0, 1)


def test_the_client_is_told_of_the_decision() -> None:
    routing = Routing()
    placement = routing.place()

    headers = placement.headers()

    assert dict(headers) == {
        b"x-kvmesh-worker": b"w1",
        b"x-kvmesh-overlap-blocks": b"0",
        b"x-kvmesh-trust": b"exact",
        b"x-kvmesh-router": b"r1",
    }
    routing.scheduler.workers.panic = True
    assert (b"x-kvmesh-panic", b"1") in placement.headers()


def test_the_client_is_told_why_its_cached_prefix_is_not_foretold() -> None:
    headers = dict(Routing().place(unforeseen="siblings").headers())

    assert headers[b"x-kvmesh-trust"] == b"approx"
    assert headers[b"x-kvmesh-unforeseen"] == b"siblings"


@pytest.mark.parametrize(
    ("attempt", "unforeseen", "told"),
    [
        (SERVED, "", 1),
        (SERVED, "batch", 0),
        (UNKNOWN, "", 0),
        (status_attempt(400), "", 0),
        (status_attempt(500), "", 0),
        (failed_attempt("cut"), "", 0),
    ],
)
def test_events_are_expected_of_what_was_served_alone(
    attempt: Attempt, unforeseen: Unforeseen, told: int
) -> None:
    routing = Routing()

    routing.place(unforeseen=unforeseen, streams=False).release(attempt)

    assert len(routing.released) == told


def test_a_failure_releases_and_judges_the_worker_and_has_it_asked() -> None:
    routing = Routing()
    placement = routing.place()
    routing.now += 1.5

    attempt = placement.fail(RESET, Blame())

    assert (attempt.verdict, attempt.kind, attempt.lost_s) == (Verdict.WORKER, "reset", 1.5)
    assert routing.noted.told[-1] == ("ended", "q", attempt)
    assert routing.booked() == []
    assert routing.asked == 1
    assert routing.health.recent(W1) == (1, 1)
    assert routing.context.counters.failures.as_dict() == {("w1", "reset"): 1}


def test_a_status_is_judged_with_the_time_it_asks_for() -> None:
    routing = Routing()

    attempt = routing.place().fail(BUSY, Blame())

    assert (attempt.verdict, attempt.kind, attempt.retry_after_s) == (
        Verdict.OVERLOAD,
        "429",
        4.0,
    )
    assert routing.scheduler.workers.everyone(routing.now + 3.9) == (W2,)


def test_a_request_that_fails_at_two_sound_workers_is_to_blame_and_they_are_forgiven() -> None:
    routing = Routing()
    blame = Blame()

    routing.place(worker=W1).fail(RESET, blame)
    attempt = routing.place(worker=W2).fail(RESET, blame)

    assert attempt.verdict is Verdict.PROMPT
    assert blame.prompt
    assert routing.scheduler.workers.everyone(routing.now) == (W1, W2)
    assert [routing.health.is_suspect(one) for one in (W1, W2)] == [False, False]


def test_a_suspect_that_fails_again_is_to_blame_itself() -> None:
    routing = Routing()
    routing.scheduler.workers.note(W2, SERVED, routing.now)
    routing.place("other", W1).fail(REFUSED, Blame())
    routing.now += 1.1
    blame = Blame()

    routing.place(worker=W1).fail(RESET, blame)
    routing.place(worker=W2).fail(RESET, blame)

    assert not blame.prompt


def test_requests_that_hung_at_two_workers_are_not_to_blame() -> None:
    routing = Routing()
    hung = UpstreamFailure("after_send", "hung", "w1: hung", "http://w1")
    blame = Blame()

    attempts = [routing.place(worker=one).fail(hung, blame) for one in (W1, W2)]

    assert [one.verdict for one in attempts] == [Verdict.WORKER, Verdict.WORKER]
    assert not blame.prompt
