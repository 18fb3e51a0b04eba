from collections.abc import Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from kvmesh.app.members.hang_watch import (
    ASK_AFTER_S,
    ASK_EVERY_S,
    SLOW_ANSWERS,
    SLOW_FLEET,
    HangWatch,
)
from kvmesh.app.members.open_streams import OpenStreams
from kvmesh.core.members.health import Answer
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.progress import Due
from kvmesh.transport.http.forward.plan import Forwarding
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.upstream.messages import UpstreamFailure

SILENT = "w1 gave no answer in 10.0 s: it does not answer its health check"
STALLED = "w1 gave no answer in 10.0 s: its engine has requests and makes no progress"


class Signs:
    """What engines show; `stalled` stand still."""

    def __init__(self, *stalled: str) -> None:
        self.stalled = stalled
        self.shown: dict[str, float] = {}
        self.asked: list[Sequence[Due]] = []

    def shown_s(self, worker: str) -> float:
        return self.shown.get(worker, -1.0)

    def is_stalled(self, worker: str, dues: Sequence[Due]) -> bool:
        self.asked.append(dues)
        return worker in self.stalled


class Waiting:
    """A request at a worker, and its way."""

    def __init__(self, worker: str, sent_s: float, *, due: bool = True) -> None:
        self.crashes: list[str] = []
        self.scope = Scope(b"q", lambda error, _: self.crashes.append(str(error)))
        self.forwarding: Forwarding = self
        self.worker = worker
        self.sent_s = sent_s
        self.due = Due(sent_s) if due else None
        self.given_up: list[str] = []
        self.bound = None
        self.passed = 0
        self.exchange: Any = SimpleNamespace(
            silent_s=inf, request=SimpleNamespace(header=lambda _: None)
        )
        self.resumable = ""

    def patience_s(self) -> float:
        return 1.0

    def proceed(self) -> None:
        """Nothing waits here."""

    def usage(self) -> None:
        """Nothing was answered."""

    def hand_over(self, failure: UpstreamFailure) -> None:
        raise AssertionError(failure)

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        assert (failure.kind, failure.origin) == ("hung", self.worker)
        self.given_up.append(failure.message)


def make_watch(*waiting: Waiting, signs: Signs | None = None, members: int = 9) -> HangWatch:
    watch = HangWatch(lambda: 10.0, lambda: "w" * members)
    watch.evidence = signs
    for one in waiting:
        watch.waiting[one] = None
    return watch


def test_a_worker_that_lets_a_request_wait_is_asked_each_second() -> None:
    watch = make_watch(Waiting("w1", 0.0), Waiting("w2", 1.0), Waiting("w1", 1.5))

    assert watch.due(ASK_AFTER_S - 0.1) == []
    assert watch.due(ASK_AFTER_S) == ["w1"]
    assert watch.due(ASK_AFTER_S + 0.5) == []
    assert watch.due(ASK_AFTER_S + ASK_EVERY_S) == ["w1", "w2"]


class Standing(Waiting):
    """A stream that stands still."""

    def __init__(self, worker: str) -> None:
        super().__init__(worker, 0.0)
        self.moved: list[UpstreamFailure] = []

    def hand_over(self, failure: UpstreamFailure) -> None:
        self.moved.append(failure)


def test_the_engine_of_a_stream_that_stands_still_is_asked_until_it_is_given_up() -> None:
    watch, stream = make_watch(), Standing("w1")
    times = iter((0.0, *[20.0] * 99))
    membership = Membership()
    membership.add("w2", 0.0)
    watch.streams = OpenStreams(membership, lambda: next(times))
    watch.streams.enter(stream)
    asked = []

    for second in range(20, 20 + SLOW_ANSWERS):
        asked += [watch.due(float(second)), watch.due(second + 0.5)]
        assert stream.moved == []
        watch.answered("w1", "slow")

    assert asked == [["w1"], []] * SLOW_ANSWERS
    assert [one.kind for one in stream.moved] == ["hung"]


@pytest.mark.parametrize("answer", ["down", "unready"])
def test_a_worker_that_is_not_there_is_given_up_by_all_that_wait(answer: Answer) -> None:
    here, there = Waiting("w1", 0.0), Waiting("w2", 0.0)
    watch = make_watch(here, Waiting("w1", 9.0), there, signs=Signs())

    watch.answered("w1", answer)

    assert here.given_up == [SILENT]
    assert there.given_up == []
    assert watch.given_up == 2


def test_a_replica_that_answers_holds_its_requests_whatever_it_says() -> None:
    one = Waiting("w1", 0.0, due=False)
    watch = make_watch(one)

    for answer in ("ok", "unready", "ok", "slow", "slow", "unready"):
        watch.answered("w1", answer)

    assert one.given_up == []
    watch.answered("w1", "down")
    assert one.given_up == [SILENT]


def test_answers_in_a_row_that_come_too_late_are_as_good_as_none() -> None:
    one = Waiting("w1", 0.0)
    watch = make_watch(one)

    late: list[Answer] = ["slow"] * (SLOW_ANSWERS - 1)
    answers: list[Answer] = ["slow", "slow", "ok", *late]
    for answer in answers:
        watch.answered("w1", answer)
        assert one.given_up == []
    watch.answered("w1", "slow")

    assert one.given_up == [SILENT]


def test_one_that_shows_progress_may_answer_its_health_check_late() -> None:
    signs = Signs()
    signs.shown["w1"] = 10.1
    one = Waiting("w1", 0.0)
    watch = make_watch(one, signs=signs)

    for _ in range(2 * SLOW_ANSWERS):
        watch.answered("w1", "slow")

    assert one.given_up == []


def test_most_workers_answering_late_are_a_slow_machine() -> None:
    waiting = [Waiting("w1", 0.0), Waiting("w2", 0.0)]
    watch = make_watch(*waiting, signs=Signs(), members=3)

    for _ in range(SLOW_ANSWERS * SLOW_FLEET - 1):
        for one in waiting:
            watch.answered(one.worker, "slow")
    assert [one.given_up for one in waiting] == [[], []]

    watch.answered("w1", "slow")
    assert waiting[0].given_up == [SILENT]


def test_a_worker_that_answers_is_given_up_by_all_if_its_engine_stands_still() -> None:
    signs = Signs("w1")
    first, last = Waiting("w1", 0.0), Waiting("w1", 9.0)
    watch = make_watch(first, last, Waiting("w2", 0.0), signs=signs)

    watch.answered("w2", "ok")
    assert first.given_up == []
    watch.answered("w1", "ok")

    assert first.given_up == [STALLED]
    assert len(last.given_up) == 1
    assert signs.asked == [[Due(0.0)], [Due(0.0), Due(9.0)]]


def test_only_requests_that_an_engine_owes_something_show_that_it_stands_still() -> None:
    signs = Signs("w1")
    owed, not_yet = Waiting("w1", 0.0), Waiting("w1", 0.0, due=False)
    watch = make_watch(not_yet, signs=signs)
    assert not watch.is_stalled(not_yet)

    watch.answered("w1", "ok")
    assert (signs.asked, not_yet.given_up) == ([], [])

    assert watch.is_stalled(owed)
    assert signs.asked == [[Due(0.0)]]


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
