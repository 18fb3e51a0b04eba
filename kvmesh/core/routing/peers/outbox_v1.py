"""What a sibling of an older version can read of this replica's bookings: format 1."""

from collections.abc import Iterable
from typing import Final

import msgspec

from kvmesh._native import ActiveSequences, Booking
from kvmesh.core.blocks.hashing import NO_HASHES, pack_hashes
from kvmesh.core.health.outcomes import SERVED, Attempt, Verdict
from kvmesh.core.routing.booking_events import (
    MAX_HASHES,
    BookingEvent,
    Ended,
    Grew,
    Placed,
    Prefilled,
    StateBegins,
    StateEnds,
    encode_booking,
    join_bookings,
)
from kvmesh.core.routing.peers.outbox import MOST_BYTES
from kvmesh.core.routing.peers.placed import expected_blocks
from kvmesh.core.workers.loads import MOST_TOKENS
from kvmesh.core.workers.sequences import LOCAL
from kvmesh.errors import KvMeshError

KEY_STEP: Final = 16
"""Blocks between two sharing keys, as readers of this format count them."""

_COMMON_KEYS: Final = 16
"""Up to block 256 the keys of a booking are those that readers of this format count."""

_EVENT_BYTES: Final = 128
"""Of an event without its hashes, at most: two names of up to 40 bytes and numbers."""


class OldBookingOutbox:
    """Tells what `BookingOutbox` tells, in format 1: with whole hashes, by request ids.

    A reader of this format counts a key as 16 blocks. Beyond 256 blocks of a prompt those are known
    only as long as its hashes are: told later, it shares 256 blocks at most, and the reader counts
    more active blocks than there are.
    """

    def __init__(self, sequences: ActiveSequences, epoch: int) -> None:
        self.epoch = epoch
        self.next_seq = 1
        self.untold = 0
        self._sequences = sequences
        self._events: list[tuple[msgspec.Raw, int]] = []
        self._bytes = 0
        self._grown: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        """Return how many events wait to be taken."""
        return len(self._events)

    def placed(self, booking: Booking) -> None:
        """Tell of a booking of this replica's own."""
        if booking.owner == LOCAL:
            self._place(booking)

    def first_token(self, request_id: str) -> None:
        """Tell that a request's first token came."""
        self._add(Prefilled(request_id))

    def ended(self, request_id: str, attempt: Attempt = SERVED) -> None:
        """Tell that a request is over at its worker, and what that showed."""
        self._grown.pop(request_id, None)
        if attempt.verdict == Verdict.SERVED:
            self._add(Ended(request_id))
        else:
            lost_s, retry_after_s = attempt.lost_s, attempt.retry_after_s
            self._add(Ended(request_id, attempt.verdict, attempt.kind, lost_s, retry_after_s))

    def tell_growth(self) -> None:
        """Tell of each booking whose output has grown since it was told of last. O(bookings)."""
        before, self._grown = self._grown, {}
        for booking in self._sequences.owned():
            if not booking.output_tokens:
                continue
            self._grown[booking.request_id] = booking.output_tokens
            if booking.output_tokens > before.get(booking.request_id, 0):
                self._add(Grew(booking.request_id, booking.output_tokens))

    def begin_state(self) -> None:
        """Tell that all live bookings follow; peers drop the others with `end_state`."""
        self._add(StateBegins())

    def retell(self, bookings: Iterable[Booking]) -> None:
        """Tell of live bookings as they are now; of others nothing."""
        live = self._sequences.bookings
        for booking in bookings:
            if live.get(booking.request_id) is not booking:
                continue
            self.placed(booking)
            if not booking.prefilling:
                self._add(Prefilled(booking.request_id))
            if booking.output_tokens:
                self._grown[booking.request_id] = booking.output_tokens
                self._add(Grew(booking.request_id, booking.output_tokens))

    def end_state(self) -> None:
        """Tell that the state is complete."""
        self._add(StateEnds())

    def restart(self, next_seq: int) -> None:
        """Tell nothing of what waits, and go on with this number; bookings told are forgotten."""
        self.next_seq = next_seq
        self._events.clear()
        self._bytes = 0
        self._grown.clear()

    def take(self, max_events: int, max_bytes: int, shares: bytes = b"") -> list[bytes]:
        """Return all that waits as messages; the last one carries packed `shares`, if any.

        A message ends after `max_events` or with the event that fills `max_bytes`.
        """
        events, self._events, self._bytes = self._events, [], 0
        taken = list[bytes]()
        start = size = 0
        for end, (_, event_bytes) in enumerate(events, 1):
            size += event_bytes
            if end - start >= max_events or size >= max_bytes or end == len(events):
                behind = shares if end == len(events) else b""
                taken.append(self._message([event for event, _ in events[start:end]], behind))
                start, size = end, 0
        return [self.beat(shares)] if shares and not events else taken

    def beat(self, shares: bytes = b"") -> bytes:
        """Return a message without events, which says how far this replica is."""
        return self._message([], shares)

    def _message(self, events: list[msgspec.Raw], shares: bytes) -> bytes:
        behind = msgspec.Raw(shares) if shares else None
        data = join_bookings(self.epoch, self.next_seq, events, behind)
        self.next_seq += len(events)
        return data

    def _add(self, event: BookingEvent) -> None:
        try:
            encoded = encode_booking(event)
        except KvMeshError:
            self.untold += 1
            return
        if self._bytes > MOST_BYTES:
            self.untold += len(self._events)
            self.next_seq += len(self._events)
            self._events, self._bytes = [], 0
        size = _EVENT_BYTES
        if isinstance(event, Placed):
            size += len(event.keys) + len(event.hashes)
        self._events.append((encoded, size))
        self._bytes += size

    def _place(self, booking: Booking) -> None:
        """Tell of a booking as it was placed; what came of it follows in events of its own."""
        try:
            own = booking.hashes
            whole = own if own and not isinstance(own, bytes) else NO_HASHES
            hashes = whole.upto(MAX_HASHES)[:MAX_HASHES]
        except KvMeshError:
            self.untold += 1
            return
        expected = expected_blocks(booking, self._sequences.block_size)
        self._add(
            Placed(
                request_id=booking.request_id,
                worker=booking.worker,
                prompt_tokens=booking.prompt_tokens,
                uncached_tokens=booking.uncached_tokens,
                expected_blocks=min(expected, MOST_TOKENS),
                keys=pack_hashes(hashes[KEY_STEP - 1 :: KEY_STEP] or booking.keys[:_COMMON_KEYS]),
                streams=booking.streams,
                hashes=pack_hashes(hashes),
                turn=booking.turn,
            )
        )
