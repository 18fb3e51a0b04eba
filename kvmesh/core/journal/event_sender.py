"""Numbering, batching and never losing one worker's events on their way into the journal."""

from collections.abc import Callable, Iterable

import msgspec

from kvmesh._native import Histogram
from kvmesh.bounds import MAX_ORDINAL
from kvmesh.core.blocks.events import Batch, Event, encode_batch
from kvmesh.core.journal.ordering import FIRST_SEQ, NOTHING_FITS
from kvmesh.core.journal.outbox import Outbox
from kvmesh.core.journal.window import Parcel, SendWindow, WindowStatistics

Sends = list[tuple[int, bytes]]
"""What to append now, in this order: (token, message)."""


class SenderLimits(msgspec.Struct, frozen=True):
    """Bounds of one worker's sending: events a batch, messages in flight, the ring, the queue."""

    flush_events: int = 64
    window: int = 256
    deadline_s: float = 1.0
    ring_s: float = 10.0
    max_pending_events: int = 16_384
    resync_pause_s: float = 1.0


class SenderStatistics(msgspec.Struct, frozen=True):
    """Counters since the start, and what waits now."""

    events: int
    batches: int
    dumps: int
    pending: int
    window: WindowStatistics


def is_followable(epoch: int) -> bool:
    """Return whether there is an epoch behind `epoch`."""
    return epoch < MAX_ORDINAL


class EventSender:
    """The journal's writing end for one worker and epoch.

    Every event gets the next sequence number when its batch is made. A loss that retrying cannot
    mend (queue overflow, a remade journal, a replica too far behind) is mended by a dump: `Cleared`
    and the worker's whole state, under the next numbers of the same epoch. The first thing sent in
    an epoch is a dump, too.
    """

    def __init__(
        self,
        epoch: int,
        dump: Callable[[], Iterable[Event]],
        limits: SenderLimits | None = None,
        *,
        journal_format: int = 1,
    ) -> None:
        self.epoch = epoch
        self.journal_format = journal_format
        self._limits = limits = limits or SenderLimits()
        self._dump = dump
        self._outbox = Outbox(limits.max_pending_events)
        self._window = SendWindow(
            capacity=limits.window, deadline_s=limits.deadline_s, ring_s=limits.ring_s
        )
        self._next_seq = FIRST_SEQ
        self._dump_wanted = True
        self._dumped_seq = self._newest = 0
        self._answered_s: float | None = None
        self._batches = self._dumps = 0

    def add(self, events: Iterable[Event]) -> None:
        """Queue what changed; too much of it becomes a dump later."""
        if not self._dump_wanted and not self._outbox.add(events):
            self._dump_wanted = True

    def is_waiting(self) -> bool:
        """Return whether something could be sent."""
        return self._dump_wanted or len(self._outbox) > 0

    def is_full(self) -> bool:
        """Return whether a whole batch waits, so that sending should not."""
        return self._dump_wanted or len(self._outbox) >= self._limits.flush_events

    def confirmed_seq(self) -> int:
        """Return the last event that the journal surely has, and all before it."""
        return self._window.confirmed_seq

    @property
    def seconds(self) -> Histogram:
        """Return how long messages took until the journal had them, seconds."""
        return self._window.seconds

    def due_s(self) -> float | None:
        """Return when to call `retry` next; None while nothing is in flight."""
        return self._window.due_s()

    def send(self, now: float) -> Sends:
        """Return everything that waits, as far as the window has room.

        What `dump` or the encoder raises is raised: then nothing is lost of what waits, and what
        this call had put in flight is sent by `retry`.
        """
        sends: Sends = []
        if self._dump_wanted and self._window.has_room():
            self._outbox.restart(self._dump())
            self._newest = 0
            self._dump_wanted = False
            self._dumps += 1
            self._dumped_seq = self._next_seq + len(self._outbox) - 1
        while len(self._outbox) and self._window.has_room():
            events = self._outbox.first(self._limits.flush_events)
            data = encode_batch(Batch(self.journal_format, self.epoch, self._next_seq, events))
            self._newest = max(self._newest, self.journal_format)
            parcel = Parcel(self._next_seq, self._next_seq + len(events) - 1, data)
            self._outbox.drop(len(events))
            self._next_seq += len(events)
            self._batches += 1
            sends.append((self._window.send(parcel, now), data))
        return sends

    def acknowledge(self, token: int, sequence: int, now: float) -> bool:
        """Take the journal's ack; False when it shows that the journal was remade: a dump is due.

        Then, or when something waits, call `send`.
        """
        if self._window.acknowledge(token, sequence, now):
            return True
        self._restart()
        return False

    def retry(self, now: float) -> Sends:
        """Return everything in flight when its oldest message is overdue, else nothing."""
        return [(token, parcel.data) for token, parcel in self._window.overdue(now)]

    def recover(self, epoch: int, next_seq: int, now: float) -> Sends:
        """Answer a replica that misses events from `next_seq` of `epoch` on.

        Sends again what is still in the ring, else makes a dump due (call `send`). Requests about
        the same loss within `resync_pause_s`, or while a dump is under way, get one answer.
        A replica that read a later epoch than this one means that the clock went back: the sender
        goes on in an epoch behind it. Behind the last there is none: see `is_followable`.
        """
        if epoch > self.epoch:
            if not is_followable(epoch):
                return []
            self.epoch = epoch + 1
            self._next_seq = FIRST_SEQ
            self._dumped_seq = self._window.confirmed_seq = 0
            self._restart()
            return []
        if epoch < self.epoch:
            next_seq = FIRST_SEQ
        if next_seq >= self._next_seq or self._dump_wanted:
            return []
        if self._answered_s is not None and now < self._answered_s + self._limits.resync_pause_s:
            return []
        self._answered_s = now
        window = self._window
        if next_seq != NOTHING_FITS and (
            next_seq > window.confirmed_seq or window.rewind(next_seq)
        ):
            return [(token, parcel.data) for token, parcel in window.resend(now)]
        if window.confirmed_seq >= self._dumped_seq:
            self._dump_wanted = True
        return []

    def write(self, journal_format: int) -> None:
        """Make batches in that format from now on; call `send` then.

        It begins with a dump if a batch since the last one has a newer format: who reads only this
        one has read none of it.
        """
        self.journal_format = journal_format
        if journal_format < self._newest:
            self._restart()

    def statistics(self) -> SenderStatistics:
        """Return the present counts."""
        return SenderStatistics(
            events=self._next_seq - FIRST_SEQ,
            batches=self._batches,
            dumps=self._dumps,
            pending=len(self._outbox),
            window=self._window.statistics(),
        )

    def _restart(self) -> None:
        self._window.abandon()
        self._dump_wanted = True
