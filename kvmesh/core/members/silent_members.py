"""Members whose heartbeats do not come: who is asked over HTTP, and what follows from answers."""

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from kvmesh.core.members.health import Answer
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.signs import ASK_AGAIN_S

MOST_LOST: Final = 1024
"""Members remembered that were given up; of more, those given up later are not asked."""

LOST_S: Final = 60.0
"""How long a member that was given up is asked whether it is back, and people are told of it."""

GIVEN_UP: Final = "down: not heard any more, and nothing answers at its URL"


class Addressed(Protocol):
    """A heartbeat that says where its sender is, and whether it is about to leave."""

    @property
    def url(self) -> str:
        """Return the member's HTTP address, "" for none."""
        ...

    @property
    def leaving(self) -> bool:
        """Return whether the member asked for no new requests."""
        ...


Beat = TypeVar("Beat", bound=Addressed)


class _Lost(Generic[Beat]):
    __slots__ = ("ask_s", "beat", "until_s")

    def __init__(self, beat: Beat, now: float) -> None:
        self.beat = beat
        self.ask_s = now + ASK_AGAIN_S
        self.until_s = now + LOST_S


class SilentMembers(Generic[Beat]):
    """Probes those of `membership` without heartbeats, by what `find` knows of them.

    Those given up are asked for another `LOST_S`: whoever comes back on the far side of a partition
    is not heard. Nobody is asked at an address where another member is heard: it took its place.
    """

    def __init__(self, membership: Membership, find: Callable[[str], Beat | None]) -> None:
        self._membership = membership
        self._find = find
        self._lost: dict[str, _Lost[Beat]] = {}

    def lose(self, member: str, beat: Beat, now: float) -> None:
        """Remember a member that was given up, if members are asked at all; none that left."""
        if len(self._lost) >= MOST_LOST and member not in self._lost:
            self._lost = {name: one for name, one in self._lost.items() if now < one.until_s}
        room = len(self._lost) < MOST_LOST or member in self._lost
        if self._membership.signs.asked and not beat.leaving and room:
            self._lost[member] = _Lost(beat, now)

    def lost(self, now: float) -> list[str]:
        """Return who was given up less than `LOST_S` ago and is not back."""
        return [name for name, one in self._lost.items() if now < one.until_s]

    def note_alive(self, member: str) -> None:
        """Note a heartbeat: the member is not lost."""
        if self._lost:
            self._lost.pop(member, None)

    def due(self, now: float) -> list[tuple[str, Beat]]:
        """Return who is to be asked now. O(members) when somebody is."""
        due = self._known(self._membership.due(now)) + self._due_lost(now)
        if not due:
            return []
        signs = self._membership.signs
        note_alive = [name for name in self._membership.members() if signs.is_reachable(name, now)]
        taken = {"", *(beat.url for _, beat in self._known(note_alive))}
        return [(name, beat) for name, beat in due if beat.url not in taken]

    def answered(self, member: str, answer: Answer, now: float) -> Beat | None:
        """Take what asking a member showed; return the last heartbeat of one that is back."""
        if answer == "ok":
            lost = self._lost.pop(member, None)
            if lost is not None:
                return lost.beat
            self._membership.answered_http(member, now)
        elif answer in ("down", "unready"):
            self._membership.signs.refused(member, now)
        return None

    def _known(self, names: list[str]) -> list[tuple[str, Beat]]:
        return [(name, beat) for name in names if (beat := self._find(name)) is not None]

    def _due_lost(self, now: float) -> list[tuple[str, Beat]]:
        if not self._lost:
            return []
        self._lost = {name: one for name, one in self._lost.items() if now < one.until_s}
        due = [(name, one) for name, one in sorted(self._lost.items()) if one.ask_s <= now]
        for _, one in due:
            one.ask_s = now + ASK_AGAIN_S
        return [(name, one.beat) for name, one in due]
