"""The times of one forwarded exchange: its deadline, and comments while it waits."""

from typing import Protocol

from kvmesh.transport.http.wire.deadlines import NEVER, DeadlineWheel


class Timekept(Protocol):
    """What the clock drives."""

    def expire(self) -> None:
        """Give up: the deadline has passed."""
        ...

    def comment(self) -> None:
        """Send a sign of life."""
        ...

    def crash(self, error: Exception) -> None:
        """Give up for an error of ours. Must not raise."""
        ...


class ForwardClock:
    """Calls `expire` once, `deadline_s` from now, and `comment` each `comments_s` until then.

    `answering` ends the comments.
    """

    __slots__ = (
        "_comment_at_s",
        "_comments_s",
        "_expires_at_s",
        "_kept",
        "_wheel",
        "deadline_s",
        "spoke",
    )

    def __init__(
        self,
        kept: Timekept,
        wheel: DeadlineWheel,
        deadline_s: float | None,
        comments_s: float | None,
    ) -> None:
        self.spoke = -1
        self._kept = kept
        self._wheel = wheel
        self._comments_s = comments_s or NEVER
        wheel.add(self)
        self._expires_at_s = NEVER if deadline_s is None else wheel.now_s + deadline_s
        self._comment_at_s = wheel.now_s + self._comments_s
        self.deadline_s = min(self._expires_at_s, self._comment_at_s)

    def answering(self) -> bool:
        """End the comments: the answer has begun. Return False when nothing is left to watch."""
        self.deadline_s = self._expires_at_s
        if self._expires_at_s is not NEVER:
            return True
        self._wheel.discard(self)
        return False

    def stop(self) -> None:
        """Watch no longer."""
        self._wheel.discard(self)

    def on_deadline(self, now: float) -> None:
        """Do what is due."""
        if now >= self._expires_at_s:
            self._kept.expire()
            return
        self._comment_at_s = now + self._comments_s
        self.deadline_s = min(self._expires_at_s, self._comment_at_s)
        self._kept.comment()

    def crash(self, error: Exception) -> None:
        """End the exchange for an error of ours."""
        self.stop()
        self._kept.crash(error)
