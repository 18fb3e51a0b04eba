"""A publisher's messages on their way: kept, in order, until the journal surely has them."""

from collections import deque
from typing import Final

import msgspec

from kvmesh._native import Histogram
from kvmesh.core.insight.histogram import SECONDS

MAX_BACKOFF: Final = 4
"""Deadlines double up to this factor while nothing is acknowledged."""


class Parcel(msgspec.Struct, eq=False):
    """One encoded batch: the events `first_seq` to `last_seq`. `stored` is its latest position,
    `sent_s` when it was first sent; None once that was counted.
    """

    first_seq: int
    last_seq: int
    data: bytes
    stored: int = 0
    done_s: float = 0.0
    sent_s: float | None = None


class WindowStatistics(msgspec.Struct, frozen=True):
    """What is under way and kept, and how often everything was sent again."""

    in_flight: int
    recent: int
    recent_bytes: int
    resends: int


class SendWindow:
    """At most `capacity` messages in flight; sent ones stay in a ring for `ring_s` after success.

    The journal may lose a message or its acknowledgement, and readers apply a worker's events only
    in order. So a message counts as done when it was stored *behind* the one before it; when the
    oldest is overdue everything from it on is sent again, in order. Readers skip what they know.
    `seconds` is how long each took from its first sending until it was done.
    """

    def __init__(
        self,
        *,
        capacity: int = 256,
        deadline_s: float = 1.0,
        ring_s: float = 10.0,
        ring_bytes: int = 64 << 20,
    ) -> None:
        self._capacity = capacity
        self._deadline_s = deadline_s
        self._ring_s = ring_s
        self._ring_bytes = ring_bytes
        self._flying: deque[Parcel] = deque()
        self._recent: deque[Parcel] = deque()
        self._recent_bytes = 0
        self._tokens: dict[int, tuple[Parcel, int]] = {}
        self._old_tokens: dict[int, tuple[Parcel, int]] = {}
        self._next_token = 1
        self._stored = 0
        self._sent_s = 0.0
        self._backoff = 1
        self._resends = 0
        self.confirmed_seq = 0
        self.seconds = Histogram(SECONDS)

    def __len__(self) -> int:
        """Return how many messages are in flight."""
        return len(self._flying)

    def has_room(self) -> bool:
        """Return whether another message may be sent."""
        return len(self._flying) < self._capacity

    def send(self, parcel: Parcel, now: float) -> int:
        """Take `parcel` as the newest in flight; return the token to append it with."""
        if not self._flying:
            self._sent_s = now
            self._backoff = 1
        parcel.sent_s = now
        self._flying.append(parcel)
        return self._token(parcel)

    def acknowledge(self, token: int, sequence: int, now: float) -> bool:
        """Take the journal's word that a send was stored at `sequence`.

        Returns False when the position proves that the journal was deleted and remade: the caller
        must then publish its whole state again. Unknown and repeated tokens change nothing.
        """
        found = self._tokens.pop(token, None) or self._old_tokens.pop(token, None)
        if found is None:
            return True
        parcel, floor = found
        if sequence <= floor:
            return False
        parcel.stored = max(parcel.stored, sequence)
        while self._flying and self._flying[0].stored > self._stored:
            done = self._flying.popleft()
            self._stored = done.stored
            self._keep(done, now)
        return True

    def due_s(self) -> float | None:
        """Return when `overdue` should be asked next; None while nothing is in flight."""
        return self._sent_s + self._deadline_s * self._backoff if self._flying else None

    def overdue(self, now: float) -> list[tuple[int, Parcel]]:
        """Return (token, parcel) of all that must be sent again because the oldest is late."""
        due = self.due_s()
        if due is None or now < due:
            return []
        backoff = min(self._backoff * 2, MAX_BACKOFF)
        again = self.resend(now)
        self._backoff = backoff
        return again

    def resend(self, now: float) -> list[tuple[int, Parcel]]:
        """Return (token, parcel) of everything in flight, oldest first, under new tokens."""
        self._sent_s = now
        self._backoff = 1
        self._resends += 1
        self._old_tokens, self._tokens = self._tokens, {}
        return [(self._token(parcel), parcel) for parcel in self._flying]

    def rewind(self, seq: int) -> bool:
        """Put the messages from event `seq` on back in flight, to be `resend`; False if gone."""
        back = [parcel for parcel in self._recent if parcel.last_seq >= seq]
        if not back or back[0].first_seq > seq or len(back) > self._capacity:
            return False
        for parcel in reversed(back):
            self._recent.pop()
            self._recent_bytes -= len(parcel.data)
            self._flying.appendleft(parcel)
        self.confirmed_seq = back[0].first_seq - 1
        return True

    def abandon(self) -> None:
        """Give up everything in flight and in the ring: a full dump will follow."""
        self._flying.clear()
        self._recent.clear()
        self._recent_bytes = 0
        self._tokens.clear()
        self._old_tokens.clear()
        self._stored = 0

    def statistics(self) -> WindowStatistics:
        """Return the present counts."""
        return WindowStatistics(
            len(self._flying), len(self._recent), self._recent_bytes, self._resends
        )

    def _token(self, parcel: Parcel) -> int:
        token = self._next_token
        self._next_token += 1
        self._tokens[token] = (parcel, self._stored)
        return token

    def _keep(self, parcel: Parcel, now: float) -> None:
        self.confirmed_seq = parcel.last_seq
        self._sent_s = now
        self._backoff = 1
        if parcel.sent_s is not None:
            self.seconds.observe(now - parcel.sent_s)
            parcel.sent_s = None
        parcel.done_s = now
        self._recent.append(parcel)
        self._recent_bytes += len(parcel.data)
        oldest = self._recent[0]
        while self._recent_bytes > self._ring_bytes or oldest.done_s < now - self._ring_s:
            self._recent_bytes -= len(self._recent.popleft().data)
            if not self._recent:
                break
            oldest = self._recent[0]
