"""What this replica has yet to tell its siblings of its bookings, as the records that travel.

A message is a head and records, little-endian, each a multiple of 8 bytes; `BookingOutbox` writes
them. Whoever reads them has to check them.
"""

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Final, Protocol, cast

from kvmesh.compiled import NATIVE
from kvmesh.core.blocks.graded import grade, graded_count, graded_depth, key_count, key_depth
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.health.outcomes import SERVED, UNKNOWN, Attempt, Verdict
from kvmesh.core.workers.loads import MOST_TOKENS, Booking
from kvmesh.core.workers.sequences import LOCAL, ActiveSequences

BOOKINGS_FORMAT: Final = 2
"""The first byte of a message; messages of format 1 are msgpack and begin with 0x94 or 0x95."""

HEAD: Final = Struct("<BBHIQQ")
"""Format, flags (1: shares follow the records), 0, events, epoch, number of the first event."""

PLACED_RECORD: Final = Struct("<BBHIIIIIII")
"""Kind 0, flags (1 streams, 2 believed cached from now on, 4 in turn), graded hashes that follow,
number of the booking, of its worker, blocks of its prompt, prompt tokens, uncached tokens, expected
blocks, 0.
"""

SHORT_RECORD: Final = Struct("<BBHI")
"""Kind and number of the booking. Kind 7: number of the worker, before it the bytes of its name."""

GREW_RECORD: Final = Struct("<BBHIQ")
"""Kind 2, number of the booking, output tokens in total."""

FAILED_RECORD: Final = Struct("<BBBBIdd")
"""Kind 6, verdict, bytes of the kind's name that follow, 0, number, seconds lost, to retry after."""

PLACED, PREFILLED, GREW, ENDED, STATE_BEGINS, STATE_ENDS, FAILED, NAMED = range(8)
STREAMS, BELIEVED, TURN = 1, 2, 4
SHARES: Final = 1

MOST_GRADED: Final = 1024
"""Hashes told of one prompt: of its first 4 million tokens with 16 a block."""

MOST_BLOCKS: Final = graded_depth(MOST_GRADED)
MAX_KIND: Final = 32
"""Characters told of the word that says how an attempt failed."""

MOST_BYTES: Final = 4 << 20
"""Records that wait to be taken. Beyond it all of them are left out: peers find the gap in their
numbers, and ask for the state.
"""

MOST_RETRIED: Final = 1024
"""Failed requests whose numbers are kept, so that a second attempt is told under the same."""

MOST_WORKERS: Final = 1 << 14
"""Workers whose numbers are kept; with one more all of them get new ones."""

_U32: Final = (1 << 32) - 1
_MOST_NAME: Final = (1 << 16) - 1


class OtherOutbox(Protocol):
    """An outbox that writes another format, in place of the one that has it."""

    def placed(self, booking: Booking) -> None:
        """Do as `BookingOutbox.placed`."""
        ...

    def first_token(self, request_id: str) -> None:
        """Do as `BookingOutbox.first_token`."""
        ...

    def ended(self, request_id: str, attempt: Attempt = SERVED) -> None:
        """Do as `BookingOutbox.ended`."""
        ...


class _Told:
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
    what cannot be told is counted in `untold`. While there is an `other` outbox, which writes
    another format, bookings are told to it instead.

    In C where there is a compiled core (kvmesh/native/outbox.c): `new_booking_outbox` knows.
    """

    def __init__(self, sequences: ActiveSequences, epoch: int) -> None:
        self.epoch = epoch
        self.next_seq = 1
        self.untold = 0
        self.gathering = False
        self.on_first: Callable[[], object] | None = None
        self.other: OtherOutbox | None = None
        self._sequences = sequences
        self._records: list[bytes] = []
        self._bytes = 0
        self._number = 0
        self._state = 0
        self._next_worker = 0
        self._bookings: dict[str, _Told] = {}
        self._retried: dict[str, int] = {}
        self._workers: dict[str, _Told] = {}

    def placed(self, booking: Booking) -> None:
        """Tell of a booking of this replica's own, once."""

    def first_token(self, request_id: str) -> None:
        """Tell that a request's first token came."""

    def ended(self, request_id: str, attempt: Attempt = SERVED) -> None:
        """Tell that a request is over at its worker, and what that showed."""

    def tell_growth(self) -> None:
        """Tell of each booking whose output has grown since it was told of last, and of those that
        ended without a word that they are over. O(bookings told).
        """

    def begin_state(self) -> None:
        """Tell that all live bookings follow; peers drop the others with `end_state`."""

    def retell(self, bookings: Iterable[Booking]) -> None:
        """Tell of live bookings as they are now; of others nothing."""

    def end_state(self) -> None:
        """Tell that the state is complete."""

    def restart(self, next_seq: int) -> None:
        """Tell nothing of what waits, and go on with this number; bookings told are forgotten."""

    def take(self, max_events: int, max_bytes: int, shares: bytes = b"") -> list[bytes]:
        """Return all that waits as messages; the last one carries packed `shares`, if any.

        A message ends after `max_events` or with the record that fills `max_bytes`.
        """
        raise NotImplementedError

    def beat(self, shares: bytes = b"") -> bytes:
        """Return a message without events, which says how far this replica is."""
        raise NotImplementedError


def new_booking_outbox(sequences: ActiveSequences, epoch: int) -> BookingOutbox:
    """Return an outbox without anything to tell; `sequences` as `new_sequences` made them."""
    if NATIVE is None:
        return BookingOutbox(sequences, epoch)
    return cast("BookingOutbox", NATIVE.BookingOutbox(sequences, epoch))
