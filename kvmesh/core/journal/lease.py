"""Holding a lease: who may write, until when, and with which fencing token."""

import re
from typing import Final

HOLDER: Final = re.compile(rb"[A-Za-z0-9_-]{1,64}")
"""What stands in the key of a lease that somebody holds: a member's name."""

TTL_S: Final = 3
RENEW_S: Final = 1.0
SAFETY_S: Final = 0.2


class Lease:
    """One candidate's view of a lease kept as a key with expiry and compare-and-set.

    A request is answered after an unknown time, so the deadline counts from when it was sent:
    `holds` is never true after the key could have expired. `fence` is the revision at which this
    candidate took the lease; whoever takes it later has a larger one.

    What stands in the key and names no holder counts as free when the key's TTL has passed since
    it was first seen, by the local clock: then whoever held the lease before holds it no more. So
    does a holder's name that was neither renewed nor removed in twice that time, since the key
    itself should have expired. `overridden` counts what was so written over.
    """

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self.fence = 0
        self.overridden = 0
        self.taken: int | None = None
        self._until_s = 0.0
        self._free: int | None = None
        self._over = False
        self._seen: tuple[int, float] | None = None

    def holds(self, now: float) -> bool:
        """Return whether this candidate may act as the holder."""
        return self.taken is not None and now < self._until_s

    @property
    def expected(self) -> int | None:
        """Return the revision to name in the next write: None to take a free lease."""
        return self._free if self.taken is None else self.taken

    @property
    def is_others(self) -> bool:
        """Return whether something stood in the key when it was last read, and not this name."""
        return self.taken is None and self._seen is not None

    def granted(self, revision: int, sent_s: float) -> None:
        """Take the answer to a write that was sent at `sent_s`."""
        self.overridden += self._over
        self._hold(revision)
        self._free, self._seen, self._over = None, None, False
        self._until_s = sent_s + TTL_S - SAFETY_S

    def found(self, value: bytes | None, revision: int) -> None:
        """Take what is stored, read back because a write's outcome was unknown.

        It may be an earlier write, of an earlier life even, that expires sooner than the one asked
        about: it is enough to renew the lease, and no reason to act on it before.
        """
        if value != self.holder.encode():
            self.lost()
        else:
            self._hold(revision)

    def refused(self, value: bytes | None, revision: int, now: float) -> bool:
        """Take what stands in the key, read at `now` after a write was refused.

        Returns whether it is news and names no holder: only a fault or an attacker writes such a
        thing. The holder writes over it at once, and holds the lease meanwhile.
        """
        if value is None:
            self.lost()
            self._seen = None
            return False
        garbage = HOLDER.fullmatch(value) is None
        # Who writes garbage again and again must not keep the lease from everybody; a holder that
        # was not seen in between is fenced by whoever takes the lease then.
        stay = 0 if garbage else revision
        is_new = self._seen is None or self._seen[0] != stay
        if self._seen is None or is_new:
            self._seen = (stay, now)
        if garbage and self.holds(now):
            self.taken, self._over = revision, True
        else:
            self.lost()
            if now - self._seen[1] > (TTL_S if garbage else 2 * TTL_S):
                self._free, self._over = revision, True
        return garbage and is_new

    def lost(self) -> None:
        """Take a refusal: somebody else holds it, or it expired meanwhile."""
        self.taken = None
        self._until_s = 0.0
        self._free, self._over = None, False

    def _hold(self, revision: int) -> None:
        if self.taken is None:
            self.fence = revision
        self.taken = revision
