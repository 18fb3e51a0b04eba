from math import inf
from types import SimpleNamespace
from typing import Any

from kvmesh.app.members.open_streams import QUIET_S, STAY_S, OpenStreams
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.progress import Due
from kvmesh.transport.http.forward.plan import Forwarding
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.upstream.messages import UpstreamFailure


class Flowing:
    """A stream from a member, and its way."""

    bound = None
    exchange: Any = SimpleNamespace(silent_s=inf, request=SimpleNamespace(header=lambda _: None))
    resumable = "exact"

    def __init__(self, worker: str) -> None:
        self.scope = Scope(b"q", lambda *_: None)
        self.forwarding: Forwarding = self
        self.worker = worker
        self.passed = 0
        self.moved: list[tuple[str, str]] = []

    def hand_over(self, failure: UpstreamFailure) -> None:
        self.moved.append((failure.kind, failure.origin))

    def patience_s(self) -> float:
        return 1.0

    def proceed(self) -> None:
        raise AssertionError

    def usage(self) -> None:
        """Nothing was reported."""

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        raise AssertionError(failure)


class Fleet:
    """Two members, and a time that tests set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.membership = Membership()
        for name in ("w1", "w2"):
            self.membership.observe(name, 1, 0.0)
        self.streams = OpenStreams(self.membership, lambda: self.now)

    def stream(self, worker: str) -> Flowing:
        found = Flowing(worker)
        self.streams.enter(found)
        return found

    def look(self, now: float) -> None:
        self.now = now
        self.streams.look(now)


def test_streams_leave_a_member_that_drains_when_they_could_have_ended() -> None:
    fleet = Fleet()
    leaving, other = fleet.stream("w1"), fleet.stream("w2")
    fleet.membership.observe("w1", 1, 1.0, draining=True)

    fleet.look(1.0)
    fleet.look(1.0 + STAY_S - 0.1)
    assert leaving.moved == []
    fleet.look(1.0 + STAY_S)

    assert leaving.moved == [("left", "w1")]
    assert other.moved == []
    assert fleet.streams.moved == 1


def test_a_member_that_stays_after_all_keeps_its_streams() -> None:
    fleet = Fleet()
    stream = fleet.stream("w1")
    fleet.membership.observe("w1", 1, 1.0, draining=True)
    fleet.look(1.0)
    fleet.membership.observe("w1", 1, 2.0)
    fleet.look(2.0)
    fleet.membership.observe("w1", 1, 3.0, draining=True)

    fleet.look(3.0)
    fleet.look(3.0 + STAY_S / 2)

    assert stream.moved == []


def test_a_stream_is_quiet_when_no_token_came_for_long() -> None:
    fleet = Fleet()
    flowing, standing = fleet.stream("w1"), fleet.stream("w2")
    flowing.passed = standing.passed = 5
    fleet.look(1.0)
    flowing.passed = 6

    fleet.look(1.0 + QUIET_S)

    assert fleet.streams.quiet(fleet.now) == {"w2"}
    assert fleet.streams.dues("w2") == [Due(1.0)]
    assert fleet.streams.dues("w1") == []


def test_quiet_streams_alone_are_given_up() -> None:
    fleet = Fleet()
    standing = fleet.stream("w1")
    fleet.now = 2.0
    begun = fleet.stream("w1")
    fleet.now = QUIET_S

    fleet.streams.give_up("w1", "it does not answer")

    assert standing.moved == [("hung", "w1")]
    assert begun.moved == []
