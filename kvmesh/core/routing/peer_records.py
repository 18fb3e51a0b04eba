"""What router replicas tell each other of the requests they have placed: records.

A message is a head, so many records, and, where its flag says so, msgpack of `Shares`. All numbers
are little-endian; every record is a multiple of 8 bytes and one event. In C:
kvmesh/native/peers/booking_wire.h.

| record | bytes |
|---|---|
| head | u8 format 1, u8 flags (1: shares follow), u16 0, u32 events, u64 epoch, u64 first_seq |
| PLACED | u8 0, u8 flags, u16 hashes, u32 number, u32 worker, u32 blocks, u32 prompt_tokens,
u32 uncached_tokens, u32 expected_blocks, u32 0, then u64 hashes: what `graded.grade` returns |
| PREFILLED, ENDED | u8 1 or 3, 3 x 0, u32 number |
| GREW | u8 2, 3 x 0, u32 number, u64 output_tokens |
| STATE_BEGINS, STATE_ENDS | u8 4 or 5, 7 x 0 |
| FAILED | u8 6, u8 verdict, u8 bytes of the kind, u8 0, u32 number, f64 lost_s, f64 retry_after_s,
the kind in UTF-8, padded with 0 |
| NAMED | u8 7, u8 0, u16 bytes of the name, u32 worker, the name in UTF-8, padded with 0 |

Flags of PLACED: 1 its first token will be seen, 2 the prompt counts as cached from now on, 4 the
worker was next in turn. `number` is the sender's count of bookings, `worker` its number for a
worker that it named before.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

import msgspec

from kvmesh.bounds import MAX_NAME, MAX_ORDINAL
from kvmesh.core.admission.shares import Shares
from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh.core.blocks.graded import graded_length
from kvmesh.core.members.loads import MOST_TOKENS
from kvmesh.core.routing.booking_events import (
    Ended,
    Grew,
    Prefilled,
    StateBegins,
    StateEnds,
    check_states,
)
from kvmesh.errors import CodecError
from kvmesh.formats import OWN, FormatRange

SHARES: Final = 1
"""Flag of a head: shares follow the records."""

STREAMS: Final = 1
BELIEVED: Final = 2
TURN: Final = 4
"""Flags of PLACED."""

PLACED: Final = 0
PREFILLED: Final = 1
GREW: Final = 2
ENDED: Final = 3
STATE_BEGINS: Final = 4
STATE_ENDS: Final = 5
FAILED: Final = 6
NAMED: Final = 7

MOST_GRADED: Final = 1024
"""Hashes of one record: they stand for the first four million tokens of a prompt."""

HEAD: Final = Struct("<BBHIQQ")
PLACED_FORM: Final = Struct("<BBHIIIIIII")
NUMBERED_FORM: Final = Struct("<BBHI")
"""What every record begins with: kind, a byte and a u16 of its own, number or index."""

GREW_FORM: Final = Struct("<BBHIQ")
FAILED_FORM: Final = Struct("<BBBBIdd")

_shares = msgspec.msgpack.Decoder(Shares)


class PlacedRecord(msgspec.Struct, frozen=True, gc=False):
    """A request was booked at the worker of that index; its prompt has so many `blocks`.

    `graded` are packed hashes of those that stand for it (`core.blocks.graded`).
    """

    request_id: str
    worker: int
    blocks: int
    prompt_tokens: int
    uncached_tokens: int
    expected_blocks: int
    graded: bytes = b""
    streams: bool = True
    believed: bool = False
    turn: bool = False


class Named(msgspec.Struct, frozen=True, gc=False):
    """The sender calls that worker by that number from now on."""

    worker: int
    name: str


Record = PlacedRecord | Prefilled | Grew | Ended | StateBegins | StateEnds | Named


class RecordBatch(msgspec.Struct, frozen=True):
    """Consecutive records of one replica: record i has number `first_seq + i`; none is a beat."""

    epoch: int
    first_seq: int
    events: list[Record]
    shares: Shares | None = None


def request_id_of(peer: str, number: int) -> str:
    """Return the id under which a peer's booking is kept here."""
    return f"{peer}#{number}"


def read_records(peer: str, data: bytes, reads: FormatRange = OWN.bookings) -> RecordBatch:
    """Return what `peer` told. Raises `CodecError` for a message that is not wholly as it must be:
    then nothing of it counts.
    """
    if len(data) < HEAD.size:
        raise CodecError(f"bookings of {len(data)} bytes, a head has {HEAD.size}")
    number, flags, reserved, count, epoch, first_seq = HEAD.unpack_from(data)
    if number not in reads:
        raise CodecError(f"bookings have format {number}, this build reads {reads}")
    if flags & ~SHARES or reserved:
        raise CodecError(f"bookings have unknown flags {flags:#x} and {reserved:#x} in their head")
    if epoch > MAX_ORDINAL or first_seq > MAX_ORDINAL:
        raise CodecError(f"bookings of epoch {epoch} from {first_seq} on: beyond 2^62")
    events, end = list[Record](), HEAD.size
    for number in range(count):
        if len(data) - end < NUMBERED_FORM.size:
            raise CodecError(f"bookings end at byte {end}, before record {number} of {count}")
        event, end = read_record(peer, data, end)
        events.append(event)
    check_states(events)
    if not flags & SHARES:
        if end != len(data):
            raise CodecError(f"bookings have {len(data) - end} bytes behind their {count} records")
        return RecordBatch(epoch, first_seq, events)
    return RecordBatch(epoch, first_seq, events, read_shares(data[end:]))


def read_shares(data: bytes) -> Shares:
    """Return what follows the records. Raises `CodecError`."""
    try:
        return _shares.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CodecError(f"shares of {len(data)} bytes behind bookings: {error}") from error


def read_record(peer: str, data: bytes, at: int) -> tuple[Record, int]:
    """Return the record at byte `at`, where at least 8 are left, and where it ends.

    Raises `CodecError`.
    """
    kind, small, wide, number = NUMBERED_FORM.unpack_from(data, at)
    if (longer := _LONGER.get(kind)) is not None:
        return longer(peer, data, at)
    if kind > NAMED:
        raise CodecError(f"booking record at byte {at} has unknown kind {kind}: update this router")
    states = kind in {STATE_BEGINS, STATE_ENDS}
    if small or wide or (states and number):
        raise _reserved(kind, at)
    end = at + NUMBERED_FORM.size
    if states:
        return StateBegins() if kind == STATE_BEGINS else StateEnds(), end
    request_id = request_id_of(peer, number)
    return Prefilled(request_id) if kind == PREFILLED else Ended(request_id), end


def most_graded(blocks: int) -> int:
    """Return how many graded hashes a prompt of so many blocks has, all of them known."""
    return min(graded_length(blocks), MOST_GRADED)


def _read_placed(peer: str, data: bytes, at: int) -> tuple[PlacedRecord, int]:
    _check_room(data, at, PLACED_FORM.size, PLACED)
    form = PLACED_FORM.unpack_from(data, at)
    _, flags, count, number, worker, blocks, prompt, uncached, expected, reserved = form
    if flags & ~(STREAMS | BELIEVED | TURN) or reserved:
        raise _reserved(PLACED, at)
    if count > most_graded(blocks):
        raise CodecError(
            f"booking record at byte {at} has {count} hashes of a prompt of {blocks} blocks,"
            f" which has {most_graded(blocks)} at most"
        )
    start = at + PLACED_FORM.size
    end = start + HASH_BYTES * count
    _check_room(data, at, end - at, PLACED)
    return (
        PlacedRecord(
            request_id_of(peer, number),
            worker,
            blocks,
            prompt,
            uncached,
            expected,
            bytes(data[start:end]),
            bool(flags & STREAMS),
            bool(flags & BELIEVED),
            bool(flags & TURN),
        ),
        end,
    )


def _read_grew(peer: str, data: bytes, at: int) -> tuple[Grew, int]:
    _check_room(data, at, GREW_FORM.size, GREW)
    _, small, wide, number, tokens = GREW_FORM.unpack_from(data, at)
    if small or wide:
        raise _reserved(GREW, at)
    if tokens > MOST_TOKENS:
        raise CodecError(f"booking record at byte {at} grew to {tokens} tokens, more than 2^40")
    return Grew(request_id_of(peer, number), tokens), at + GREW_FORM.size


def _read_failed(peer: str, data: bytes, at: int) -> tuple[Ended, int]:
    _check_room(data, at, FAILED_FORM.size, FAILED)
    _, verdict, length, reserved, number, lost_s, retry_s = FAILED_FORM.unpack_from(data, at)
    if reserved:
        raise _reserved(FAILED, at)
    kind, end = _read_text(data, at, at + FAILED_FORM.size, length, FAILED)
    return Ended(request_id_of(peer, number), verdict, kind, lost_s, retry_s), end


def _read_named(_: str, data: bytes, at: int) -> tuple[Named, int]:
    _, reserved, length, worker = NUMBERED_FORM.unpack_from(data, at)
    if reserved:
        raise _reserved(NAMED, at)
    name, end = _read_text(data, at, at + NUMBERED_FORM.size, length, NAMED)
    if not 0 < len(name) <= MAX_NAME:
        raise CodecError(
            f"booking record at byte {at} names a worker by {len(name)} characters,"
            f" a name has 1 to {MAX_NAME}"
        )
    return Named(worker, name), end


def _read_text(data: bytes, at: int, start: int, length: int, kind: int) -> tuple[str, int]:
    """Return text, and where its padding ends."""
    end = start + -(-length // 8) * 8
    _check_room(data, at, end - at, kind)
    if any(data[start + length : end]):
        raise _reserved(kind, at)
    try:
        return str(data[start : start + length], "utf-8"), end
    except UnicodeDecodeError as error:
        raise CodecError(f"booking record at byte {at}, kind {kind}: {error}") from error


def _check_room(data: bytes, at: int, size: int, kind: int) -> None:
    if len(data) - at < size:
        raise CodecError(
            f"booking record at byte {at}, kind {kind}, has {size} bytes, {len(data) - at} are left"
        )


def _reserved(kind: int, at: int) -> CodecError:
    return CodecError(f"booking record at byte {at}, kind {kind}, has reserved bits set")


_LONGER: Final[dict[int, Callable[[str, bytes, int], tuple[Record, int]]]] = {
    PLACED: _read_placed,
    GREW: _read_grew,
    FAILED: _read_failed,
    NAMED: _read_named,
}
