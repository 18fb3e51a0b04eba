from kvmesh.app.care.hang_watch import ASK_AFTER_S, ASK_EVERY_S, HangWatch
from kvmesh.transport.http.forward.plan import Forwarding
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.upstream.messages import UpstreamFailure


class Waiting:
    """A request at a worker, and its way."""

    def __init__(self, worker: str, sent_s: float, *, overdue: bool = False) -> None:
        self.crashes: list[str] = []
        self.scope = Scope(b"q", lambda error, _: self.crashes.append(str(error)))
        self.forwarding: Forwarding = self
        self.worker = worker
        self.sent_s = sent_s
        self.overdue = overdue
        self.given_up: list[str] = []
        self.bound = None

    def is_overdue(self, now: float) -> bool:
        del now
        return self.overdue

    def proceed(self) -> None:
        """Nothing waits here."""

    def usage(self) -> None:
        """Nothing was answered."""

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        assert (failure.kind, failure.origin) == ("hung", self.worker)
        self.given_up.append(failure.message)


def make_watch(*waiting: Waiting) -> HangWatch:
    watch = HangWatch(lambda: 10.0)
    for one in waiting:
        watch.waiting[one] = None
    return watch


def test_a_worker_that_lets_a_request_wait_is_asked_each_second() -> None:
    watch = make_watch(Waiting("w1", 0.0), Waiting("w2", 1.0), Waiting("w1", 1.5))

    assert watch.due(ASK_AFTER_S - 0.1) == []
    assert watch.due(ASK_AFTER_S) == ["w1"]
    assert watch.due(ASK_AFTER_S + 0.5) == []
    assert watch.due(ASK_AFTER_S + ASK_EVERY_S) == ["w1", "w2"]


def test_who_waits_no_longer_is_no_reason_to_ask() -> None:
    one = Waiting("w1", 0.0)
    watch = make_watch(one)
    assert watch.due(5.0) == ["w1"]

    watch.waiting.pop(one, None)
    watch.waiting.pop(one, None)

    assert watch.due(5.1) == []
    again = Waiting("w1", 2.0)
    watch.waiting[again] = None
    assert watch.due(5.2) == ["w1"], "nothing is kept of the time before"


def test_a_request_sent_once_more_waits_from_then_on() -> None:
    one, other = Waiting("w1", 0.0), Waiting("w2", 1.0)
    watch = make_watch(one, other)

    one.worker, one.sent_s = "w3", 3.0
    watch.waiting[one] = watch.waiting.pop(one)

    assert watch.due(4.0) == ["w2"]


def test_a_worker_that_is_not_there_is_given_up_by_all_that_wait() -> None:
    here, there = Waiting("w1", 0.0), Waiting("w2", 0.0, overdue=True)
    watch = make_watch(here, Waiting("w1", 9.0), there)

    watch.answered("w1", "down")

    assert here.given_up == ["w1 gave no answer in 10.0 s: it does not answer its health check"]
    assert there.given_up == []
    assert watch.given_up == 2


def test_two_answers_in_a_row_that_come_too_late_are_as_good_as_none() -> None:
    one = Waiting("w1", 0.0)
    watch = make_watch(one)

    for answer in ("slow", "ok", "slow"):
        watch.answered("w1", answer)
        assert one.given_up == []
    watch.answered("w1", "slow")

    assert one.given_up == ["w1 gave no answer in 10.0 s: it does not answer its health check"]


def test_a_worker_that_answers_is_given_up_only_by_requests_long_overdue() -> None:
    late, fine = Waiting("w1", 0.0, overdue=True), Waiting("w1", 0.0)
    watch = make_watch(late, fine)

    watch.answered("w1", "ok")

    assert late.given_up == ["w1 gave no answer in 10.0 s: its requests are overdue"]
    assert fine.given_up == []


def test_one_that_fails_as_it_is_given_up_leaves_the_others_given_up() -> None:
    class Failing(Waiting):
        def fail_attempt(self, failure: UpstreamFailure) -> None:
            super().fail_attempt(failure)
            raise RuntimeError("planted")

    one, other = Failing("w1", 0.0), Waiting("w1", 0.0)
    watch = make_watch(one, other)

    watch.answered("w1", "down")

    assert (one.crashes, one.scope.kind, one.scope.over) == (["planted"], "crashed", True)
    assert len(other.given_up) == 1
