"""Streams under way that could go on elsewhere: moved from members that leave, or stand still."""

from collections.abc import Callable, Iterator
from typing import Final, Protocol

import msgspec

from kvmesh.core.members.membership import DRAINING, Membership
from kvmesh.core.members.progress import Due
from kvmesh.transport.http.forward.plan import Forwarding
from kvmesh.transport.http.upstream.messages import UpstreamFailure

QUIET_S: Final = 3.0
"""A stream without a token for so long is quiet: its member is asked whether it is there."""

STAY_S: Final = 2.0
"""What would soon end where it is may: a stream leaves a draining member after so long."""


class Stream(Protocol):
    """A request whose answer streams."""

    @property
    def forwarding(self) -> Forwarding:
        """Return its way."""
        ...

    @property
    def worker(self) -> str:
        """Return the member that it comes from."""
        ...


class _Passed(msgspec.Struct):
    """How many tokens of a stream had passed when it was looked at, since when no more."""

    tokens: int
    since_s: float


class OpenStreams:
    """The streams of one process that can go on elsewhere. Who begins one enters it into `open`,
    and takes it out at its end.
    """

    def __init__(self, membership: Membership, clock: Callable[[], float]) -> None:
        self.open: dict[Stream, _Passed] = {}
        self.moved = 0
        self._membership = membership
        self._clock = clock
        self._draining_s: dict[str, float] = {}

    def enter(self, stream: Stream) -> None:
        """Take in a stream that begins, or goes on at another member."""
        self.open[stream] = _Passed(0, self._clock())

    def look(self, now: float) -> None:
        """Note who is quiet, and move what is at members that leave. O(streams)."""
        at: dict[str, list[Stream]] = {}
        for stream, passed in self.open.items():
            tokens = stream.forwarding.passed
            if tokens != passed.tokens:
                passed.tokens, passed.since_s = tokens, now
            at.setdefault(stream.worker, []).append(stream)
        why_not = self._membership.why_not
        draining = {one for one in at if why_not(one, now) == DRAINING}
        self._draining_s = {one: self._draining_s.get(one, now) for one in draining}
        for member, since_s in self._draining_s.items():
            if now - since_s >= STAY_S:
                self._move(at[member], UpstreamFailure("mid_response", "left", "it drains", member))

    def quiet(self, now: float) -> set[str]:
        """Return the members with streams that are quiet."""
        return {stream.worker for stream in self._quiet(now)}

    def dues(self, member: str) -> list[Due]:
        """Return since when a member owes tokens to its quiet streams."""
        return [Due(self.open[stream].since_s) for stream in self._quiet_at(member)]

    def give_up(self, member: str, why: str) -> None:
        """Move the quiet streams of a member that does nothing for them."""
        text = f"{member} stopped in the middle of its answer: {why}"
        failure = UpstreamFailure("mid_response", "hung", text, member)
        self._move(self._quiet_at(member), failure)

    def _quiet_at(self, member: str) -> list[Stream]:
        return [one for one in self._quiet(self._clock()) if one.worker == member]

    def _quiet(self, now: float) -> Iterator[Stream]:
        return (stream for stream, one in self.open.items() if now - one.since_s >= QUIET_S)

    def _move(self, streams: list[Stream], failure: UpstreamFailure) -> None:
        """Have streams go on elsewhere if there is anybody: else to wait is better."""
        if not any(one != failure.origin for one in self._membership.usable(self._clock())):
            return
        for stream in streams:
            self.moved += 1
            stream.forwarding.scope.enter(stream.forwarding.hand_over, failure)
