import random
from collections.abc import Callable, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from kvmesh._native import Booking
from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.router import Router
from kvmesh.app.front.tracing import tracer_for
from kvmesh.app.members.failure_care import FailureCounts
from kvmesh.app.members.hang_watch import HangWatch
from kvmesh.app.members.open_streams import OpenStreams
from kvmesh.app.members.patience import Patience
from kvmesh.app.serve.admission import AdmissionGate
from kvmesh.app.serve.fetching import Fetching
from kvmesh.app.serve.response_holders import ResponseHolders
from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.app.serve.routing_context import RoutingContext, RoutingCounters
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.chat.prompt_form import Unforeseen
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.engines.sse import Usage
from kvmesh.core.index.approx import new_approx
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.predictions import AnswerSeen
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import (
    SERVED,
    UNKNOWN,
)
from kvmesh.core.members.retry_budget import RetryBudget
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.kept_ids import KeptIds
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.observe import get_logger
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.transport.http.forward.plan import Outcome, Target
from kvmesh.transport.http.forward.resume import Going
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.problem import NO_RETRY
from tests.unit.app.told_outbox import NotedOutbox
from tests.unit.transport.http.forward.told_events import Asked

W1, W2 = WorkerId("w1"), WorkerId("w2")
RESET = UpstreamFailure("after_send", "reset", "w1: reset", "http://w1")
REFUSED = UpstreamFailure("before_send", "refused", "w1: refused", "http://w1")
BUSY = UpstreamFailure("mid_response", "status", "w1: 429", "http://w1", 429, 4.0)


class StillForwarding:
    """A request on its way that nobody sends."""

    bound = None
    passed = 0
    resumable = ""
    exchange: Any = SimpleNamespace(silent_s=inf, request=SimpleNamespace(header=lambda _: None))

    def __init__(self, name: str) -> None:
        self.scope = Scope(name.encode(), lambda *_: None)

    def proceed(self) -> None:
        raise AssertionError

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        raise AssertionError(failure)

    def hand_over(self, failure: UpstreamFailure) -> None:
        raise AssertionError(failure)

    def patience_s(self) -> float:
        return 60.0

    def usage(self) -> Usage | None:
        return None


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
            lambda worker, distrust: None,  # noqa: ARG005
            follows_events=False,
        )
        self.context = RoutingContext(
            holders=ResponseHolders(KeptIds()),
            emptied=list[WorkerId]().append,
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
            streams=OpenStreams(self.scheduler.workers.membership, clock),
            ask_suspects=self.ask,
        )

        for worker in (W1, W2):
            beat = WorkerHeartbeat(worker, "b", 1, 0, f"http://{worker}", (), 16)
            self.context.router.heartbeats[worker] = beat

    def ask(self) -> None:
        self.asked += 1

    def place(
        self,
        name: str = "q",
        worker: WorkerId | None = W1,
        *,
        streams: bool = True,
        unforeseen: Unforeseen = "",
    ) -> RoutedRequest:
        """Return a request that was sent to a worker."""
        request = RouteRequest(
            name,
            BlockHashes.of([1, 2, 3], 16),
            48,
            pinned_worker=worker,
            streams=streams,
            unforeseen=unforeseen,
        )
        one = self.context.routing.enter(request, name.encode())
        routed = RoutedRequest(self.context, one, StillForwarding(name))
        assert isinstance(routed.next_target(), Target)
        self.noted.place(self.scheduler.sequences.bookings[name])
        return routed

    def booked(self) -> Sequence[str]:
        return [one.request_id for one in self.scheduler.sequences.owned()]


def whole(status: int = 200, **other: Any) -> Outcome:
    return Outcome("finished", status, 1, **other)


def test_a_booking_is_told_and_released_once() -> None:
    routing = Routing()
    routed = routing.place()
    assert routed.worker == W1
    assert routing.booked() == ["q"]
    assert routing.context.open_requests == {"q"}

    routed.give_back()
    routed.give_back()

    assert routing.noted.reported == [("ended", "q", UNKNOWN)]
    assert routing.context.open_requests == set()
    assert routing.booked() == []


def test_the_client_is_told_of_the_decision() -> None:
    routing = Routing()
    routed = routing.place()

    headers = routed.on_head(200)

    assert dict(headers) == {
        b"x-kvmesh-worker": b"w1",
        b"x-kvmesh-overlap-blocks": b"0",
        b"x-kvmesh-trust": b"exact",
        b"x-kvmesh-router": b"r1",
    }
    routing.scheduler.workers.panic = True
    assert (b"x-kvmesh-panic", b"1") in routed.on_head(200)


def test_overlaps_that_do_not_hold_are_called_estimated() -> None:
    routing = Routing()
    routed = routing.place()
    for at in range(10):
        answer = AnswerSeen(640, 640, predicted=320, cached=0, decided_s=float(at))
        routing.context.routing.predictions.compare(WorkerId("w1"), answer, float(at))

    assert dict(routed.on_head(200))[b"x-kvmesh-trust"] == b"estimated"


def test_a_client_that_may_not_know_what_is_cached_is_told_nothing_of_it() -> None:
    routing = Routing()
    routed = routing.place()
    routed.fetching = Fetching({}, b"{}")
    shown = routed.cached_tokens

    routed.one.veiled = True

    assert (shown, routed.cached_tokens) == (0, None)
    assert b"x-kvmesh-overlap-blocks" not in dict(routed.on_head(200))


def test_the_client_is_told_why_its_cached_prefix_is_not_foretold() -> None:
    headers = dict(Routing().place(unforeseen="siblings").on_head(200))

    assert headers[b"x-kvmesh-trust"] == b"approx"
    assert headers[b"x-kvmesh-unforeseen"] == b"siblings"


@pytest.mark.parametrize(
    ("outcome", "unforeseen", "reported"),
    [
        (whole(), "", 1),
        (whole(), "batch", 0),
        (whole(watched=False), "", 0),
        (whole(400), "", 0),
        (whole(500), "", 0),
        (Outcome("cut", 200, 1, RESET), "", 0),
    ],
)
def test_events_are_expected_of_what_was_served_alone(
    outcome: Outcome, unforeseen: Unforeseen, reported: int
) -> None:
    routing = Routing()
    routed = routing.place(unforeseen=unforeseen, streams=False)
    routed.on_head(outcome.status)

    routed.on_finish(outcome)

    assert len(routing.released) == reported
    assert routing.booked() == []


def test_a_failure_releases_and_judges_the_worker_and_has_it_asked() -> None:
    routing = Routing()
    routed = routing.place()
    routing.now += 1.5

    assert routed.on_attempt_failed(RESET)

    (ended,) = routing.noted.reported
    assert ended[:2] == ("ended", "q")
    assert routing.booked() == []
    assert routing.asked == 1
    assert routing.health.recent(W1) == (1, 1)
    assert routing.context.counters.failures.as_dict() == {("w1", "reset"): 1}


def test_a_status_is_judged_with_the_time_it_asks_for() -> None:
    routing = Routing()

    routing.place().on_attempt_failed(BUSY)

    assert routing.context.counters.failures.as_dict() == {("w1", "429"): 1}
    assert routing.scheduler.workers.everyone(routing.now + 3.9) == (W2,)


def test_a_request_that_fails_at_two_sound_workers_is_to_blame_and_they_are_forgiven() -> None:
    routing = Routing()
    routed = routing.place(worker=None)

    assert routed.on_attempt_failed(RESET)
    assert isinstance(routed.next_target(), Target)
    assert not routed.on_attempt_failed(RESET)

    assert routing.scheduler.workers.everyone(routing.now) == (W1, W2)
    assert [routing.health.is_suspect(one) for one in (W1, W2)] == [False, False]
    assert NO_RETRY in routed.on_head(502)


def test_a_suspect_that_fails_again_is_to_blame_itself() -> None:
    routing = Routing()
    routing.scheduler.workers.note(W2, SERVED, routing.now)
    routing.place("other", W1).on_attempt_failed(REFUSED)
    routing.now += 1.1
    routed = routing.place(worker=None)

    routed.on_attempt_failed(RESET)
    routed.next_target()

    assert routed.on_attempt_failed(RESET)
    assert NO_RETRY not in routed.on_head(502)


CUT = UpstreamFailure("mid_response", "truncated", "w1: closed", "http://w1")
LEFT = UpstreamFailure("mid_response", "left", "w1 drains", "http://w1")


def streaming(routing: Routing) -> RoutedRequest:
    """Return a stream under way, read again as it was asked, when it goes on."""
    routed = routing.place()
    routed.forwarding.resumable = "exact"  # type: ignore[misc]  # a stream
    routed.on_head(200)

    def read(_: object, ids: bytes | None, then: Callable[[RouteRequest], None]) -> None:
        assert ids == b"1234"
        then(RouteRequest("new", BlockHashes.of([1, 2, 3, 4], 16), 64))

    routing.context.again.read = read
    return routed


def going() -> Going:
    return Going(Asked(), b"1234", 5)


def test_a_cut_stream_goes_on_at_another_worker_under_its_name() -> None:
    routing = Routing()
    routed = streaming(routing)
    assert list(routing.context.streams.open) == [routed]

    assert routed.go_on(CUT, going())

    assert routing.booked() == []
    assert routing.context.streams.open == {}
    assert isinstance(routed.next_target(), Target)
    assert (routed.worker, routing.booked()) == (W2, ["q"])
    assert routed.on_head(200) == ()
    assert list(routing.context.streams.open) == [routed]
    assert routing.context.counters.failures.as_dict() == {("w1", "truncated"): 1}
    routed.on_finish(whole())
    assert routing.booked() == []
    assert routing.context.streams.open == {}


def test_a_stream_goes_on_behind_a_second_loss_whoever_is_to_blame() -> None:
    routing = Routing()
    routed = streaming(routing)
    assert routed.go_on(CUT, going())
    assert isinstance(routed.next_target(), Target)
    routed.on_head(200)

    assert routed.go_on(CUT, going())


def test_a_worker_that_drains_did_nothing_wrong_and_costs_no_retry() -> None:
    routing = Routing()
    routed = streaming(routing)
    left = routing.context.budget.left()

    assert routed.go_on(LEFT, going())

    assert isinstance(routed.next_target(), Target)
    assert routed.worker == W2
    assert routing.context.budget.left() == left
    assert routing.context.counters.failures.as_dict() == {}
    assert routing.context.counters.attempts_failed == 0


def test_a_stream_ends_behind_its_second_worker_where_no_retry_is_left() -> None:
    routing = Routing()
    routed = streaming(routing)
    while routing.context.budget.take(routing.now):
        pass

    assert routed.go_on(CUT, going()), "the first is lost with all its streams"
    assert isinstance(routed.next_target(), Target)
    routed.on_head(200)
    assert not routed.go_on(CUT, going())
    assert not routed.go_on(CUT, going()), "its worker is released"

    assert routing.booked() == []


def test_a_stream_that_lacks_its_end_alone_is_served_by_nobody() -> None:
    routing = Routing()
    routed = streaming(routing)

    routed.lose(CUT)
    routed.on_finish(whole())

    assert routing.context.counters.failures.as_dict() == {("w1", "truncated"): 1}
    assert routing.booked() == []
    assert routing.released == []
