"""What router replicas tell each other of the requests they have placed.

One message is msgpack `[version, epoch, first_seq, [event, ...], shares]` on the sender's own
subject.
"""

from collections.abc import Iterable
from math import isfinite
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvmesh.bounds import Epoch, Name, Sequence
from kvmesh.core.admission.shares import Shares
from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh.core.health.outcomes import SERVED, Attempt, Verdict
from kvmesh.core.workers.loads import MOST_TOKENS
from kvmesh.errors import CodecError

BOOKING_VERSION: Final = 1

MAX_KIND: Final = 32
"""Characters kept of the word that says how an attempt failed."""

MOST_SECONDS: Final = 86_400.0

MAX_HASHES: Final = 4096
"""Block hashes told of one prompt, 32 KiB: with 16 tokens a block, of its first 65,536."""

Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Packed = Annotated[bytes, Meta(max_length=MAX_HASHES * HASH_BYTES)]


class Placed(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A request was booked at a worker; `keys` are packed sharing keys (see `ActiveSequences`).

    `hashes` are the first `MAX_HASHES` of the prompt's block hashes, packed, root first: from now
    on it counts as cached at the worker. Empty when it does not. `turn`: the worker was next in
    turn.
    """

    request_id: Name
    worker: Name
    prompt_tokens: Tokens
    uncached_tokens: Tokens
    expected_blocks: Tokens = 0
    keys: bytes = b""
    streams: bool = True
    hashes: Packed = b""
    turn: bool = False


class Prefilled(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A request's first token came."""

    request_id: Name


class Grew(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A request has `output_tokens` in total."""

    request_id: Name
    output_tokens: Tokens


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A request is over at its worker; the other fields are those of `outcomes.Attempt`.

    A replica of an older version tells no outcome: then it counts as served.
    """

    request_id: Name
    verdict: int = Verdict.SERVED
    kind: str = ""
    lost_s: float = 0.0
    retry_after_s: float = 0.0

    def attempt(self) -> Attempt:
        """Return what the end showed, bounded: a figure that no clock shows counts as 0."""
        known = 0 <= self.verdict < len(Verdict)
        verdict = Verdict(self.verdict) if known else Verdict.UNKNOWN
        if verdict is Verdict.SERVED:
            return SERVED
        lost_s, retry_after_s = _seconds(self.lost_s), _seconds(self.retry_after_s)
        return Attempt(verdict, self.kind[:MAX_KIND], lost_s, retry_after_s)


class StateBegins(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """All the sender's bookings follow; what is not among them up to `StateEnds` is over."""


class StateEnds(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The sender's state is complete."""


BookingEvent = Placed | Prefilled | Grew | Ended | StateBegins | StateEnds


class BookingBatch(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive events of one replica: event i has number `first_seq + i`; none is a beat.

    `shares` is what changed of the tenants' service, None where nothing did.
    """

    version: int
    epoch: Epoch
    first_seq: Sequence
    events: list[BookingEvent]
    shares: Shares | None = None


MOST_STATES: Final = 4
"""States that begin in one message: who tells one sends what waits before it. To fold one takes
O(bookings), to send one 8 bytes.
"""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BookingBatch)


def encode_bookings(batch: BookingBatch) -> bytes:
    """Return the message of `batch`."""
    return _encoder.encode(batch)


def encode_booking(event: BookingEvent) -> msgspec.Raw:
    """Return one event as it travels. Raises `CodecError` for what cannot: a number too large."""
    try:
        return msgspec.Raw(_encoder.encode(event))
    except (OverflowError, TypeError, ValueError) as error:
        raise CodecError(f"{type(event).__name__} of a request cannot be sent: {error}") from error


def join_bookings(
    epoch: int, first_seq: int, events: list[msgspec.Raw], shares: msgspec.Raw | None = None
) -> bytes:
    """Return the message of a batch of encoded events, and encoded shares."""
    return _encoder.encode((BOOKING_VERSION, epoch, first_seq, events, shares))


def decode_bookings(data: bytes) -> BookingBatch:
    """Return the batch in `data`. Raises `CodecError`."""
    try:
        batch = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CodecError(f"bookings of {len(data)} bytes: {error}") from error
    if batch.version != BOOKING_VERSION:
        raise CodecError(f"bookings have version {batch.version}, this build reads 1")
    for event in batch.events:
        if isinstance(event, Placed) and (len(event.keys) | len(event.hashes)) % HASH_BYTES:
            raise CodecError(
                f"booking {event.request_id} has {len(event.keys)} key bytes and"
                f" {len(event.hashes)} hash bytes; both are multiples of {HASH_BYTES}"
            )
    check_states(batch.events)
    return batch


def check_states(events: Iterable[object]) -> None:
    """Raise `CodecError` where more states begin in one message than any replica tells in one."""
    states = sum(type(event) is StateBegins for event in events)
    if states > MOST_STATES:
        raise CodecError(f"bookings begin {states} states in one message, at most {MOST_STATES}")


def _seconds(told: float) -> float:
    return min(max(0.0, told), MOST_SECONDS) if isfinite(told) else 0.0
