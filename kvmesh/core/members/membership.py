"""Who is there and may be given work, by heartbeats and outcomes: workers or replicas."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import msgspec
from sortedcontainers import SortedDict

from kvmesh.core.members.health import BACKOFF_S, MAX_BACKOFF_S, Answer, Health
from kvmesh.core.members.health_record import Stage, Standing
from kvmesh.core.members.outcomes import Attempt
from kvmesh.core.members.signs import DEAD_AFTER_S, NEVER, Signs, Turn

NOT_READY: Final = "not ready"
DRAINING: Final = "draining"
STARTING: Final = "what members hold is read first"
"""Why a member gets nothing new though nothing is wrong with it."""


class ChangeKind(Enum):
    """What happened to a member."""

    JOINED = "joined"
    RESTARTED = "restarted"
    UPDATED = "updated"
    LEFT = "left"
    SUSPECTED = "suspected"
    RECOVERED = "recovered"
    SILENT = "silent"
    HEARD = "heard"


class Change(msgspec.Struct, frozen=True):
    """One change of the view. `RESTARTED`: same name, another epoch; all it held is gone.

    `SILENT`: no longer heard, though it answers over HTTP; `HEARD`: heard again.
    """

    kind: ChangeKind
    member: str
    epoch: int


class MemberView(msgspec.Struct, frozen=True):
    """One member as seen now, for people. Times are seconds ago or ahead.

    `failures` of its last `attempts` failed; `stage` is where that puts it.
    """

    member: str
    epoch: int
    ready: bool
    draining: bool
    failures: int
    last_sign_s: float
    usable: bool
    retry_in_s: float
    attempts: int = 0
    stage: Standing = "in"
    silent: bool = False


class _Member(msgspec.Struct, eq=False):
    epoch: int
    lasting: bool = False
    ready: bool = True
    why: str = NOT_READY
    draining: bool = False


class Membership:
    """Members by name. A sign of life keeps one for `dead_after_s`; a static one stays for ever.

    `by_name` has all of them, to be looked up alone. `signs` tell who is silent and has to be
    asked. Members are given up by `expire` alone, so that after a pause of this process what was
    sent meanwhile is read first.

    Each of `screens` returns why a member may not be given work whatever it says, "" when it may.
    They are asked when something changes, and after `screen_anew`.

    `health` leaves those out whose requests fail, and knows their way back: only requests and
    answers over HTTP end suspicion, since a heartbeat proves the sidecar alive, not the engine; a
    restart (larger epoch) ends it, too.
    """

    def __init__(
        self,
        *,
        dead_after_s: float = DEAD_AFTER_S,
        backoff_s: float = BACKOFF_S,
        max_backoff_s: float = MAX_BACKOFF_S,
    ) -> None:
        self.health = Health(backoff_s=backoff_s, max_backoff_s=max_backoff_s)
        self.signs = Signs(dead_after_s)
        self.screens: list[Callable[[str], str]] = []
        self._held: set[str] = set()
        self._members: SortedDict[str, _Member] = SortedDict()
        self.by_name: Mapping[str, object] = self._members
        self._usable: tuple[str, ...] = ()
        self._usable_until = -NEVER

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def members(self) -> tuple[str, ...]:
        """Return every member, usable or not, sorted."""
        return tuple(self._members)

    def lost(self) -> list[str]:
        """Return the members that say that they are not ready, or did not answer when they were
        asked, sorted. O(members).
        """
        stage = self.health.stage
        return [n for n, one in self._members.items() if not one.ready or stage(n) is Stage.DOWN]

    def epoch(self, member: str) -> int | None:
        """Return the member's incarnation."""
        found = self._members.get(member)
        return found.epoch if found else None

    def add(self, member: str, now: float, *, epoch: int = 0) -> Change | None:
        """Enter a member from configuration: it needs no heartbeat and never expires."""
        change = self.observe(member, epoch, now)
        found = self._members[member]
        found.lasting = True
        self.signs.note_alive(member, now, lasting=True)
        return change

    def observe(
        self,
        member: str,
        epoch: int,
        now: float,
        *,
        ready: bool = True,
        draining: bool = False,
        why: str = NOT_READY,
    ) -> Change | None:
        """Take a heartbeat; return what it changed. One of an older epoch is ignored, unless the
        newer one is silent: then it was a clock that went back.

        `why` is why it is not ready, for people.
        """
        found = self._members.get(member)
        draining = draining or member in self._held
        kind: ChangeKind | None = None
        if found is None:
            found = self._members[member] = _Member(epoch)
            kind = ChangeKind.JOINED
        elif epoch < found.epoch and member not in self.signs.silent:
            return None
        elif epoch != found.epoch:
            found.epoch = epoch
            self.health.forget(member)
            kind = ChangeKind.RESTARTED
        elif (ready, draining) != (found.ready, found.draining):
            kind = ChangeKind.UPDATED
        if kind is not None:
            self._usable_until = -NEVER
        found.ready = ready
        found.why = why
        found.draining = draining
        if self.signs.note_alive(member, now, lasting=found.lasting):
            kind = kind or ChangeKind.HEARD
        return Change(kind, member, epoch) if kind else None

    def remove(self, member: str) -> Change | None:
        """Remove a member that left by its own message or by configuration."""
        found = self._members.pop(member, None)
        if found is None:
            return None
        self.health.forget(member)
        self.signs.drop(member)
        self._held.discard(member)
        self._usable_until = -NEVER
        return Change(ChangeKind.LEFT, member, found.epoch)

    def hold(self, member: str, *, draining: bool) -> None:
        """Have a member drain whatever it says, until it is removed; or no longer."""
        found = self._members.get(member)
        if found is not None:
            (self._held.add if draining else self._held.discard)(member)
            found.draining = draining
            self._usable_until = -NEVER

    def draining(self) -> list[str]:
        """Return the members that drain, sorted. O(members)."""
        return [name for name, one in self._members.items() if one.draining]

    def readmit(self, member: str, epoch: int, now: float) -> Change:
        """Enter a member again that was given up and answers; it is silent until it is heard."""
        self._members[member] = _Member(epoch)
        self.signs.back(member, now)
        self._usable_until = -NEVER
        return Change(ChangeKind.JOINED, member, epoch)

    def due(self, now: float) -> list[str]:
        """Return the silent members to be asked over HTTP now, sorted; see `Signs.due`.

        One that was draining is not asked: it said that it would leave.
        """
        return [name for name in self.signs.due(now) if not self._members[name].draining]

    def answered_http(self, member: str, now: float) -> None:
        """Take that a member answered to be ready, when its heartbeats do not say anything."""
        if self.signs.answered(member, now) and not self._members[member].ready:
            self._members[member].ready = True
            self._usable_until = -NEVER

    def expire(self, now: float) -> list[Change]:
        """Drop the members whose signs stopped, note those who only answer; return both, sorted by
        name. O(members).
        """
        changes = (self._turn(name, turn) for name, turn in self.signs.turns(now))
        return [change for change in changes if change]

    def _turn(self, member: str, turn: Turn) -> Change | None:
        if turn is Turn.DEAD:
            return self.remove(member)
        return Change(ChangeKind.SILENT, member, self._members[member].epoch)

    def note(
        self, member: str, attempt: Attempt, now: float, request_id: str = ""
    ) -> Change | None:
        """Take what became of a request at a member; return whether it is left out or let in now.

        Failures are remembered by `request_id`, so that `forgive` can take them back.
        """
        found = self._members.get(member)
        if found is None:
            return None
        before = self.health.stage(member)
        if self.health.note(member, attempt, now, request_id):
            self._usable_until = -NEVER
        return self._changed(member, found, before)

    def forgive(self, request_id: str, now: float) -> list[str]:
        """Take back what a request made of members, which served others; return those."""
        self._usable_until = -NEVER
        return self.health.forgive(request_id, now)

    def answered(self, member: str, answer: Answer, now: float) -> Change | None:
        """Take what asking a member over HTTP showed; return whether that lets it in."""
        found = self._members.get(member)
        if found is None:
            return None
        before = self.health.stage(member)
        if self.health.answered(member, answer, now):
            self._usable_until = -NEVER
        return self._changed(member, found, before)

    def _changed(self, member: str, found: _Member, before: Stage) -> Change | None:
        after = self.health.stage(member)
        if (after is Stage.IN) == (before is Stage.IN):
            return None
        kind = ChangeKind.RECOVERED if after is Stage.IN else ChangeKind.SUSPECTED
        return Change(kind, member, found.epoch)

    def screen_anew(self) -> None:
        """Ask `screens` of every member again: what they go by has changed."""
        self._usable_until = -NEVER

    def usable(self, now: float) -> tuple[str, ...]:
        """Return the members that may be given work now, sorted: not given up, ready, not draining,
        admitted by `health`. O(1) until something changes, then O(members); the same
        object as before while the answer is.
        """
        if now < self._usable_until and not self.health.stale:
            return self._usable
        members = self._members  # its items() takes twice as long
        names = [name for name in members if (one := members[name]).ready and not one.draining]
        for screen in self.screens:
            names = [name for name in names if not screen(name)]
        admitted, self._usable_until = self.health.admit(names, now)
        usable = tuple(admitted)
        if usable != self._usable:
            self._usable = usable
        return self._usable

    def last_resort(self, now: float) -> tuple[str, ...]:
        """Return the members, sorted, that only failed requests speak against: where nobody else
        may take a request, to try one of them is better than to reject it. O(members).
        """
        usable, health = frozenset(self.usable(now)), self.health
        return tuple(
            name
            for name, one in self._members.items()
            if name not in usable
            and one.ready
            and not one.draining
            and health.stage(name) is not Stage.DOWN
            and not any(screen(name) for screen in self.screens)
        )

    def why_not(self, member: str, now: float) -> str | None:
        """Return in words why the member may not be given work; None when it may."""
        found = self._members.get(member)
        if found is None:
            return "unknown"
        if not found.ready:
            return found.why
        if found.draining:
            return DRAINING
        for screen in self.screens:
            if why := screen(member):
                return why
        usable = self.usable(now)
        place = bisect_left(usable, member)
        if place < len(usable) and usable[place] == member:
            return None
        return self.health.words(member, now)

    def view(self, now: float) -> list[MemberView]:
        """Return every member for people, sorted by name."""
        return [self._view(name, one, now) for name, one in self._members.items()]

    def _view(self, name: str, one: _Member, now: float) -> MemberView:
        failures, attempts = self.health.recent(name)
        return MemberView(
            member=name,
            epoch=one.epoch,
            ready=one.ready,
            draining=one.draining,
            failures=failures,
            attempts=attempts,
            stage=self.health.standing(name, now),
            last_sign_s=self.signs.silence_s(name, now),
            usable=self.why_not(name, now) is None,
            retry_in_s=self.health.retry_in_s(name, now),
            silent=name in self.signs.silent,
        )
