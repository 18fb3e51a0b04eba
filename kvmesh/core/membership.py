"""Who is there and may be given work, by heartbeats and failures: workers or replicas."""

from enum import Enum
from typing import Final

import msgspec

DEAD_AFTER_S: Final = 3.5
"""Three lost one-second heartbeats and a half: a dead worker gets nothing new within 4 s."""

NEVER: Final = float("inf")


class ChangeKind(Enum):
    """What happened to a member."""

    JOINED = "joined"
    RESTARTED = "restarted"
    UPDATED = "updated"
    LEFT = "left"
    SUSPECTED = "suspected"
    RECOVERED = "recovered"


class Change(msgspec.Struct, frozen=True):
    """One change of the view. `RESTARTED`: same name, larger epoch; all it held is gone."""

    kind: ChangeKind
    member: str
    epoch: int


class MemberView(msgspec.Struct, frozen=True):
    """One member as seen now, for people. Times are seconds ago or ahead."""

    member: str
    epoch: int
    ready: bool
    draining: bool
    failures: int
    last_sign_s: float
    usable: bool
    retry_in_s: float


class _Member:
    __slots__ = (
        "draining",
        "epoch",
        "expires_s",
        "failures",
        "last_sign_s",
        "lasting",
        "probing",
        "ready",
        "retry_s",
    )

    def __init__(self, epoch: int, now: float) -> None:
        self.epoch = epoch
        self.last_sign_s = now
        self.expires_s = NEVER
        self.lasting = False
        self.ready = True
        self.draining = False
        self.failures = 0
        self.probing = False
        self.retry_s = 0.0

    def trust(self) -> None:
        self.failures = 0
        self.probing = False
        self.retry_s = 0.0


class Membership:
    """Members by name. A sign of life keeps one for `dead_after_s`; a static one stays for ever.

    A failure leaves a member out for `backoff_s`, doubled up to `max_backoff_s` by each further
    one. Then it is half open: usable until `mark_chosen` hands it one request, out again while
    that probe runs, in for good at `mark_ok`. Only a request's own outcome ends suspicion, since
    a heartbeat proves the sidecar alive, not the engine; a restart (larger epoch) ends it too.
    While it is paused nobody's silence counts.
    """

    def __init__(
        self,
        *,
        dead_after_s: float = DEAD_AFTER_S,
        backoff_s: float = 1.0,
        max_backoff_s: float = 30.0,
    ) -> None:
        self._dead_after_s = dead_after_s
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._members: dict[str, _Member] = {}
        self._usable: tuple[str, ...] = ()
        self._usable_until = -NEVER
        self._paused = False

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def members(self) -> tuple[str, ...]:
        """Return every member, usable or not, sorted."""
        return tuple(sorted(self._members))

    def epoch(self, member: str) -> int | None:
        """Return the member's incarnation."""
        found = self._members.get(member)
        return found.epoch if found else None

    def add(self, member: str, now: float, *, epoch: int = 0) -> Change | None:
        """Enter a member from configuration: it needs no heartbeat and never expires."""
        change = self.observe(member, epoch, now)
        found = self._members[member]
        found.lasting = True
        found.expires_s = NEVER
        # The heartbeat may have been ignored for its epoch: an expired member lives all the same.
        self._usable_until = -NEVER
        return change

    def observe(
        self, member: str, epoch: int, now: float, *, ready: bool = True, draining: bool = False
    ) -> Change | None:
        """Take a heartbeat; return what it changed. One of an older epoch is ignored."""
        found = self._members.get(member)
        kind: ChangeKind | None = None
        if found is None:
            found = self._members[member] = _Member(epoch, now)
            kind = ChangeKind.JOINED
        elif epoch < found.epoch:
            return None
        elif epoch > found.epoch:
            found.epoch = epoch
            found.trust()
            kind = ChangeKind.RESTARTED
        elif (ready, draining) != (found.ready, found.draining):
            kind = ChangeKind.UPDATED
        if kind is not None or found.expires_s <= now:
            self._usable_until = -NEVER
        found.ready = ready
        found.draining = draining
        found.last_sign_s = now
        if not found.lasting:
            found.expires_s = now + self._dead_after_s
        return Change(kind, member, epoch) if kind else None

    def remove(self, member: str) -> Change | None:
        """Drop a member that said goodbye or left the configuration."""
        found = self._members.pop(member, None)
        if found is None:
            return None
        self._usable_until = -NEVER
        return Change(ChangeKind.LEFT, member, found.epoch)

    def pause(self) -> None:
        """Let nobody expire until `resume`: signs of life cannot arrive."""
        self._paused = True
        self._usable_until = -NEVER

    def resume(self, now: float) -> None:
        """Let members expire again, each `dead_after_s` from now at the earliest."""
        self._paused = False
        self._usable_until = -NEVER
        for one in self._members.values():
            one.expires_s = max(one.expires_s, now + self._dead_after_s)

    def expire(self, now: float) -> list[Change]:
        """Drop the members whose signs stopped; return them, sorted by name. O(members)."""
        dead = sorted(name for name, one in self._members.items() if self._is_dead(one, now))
        return [change for name in dead if (change := self.remove(name))]

    def mark_failed(self, member: str, now: float) -> Change | None:
        """Take a failed request or connection: leave the member out for its back-off.

        Failures reported while it is already out (requests sent before) count once.
        """
        found = self._members.get(member)
        if found is None or (now < found.retry_s and not found.probing):
            return None
        found.probing = False
        found.failures += 1
        backoff = self._backoff_s * 2.0 ** min(found.failures - 1, 30)
        found.retry_s = now + min(backoff, self._max_backoff_s)
        self._usable_until = -NEVER
        return Change(ChangeKind.SUSPECTED, member, found.epoch)

    def mark_ok(self, member: str) -> Change | None:
        """Take a request that got an answer: the member is trusted again."""
        found = self._members.get(member)
        if found is None or not found.failures:
            return None
        found.trust()
        self._usable_until = -NEVER
        return Change(ChangeKind.RECOVERED, member, found.epoch)

    def mark_chosen(self, member: str, now: float) -> None:
        """Note that a request goes there: a half-open member gets no second one meanwhile."""
        found = self._members.get(member)
        if found is not None and found.failures:
            found.probing = True
            found.retry_s = now + self._max_backoff_s
            self._usable_until = -NEVER

    def usable(self, now: float) -> tuple[str, ...]:
        """Return the members that may be given work now, sorted: alive, ready, not draining,
        not suspected. O(1) until something changes, then O(members log members); the same object
        as before while the answer is.
        """
        if now < self._usable_until:
            return self._usable
        until = NEVER
        names: list[str] = []
        for name, one in self._members.items():
            if self._is_dead(one, now) or not one.ready or one.draining:
                continue
            until = min(until, NEVER if self._paused else one.expires_s)
            if one.retry_s <= now:
                names.append(name)
            else:
                until = min(until, one.retry_s)
        usable = tuple(sorted(names))
        if usable != self._usable:
            self._usable = usable
        self._usable_until = until
        return self._usable

    def why_not(self, member: str, now: float) -> str | None:
        """Return in words why the member may not be given work; None when it may."""
        found = self._members.get(member)
        if found is None:
            return "unknown"
        if self._is_dead(found, now):
            return f"no heartbeat for {now - found.last_sign_s:.1f} s"
        if not found.ready:
            return "not ready"
        if found.draining:
            return "draining"
        if found.retry_s > now:
            return f"failed {found.failures} times, tried again in {found.retry_s - now:.1f} s"
        return None

    def _is_dead(self, member: _Member, now: float) -> bool:
        return member.expires_s <= now and not self._paused

    def view(self, now: float) -> list[MemberView]:
        """Return every member for people, sorted by name."""
        return [
            MemberView(
                member=name,
                epoch=one.epoch,
                ready=one.ready,
                draining=one.draining,
                failures=one.failures,
                last_sign_s=now - one.last_sign_s,
                usable=self.why_not(name, now) is None,
                retry_in_s=max(0.0, one.retry_s - now),
            )
            for name, one in sorted(self._members.items())
        ]
