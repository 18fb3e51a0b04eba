"""The journal's vocabulary: what a worker's cache did, in kvmesh's own content hashes.

One batch is one journal message: msgpack `[version, epoch, first_seq, [event, ...]]`, no headers.
Whatever a later format is, it begins with its number: as a byte, 1 to 31, or as the first item of a
msgpack array. So who does not read it knows it from garbage.
Hashes travel as packed little-endian u64 bytes, never as lists of integers.
"""

from typing import Annotated, Final, NewType

import msgspec
from msgspec import Meta

from kvmesh.bounds import MAX_MEMBER, MAX_ORDINAL, UNREADABLE, Epoch, Hash, Sequence, shown
from kvmesh.errors import CodecError, NewerError
from kvmesh.formats import MAX_FORMAT, OWN, FormatRange

WorkerId = NewType("WorkerId", str)
"""One routable worker: an engine, or one data-parallel rank of it (`name` or `name-dp1`)."""

WorkerName = Annotated[WorkerId, Meta(min_length=1, max_length=MAX_MEMBER)]
"""A worker's name in a message."""

ROOT: Final = 0
"""Parent of a sequence's first block, whatever its namespace."""

ENDS: Final = 64
"""Added to a tier's number in `Stored` and `Removed`: blocks a hit may end behind, in any order.

A worker of several cache groups holds its full-attention blocks as others do; which of them a
request can be continued from, all groups together decide. `parent` is `ROOT`, the run no chain.
"""

VERSION: Final = 1
"""The format of batches."""

HASH_BYTES: Final = 8

TierNumber = Annotated[int, Meta(ge=0, le=255)]


Lookahead = Annotated[int, Meta(ge=0, le=64)]
DroppedBlocks = Annotated[int, Meta(ge=0, le=8)]


class Stored(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The worker now holds `hashes`: a run, each block the parent of the next.

    `parent` is the block before the run (`ROOT` for none) and must already be held.
    `tier` 0 is device memory, 1 host, 2 disk; a tier means "held there or nearer".
    """

    parent: Hash
    hashes: bytes
    tier: TierNumber = 0


class Removed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The worker no longer holds `hashes`; none of their children is still held."""

    hashes: bytes
    tier: TierNumber = 0


class Cleared(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The worker holds nothing. At the head of a batch it also ends any gap before it."""


class Reuse(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """From here on a hit of this worker ends where it has an end (see `ENDS`), until `Cleared`.

    The keys of its ends cover `lookahead` tokens behind the block, 0 to 64; a hit is `drop` blocks
    shorter than where it ends, 0 to 8 (EAGLE and MTP compute the last matched block again).
    """

    lookahead: Lookahead = 0
    drop: DroppedBlocks = 0


Event = Stored | Removed | Cleared | Reuse


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive events of one worker: event i has sequence number `first_seq + i`.

    `epoch` is the incarnation of the worker's publisher; a larger one replaces everything before.
    Neither it nor the number after the last event is beyond `MAX_ORDINAL`.
    """

    version: int
    epoch: Epoch
    first_seq: Sequence
    events: list[Event]


class _Begin(msgspec.Struct, array_like=True):
    """What a message of any format that is an array begins with."""

    version: Annotated[int, Meta(ge=1, le=MAX_FORMAT)]


_MOST_BARE: Final = 31
"""The largest format told by a first byte alone: text begins with none of these."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)
_begin_decoder = msgspec.msgpack.Decoder(_Begin)


def encode_batch(batch: Batch) -> bytes:
    """Return the journal message of `batch`."""
    return _encoder.encode(batch)


def decode_batch(data: bytes, reads: FormatRange = OWN.journal) -> Batch:
    """Return the batch in `data`.

    Raises `NewerError` for a format beyond those that are read, `CodecError` for anything else,
    e.g. a PubAck written to the subject by a stranger, a number out of range, or hashes that are
    not whole u64s.
    """
    try:
        batch = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        refuse_newer(data, reads)
        raise CodecError(f"journal message of {len(data)} bytes: {error}") from error
    if batch.version not in reads:
        refuse_newer(data, reads)
        raise CodecError(
            f"journal message has format {shown(batch.version)}, this build reads {reads}"
        )
    if batch.first_seq + len(batch.events) > MAX_ORDINAL:
        raise CodecError(
            f"journal message has {len(batch.events)} events from {batch.first_seq} on:"
            f" numbers end at {MAX_ORDINAL}"
        )
    for event in batch.events:
        if isinstance(event, (Stored, Removed)) and len(event.hashes) % HASH_BYTES:
            raise CodecError(f"journal event has {len(event.hashes)} hash bytes, no whole u64s")
    return batch


def refuse_newer(data: bytes, reads: FormatRange) -> None:
    """Raise `NewerError` if `data` says that its format is beyond `reads`."""
    number = data[0] if data else 0
    if number > _MOST_BARE:
        try:
            number = _begin_decoder.decode(data).version
        except UNREADABLE:
            return
    if number > reads.newest:
        raise NewerError(
            f"journal message has format {number}, this build reads {reads}: "
            "its worker is of a newer version; see docs/operate/upgrade.md",
            number=number,
        )
