"""Workers that were not weighed for a request, and why, in words."""

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from kvmesh.core.members.membership import Membership

MOST_NAMED: Final = 32
"""Named with their reason at most; all are counted."""

FRESH_S: Final = 0.25
"""Decisions so close to each other share what is known of others."""


class WorkerLeftOut(msgspec.Struct, frozen=True):
    """One worker, and why it was not weighed."""

    worker: str
    why: str


class LeftOut(msgspec.Struct, frozen=True):
    """`count` workers were not weighed; the first `MOST_NAMED` of them by name."""

    count: int = 0
    named: tuple[WorkerLeftOut, ...] = ()


NOBODY: Final = LeftOut()


def find_left_out(names: Collection[str], why_not: Callable[[str], str | None]) -> LeftOut:
    """Return who of `names` is left out; `why_not` gives the reason, None for who is not."""
    named: list[WorkerLeftOut] = []
    count = 0
    for name in sorted(names):
        why = why_not(name)
        if why is None:
            continue
        count += 1
        if count <= MOST_NAMED:
            named.append(WorkerLeftOut(name, why))
    return LeftOut(count, tuple(named)) if count else NOBODY


class LeftOutByAll:
    """Which members nobody's request may go to. O(1) while all may be given work or within
    `FRESH_S` of the last answer, else O(members).
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._asked_s = float("-inf")
        self._found = NOBODY

    def find(self, now: float) -> LeftOut:
        """Return them, with reasons."""
        members = self._membership
        if len(members.usable(now)) == len(members):
            return NOBODY
        if not self._asked_s <= now < self._asked_s + FRESH_S:
            self._asked_s = now
            self._found = find_left_out(members.members(), lambda one: members.why_not(one, now))
        return self._found
