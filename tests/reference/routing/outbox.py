"""The naive model of kvmesh/native/peers/outbox.c and kvmesh/native/peers/outbox_methods.c."""

from collections.abc import Callable, Iterable
from typing import Final

from kvmesh._native import ActiveSequences, Booking
from kvmesh.bounds import MAX_NAME
from kvmesh.core.members.loads import LOCAL
from kvmesh.core.members.outcomes import SERVED, UNKNOWN, Attempt, Verdict
from kvmesh.core.routing.peers.records import (
    ENDED,
    FAILED,
    FAILED_FORM,
    GREW,
    GREW_FORM,
    HEAD,
    NAMED,
    NUMBERED_FORM,
    PREFILLED,
    SHARES,
    STATE_BEGINS,
    STATE_ENDS,
)
from kvmesh.errors import KvMeshError
from tests.reference.routing.placed import NUMBERS, NUMBERS_AT, placed_record

MAX_KIND: Final = 32
MOST_BYTES: Final = 4 << 20

MOST_RETRIED: Final = 1024
"""Failed requests whose numbers are kept, so that a second attempt is told under the same."""

MOST_WORKERS: Final = 1 << 14
"""Workers whose numbers are kept; with one more all of them get new ones."""

_U32: Final = (1 << 32) - 1
_NUMBERED: Final = NUMBERED_FORM.pack


class _Placement:
    """A booking or a worker that peers know by `number`; `upto` is what was told of it last: output
    tokens of a booking, the number of the state in which a worker was named.
    """

    __slots__ = ("number", "upto")

    def __init__(self, number: int, upto: int) -> None:
        self.number = number
        self.upto = upto


class BookingOutbox:
    """Writes what becomes of this replica's bookings in `sequences`, until somebody takes it.

    Events are numbered from 1 on in each `epoch`: message q of n events has those up to
    `next_seq`. Bookings and workers travel as numbers; a worker's name is told before its first
    booking, and once in each state. Every event is idempotent, so a state may overlap with others.

    `on_first` is called when something enters while nobody is `gathering`, which it then is until
    it is set to False: a short while of events then goes in one message. No event raises anything;
    what cannot be told is counted in `untold`. `format` is the first byte of each message.
    """

    def __init__(self, sequences: ActiveSequences, epoch: int) -> None:
        self.epoch = epoch
        self.next_seq = 1
        self.untold = 0
        self.gathering = False
        self.on_first: Callable[[], object] | None = None
        self.format = 1
        self._sequences = sequences
        self._records: list[bytes] = []
        self._bytes = 0
        self._number = 0
        self._state = 0
        self._next_worker = 0
        self._bookings: dict[str, _Placement] = {}
        self._retried: dict[str, int] = {}
        self._workers: dict[str, _Placement] = {}

    def placed(self, booking: Booking) -> None:
        """Tell of a booking of this replica's own, once."""
        if booking.owner == LOCAL and booking.request_id not in self._bookings:
            self._place(booking)
            self._wake()

    def first_token(self, request_id: str) -> None:
        """Tell that a request's first token came."""
        if (reported := self._bookings.get(request_id)) is not None:
            self._add(_NUMBERED(PREFILLED, 0, 0, reported.number))
            self._wake()

    def ended(self, request_id: str, attempt: Attempt = SERVED) -> None:
        """Tell that a request is over at its worker, and what that showed."""
        if (reported := self._bookings.pop(request_id, None)) is None:
            return
        if attempt.verdict == Verdict.SERVED:
            self._add(_NUMBERED(ENDED, 0, 0, reported.number))
        else:
            self._fail(request_id, reported.number, attempt)
        self._wake()

    @property
    def waiting(self) -> int:
        """Return how many events wait to be taken."""
        return len(self._records)

    def publish_growth(self) -> None:
        """Tell of each booking whose output has grown since it was told of last, and of those that
        ended without a word that they are over. O(bookings told).
        """
        live, gone = self._sequences.bookings, list[str]()
        for request_id, reported in self._bookings.items():
            booking = live.get(request_id)
            if booking is None or booking.owner != LOCAL:
                gone.append(request_id)
            elif booking.output_tokens > reported.upto:
                reported.upto = booking.output_tokens
                self._add(GREW_FORM.pack(GREW, 0, 0, reported.number, reported.upto))
        for request_id in gone:
            self._fail(request_id, self._bookings.pop(request_id).number, UNKNOWN)

    def begin_state(self) -> None:
        """Tell that all live bookings follow; peers drop the others with `end_state`."""
        self._state += 1
        self._add(_NUMBERED(STATE_BEGINS, 0, 0, 0))

    def republish(self, bookings: Iterable[Booking]) -> None:
        """Tell of live bookings as they are now; of others nothing."""
        live = self._sequences.bookings
        for booking in bookings:
            if booking.owner != LOCAL or live.get(booking.request_id) is not booking:
                continue
            reported = self._place(booking)
            if reported is None:
                continue
            if not booking.prefilling:
                self._add(_NUMBERED(PREFILLED, 0, 0, reported.number))
            if booking.output_tokens:
                reported.upto = booking.output_tokens
                self._add(GREW_FORM.pack(GREW, 0, 0, reported.number, reported.upto))

    def end_state(self) -> None:
        """Tell that the state is complete."""
        self._add(_NUMBERED(STATE_ENDS, 0, 0, 0))

    def take(self, max_events: int, max_bytes: int, shares: bytes = b"") -> list[bytes]:
        """Return all that waits as messages; the last one carries packed `shares`, if any.

        A message ends after `max_events` or with the record that fills `max_bytes`.
        """
        records, self._records, self._bytes = self._records, [], 0
        taken = list[bytes]()
        start = size = 0
        for end, record in enumerate(records, 1):
            size += len(record)
            full = end - start >= max_events or size >= max_bytes
            if full or end == len(records):
                behind = shares if end == len(records) else b""
                taken.append(self._message(records[start:end], behind))
                start, size = end, 0
        return [self.beat(shares)] if shares and not records else taken

    def beat(self, shares: bytes = b"") -> bytes:
        """Return a message without events, which says how far this replica is."""
        return self._message([], shares)

    def _message(self, records: list[bytes], shares: bytes) -> bytes:
        flags, count = SHARES if shares else 0, len(records)
        head = HEAD.pack(self.format, flags, 0, count, self.epoch, self.next_seq)
        self.next_seq += count
        return b"".join((head, *records, shares))

    def _add(self, record: bytes) -> None:
        if self._bytes + len(record) > MOST_BYTES:
            self.untold += len(self._records)
            self.next_seq += len(self._records)
            self._records.clear()
            self._bytes = 0
        self._records.append(record)
        self._bytes += len(record)

    def _wake(self) -> None:
        if not self.gathering and self.on_first is not None:
            self.gathering = True
            self.on_first()

    def _place(self, booking: Booking) -> _Placement | None:
        """Tell of a booking under the number it has, or gets; None for one that cannot be told."""
        try:
            record = placed_record(booking, self._sequences.block_size)
            worker = self._worker(booking.worker)
        except (ValueError, KvMeshError):
            self.untold += 1
            return None
        request_id = booking.request_id
        reported = self._bookings.get(request_id)
        if reported is None:
            number = self._retried.pop(request_id, None)
            if number is None:
                number = self._number = (self._number + 1) & _U32
            reported = self._bookings[request_id] = _Placement(number, 0)
        NUMBERS.pack_into(record, NUMBERS_AT, reported.number, worker)
        self._add(bytes(record))
        return reported

    def _worker(self, name: str) -> int:
        """Return a worker's number, and tell its name if that is due. Raises `ValueError`."""
        reported = self._workers.get(name)
        if reported is not None and reported.upto == self._state:
            return reported.number
        encoded = name.encode()
        if not 0 < len(name) <= MAX_NAME:
            raise ValueError(f"a worker's name of {len(name)} characters")
        if reported is None:
            if len(self._workers) >= MOST_WORKERS:
                self._workers.clear()
            reported = self._workers[name] = _Placement(self._next_worker, self._state)
            self._next_worker = (self._next_worker + 1) & _U32
        reported.upto = self._state
        self._add(_NUMBERED(NAMED, 0, len(encoded), reported.number) + _padded(encoded))
        return reported.number

    def _fail(self, request_id: str, number: int, attempt: Attempt) -> None:
        kind = attempt.kind[:MAX_KIND].encode("utf-8", "replace")
        lost_s, retry_after_s = attempt.lost_s, attempt.retry_after_s
        record = FAILED_FORM.pack(
            FAILED, attempt.verdict, len(kind), 0, number, lost_s, retry_after_s
        )
        self._add(record + _padded(kind))
        if len(self._retried) >= MOST_RETRIED:
            del self._retried[next(iter(self._retried))]
        self._retried[request_id] = number


def _padded(text: bytes) -> bytes:
    return text + bytes(-len(text) % 8)
