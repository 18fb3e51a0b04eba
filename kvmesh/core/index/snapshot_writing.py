"""A whole index as bytes: about 10 a block, written in slices, checked to the last bit.

    magic             8 bytes, the last one the format
    section, ...      kind u8, length u32, then that many bytes
    checksum          XXH3-64 of everything before it

Everything is little-endian. Sections in order of their kind:
`HEAD`, one: msgpack of where in the stream the index stands and of its workers.
`PART`, any number: a shard of a tier: tier u8, shard u8, width u8, count u32; per block the 7 upper
bytes of its hash (the lowest is the shard); per block the number of its set, `width` bytes each.
`RULES`, one where a worker has a rule of reuse: msgpack of these rules. Parts of such a worker's
ends have the tier `ENDS` and more.
`SETS`, any number: who holds a block: per set u16 length, then a bitmask over the workers' slots.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from xxhash import xxh3_64

from kvmesh.bounds import MAX_MEMBERS, Count, Epoch, Hash, MaybeName, Sequence, Tokens
from kvmesh.core.blocks.events import DroppedBlocks, Lookahead, WorkerName
from kvmesh.core.index.freeze import KEY_BYTES, FrozenIndex, SetNumbers

MAGIC: Final = b"KVMINDX\x01"
"""What a snapshot of format 1 begins with."""

HEAD: Final = 1
PART: Final = 2
SETS: Final = 3
RULES: Final = 4
MAX_SLOTS: Final = MAX_MEMBERS
SECTION: Final = struct.Struct("<BI")
PART_HEAD: Final = struct.Struct("<BBBI")
SET_HEAD: Final = struct.Struct("<H")
_SLICE_BLOCKS: Final = 4096
_SLICE_SETS: Final = 4096


class WorkerRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot tells of one worker besides its blocks: everything before `next_seq` is in.

    `gap`: something is missing at `next_seq`. `extra` is the caller's own.
    """

    worker: WorkerName
    epoch: Epoch = 0
    next_seq: Sequence = 0
    gap: bool = False
    block_size: Tokens = 0
    extra: bytes = b""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where an index stands: it has everything up to `sequence` of the stream made at `created`."""

    created: MaybeName = ""
    sequence: Sequence = 0
    extra: bytes = b""


class HeldByWorker(msgspec.Struct, frozen=True, array_like=True):
    """What a worker holds, per tier; its bit in the sets is `slot`."""

    worker: WorkerName
    slot: Annotated[int, Meta(ge=0, lt=MAX_SLOTS)]
    truncated: bool
    blocks: tuple[Count, ...]
    digests: tuple[Hash, ...]


class GroupedWorker(msgspec.Struct, frozen=True, array_like=True):
    """By which rule a worker's hits end, and how many ends it has, with their digest, per tier."""

    worker: WorkerName
    lookahead: Lookahead
    drop: DroppedBlocks
    ends: tuple[Count, ...]
    digests: tuple[Hash, ...]


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The first section."""

    position: Position
    records: Annotated[tuple[WorkerRecord, ...], Meta(max_length=MAX_MEMBERS)]
    holders: Annotated[tuple[HeldByWorker, ...], Meta(max_length=MAX_MEMBERS)]


def encode_snapshot(
    frozen: FrozenIndex,
    position: Position,
    records: Iterable[WorkerRecord] = (),
    number: int = MAGIC[-1],
) -> Iterator[bytes]:
    """Yield the snapshot of a frozen index in format `number`, piece by piece.

    Let other work go on between pieces, which may be empty: none takes more than about 1 ms,
    whatever the hashes are. The index may change meanwhile (see `FrozenIndex`); stopping early
    closes `frozen`.
    """
    checksum = xxh3_64()
    try:
        begin = MAGIC[:-1] + bytes([number])
        for piece in _sections(frozen, position, tuple(records), begin):
            checksum.update(piece)
            yield piece
    finally:
        frozen.close()
    yield checksum.intdigest().to_bytes(8, "little")


def _sections(
    frozen: FrozenIndex, position: Position, records: tuple[WorkerRecord, ...], begin: bytes
) -> Iterator[bytes]:
    holders = tuple(
        HeldByWorker(one.worker, one.bit.bit_length() - 1, one.truncated, one.blocks, one.digests)
        for one in sorted(frozen.workers, key=lambda one: one.bit)
    )
    yield begin + _section(HEAD, msgspec.msgpack.encode(Head(position, records, holders)))
    if frozen.grouped:
        rules = [
            GroupedWorker(one.worker, one.rule.lookahead, one.rule.drop, one.ends, one.digests)
            for one in frozen.grouped
        ]
        yield _section(RULES, msgspec.msgpack.encode(rules))
    numbers = SetNumbers()
    parts: list[bytes] = []
    blocks = 0
    for part, columns in frozen.columns(numbers):
        if part is not None and part.blocks:
            size = PART_HEAD.size + part.blocks * (KEY_BYTES + part.width)
            head = PART_HEAD.pack(part.tier, part.shard, part.width, part.blocks)
            parts += (SECTION.pack(PART, size), head)
            blocks += part.blocks
        parts.append(columns)
        if part is None or blocks >= _SLICE_BLOCKS:
            yield b"".join(parts)
            parts.clear()
            blocks = 0
    yield b"".join(parts)
    masks = list(numbers)
    for first in range(0, len(masks), _SLICE_SETS):
        yield _section(SETS, b"".join(map(_set, masks[first : first + _SLICE_SETS])))


def _section(kind: int, payload: bytes) -> bytes:
    return SECTION.pack(kind, len(payload)) + payload


def _set(mask: int) -> bytes:
    data = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
    return SET_HEAD.pack(len(data)) + data
