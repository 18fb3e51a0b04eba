"""How many members a table has room for: their names come from whoever may send heartbeats."""

from collections.abc import Iterable
from typing import Final

from kvmesh.actors.kernel import Effect
from kvmesh.actors.refusals import Refusals
from kvmesh.core.members.membership import Membership

MOST_ROUTERS: Final = 1024
"""Replicas and followers of one bucket that are kept in mind."""

CROWDED_S: Final = 60.0
"""So long after the last newcomer was refused a warning says so."""


class Room:
    """Lets `most` members in. Then a newcomer is refused: who is there is never given up for it.

    `kind` is what a member is, `remedy` what to do where they are all wanted.
    """

    def __init__(self, members: Membership, most: int, kind: str, remedy: str) -> None:
        self._members = members
        self._most = most
        self._kind = kind
        self._remedy = remedy
        self._refusals = Refusals()
        self._refused_s: float | None = None

    @property
    def refused(self) -> int:
        """Return how many heartbeats of newcomers were refused since the start."""
        return self._refusals.count

    def has_room_for(self, member: str) -> bool:
        """Return whether `member` is in, or may come in."""
        return len(self._members) < self._most or member in self._members

    def refuse(self, member: str, now: float) -> Iterable[Effect]:
        """Count a member that is refused for lack of room; log it at intervals."""
        self._refused_s = now
        reason = f"there are {self._most} {self._kind} already: {self._remedy}"
        return self._refusals.note(member, reason, now)

    def warnings(self, now: float) -> tuple[str, ...]:
        """Return that newcomers are refused, in a line, while that is so."""
        if self._refused_s is None or now > self._refused_s + CROWDED_S:
            return ()
        return (f"{self._kind} beyond {self._most} are refused: {self._remedy}",)
