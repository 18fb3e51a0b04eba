"""Holding a lease: who may write, until when, and with which fencing token."""

from typing import Final

TTL_S: Final = 3
RENEW_S: Final = 1.0
SAFETY_S: Final = 0.2


class Lease:
    """One candidate's view of a lease kept as a key with expiry and compare-and-set.

    A request is answered after an unknown time, so the deadline counts from when it was sent:
    `holds` is never true after the key could have expired. `fence` is the revision at which this
    candidate took the lease; whoever takes it later has a larger one.
    """

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self.fence = 0
        self._revision: int | None = None
        self._until_s = 0.0

    def holds(self, now: float) -> bool:
        """Return whether this candidate may act as the holder."""
        return self._revision is not None and now < self._until_s

    @property
    def expected(self) -> int | None:
        """Return the revision to name in the next write: None to take a free lease."""
        return self._revision

    def granted(self, revision: int, sent_s: float) -> None:
        """Take the answer to a write that was sent at `sent_s`."""
        self._hold(revision)
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

    def lost(self) -> None:
        """Take a refusal: somebody else holds it, or it expired meanwhile."""
        self._revision = None
        self._until_s = 0.0

    def _hold(self, revision: int) -> None:
        if self._revision is None:
            self.fence = revision
        self._revision = revision
