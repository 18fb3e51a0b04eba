"""Reading a snapshot: nothing in it is believed before it is checked."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from xxhash import xxh3_64

from kvmesh.core.blocks.events import ENDS, HASH_BYTES, Reuse, WorkerId
from kvmesh.core.index.freeze import KEY_BYTES, MOST_AT_ONCE
from kvmesh.core.index.image import IndexImage
from kvmesh.core.index.index import TIERS
from kvmesh.core.index.snapshot_writing import (
    HEAD,
    MAGIC,
    PART,
    PART_HEAD,
    RULES,
    SECTION,
    SET_HEAD,
    SETS,
    GroupedWorker,
    Head,
    HeldByWorker,
    Position,
    WorkerRecord,
)
from kvmesh.errors import CodecError, NewerError
from kvmesh.formats import OWN, FormatRange

_CHECKSUM_SLICE: Final = 1 << 24
_SLICE_BLOCKS: Final = 16_384
_SLICE_OF_LARGE: Final = 4_096
"""Blocks of a part of more than `MOST_AT_ONCE`: they take thrice as long, as its room grows."""

_SLICE_SETS: Final = 1024
_WIDTHS: Final = (2, 4)
_U64: Final = (1 << 64) - 1
_head_decoder = msgspec.msgpack.Decoder(Head)
_rules_decoder = msgspec.msgpack.Decoder(list[GroupedWorker])


class Snapshot(msgspec.Struct, frozen=True):
    """A decoded snapshot: give `image` and `truncated` to `KvIndex.load`."""

    position: Position
    records: tuple[WorkerRecord, ...]
    image: IndexImage
    truncated: tuple[WorkerId, ...]


def decode_snapshot(data: bytes, reads: FormatRange = OWN.snapshot) -> Snapshot:
    """Return what `encode_snapshot` wrote, joined. Raises as `decode_in_slices`."""
    *_, snapshot = decode_in_slices(data, reads)
    assert snapshot is not None
    return snapshot


def decode_in_slices(data: bytes, reads: FormatRange = OWN.snapshot) -> Iterator[Snapshot | None]:
    """Yield None after each slice of the work, some 3 ms, and last the snapshot.

    Raises `NewerError` for a format beyond those that are read, `CodecError` as soon as something
    is wrong: cut, damaged, or in contradiction to itself. Memory is used in proportion to `data`,
    whatever it says.
    """
    view = memoryview(data)
    _check_format(view, reads)
    yield from _check_sum(view)
    sections = _find_sections(view)
    head = _read_head(sections[HEAD])
    masks: list[int] = []
    for _ in _read_sets(sections[SETS], head.holders, masks):
        yield None
    grouped = _read_rules(sections[RULES], head.holders)
    image = IndexImage([one.worker for one in head.holders], masks)
    for one in grouped:
        image.follow(one.worker, Reuse(one.lookahead, one.drop))
    for _ in _read_parts(sections[PART], image):
        yield None
    for _ in image.account():
        yield None
    for holder in head.holders:
        _check_holder(holder.worker, holder.blocks, holder.digests, 0, image)
    ends = {one.worker: (one.ends, one.digests) for one in grouped}
    for holder in head.holders:
        counts, digests = ends.get(holder.worker, ((), ()))
        _check_holder(holder.worker, counts, digests, ENDS, image)
    truncated = tuple(one.worker for one in head.holders if one.truncated)
    yield Snapshot(head.position, head.records, image, truncated)


def _wrong(what: str) -> CodecError:
    return CodecError(f"snapshot: {what}; use an older one")


def _check_format(view: memoryview, reads: FormatRange) -> None:
    last = len(MAGIC) - 1
    if len(view) < len(MAGIC) + HASH_BYTES or bytes(view[:last]) != MAGIC[:last]:
        raise _wrong(f"{len(view)} bytes do not begin with {MAGIC[:last]!r}")
    number = view[last]
    if number > reads.newest:
        why = f"snapshot: it has format {number}, this build reads {reads}: it is a newer kvmesh's"
        raise NewerError(why, number=number)
    if number not in reads:
        raise _wrong(f"it has format {number}, this build reads {reads}")


def _check_sum(view: memoryview) -> Iterator[None]:
    checksum = xxh3_64()
    content = view[:-HASH_BYTES]
    for first in range(0, len(content), _CHECKSUM_SLICE):
        checksum.update(content[first : first + _CHECKSUM_SLICE])
        yield
    if checksum.intdigest() != int.from_bytes(view[-HASH_BYTES:], "little"):
        raise _wrong("checksum does not match, the bytes are cut or damaged")


def _find_sections(view: memoryview) -> dict[int, list[memoryview]]:
    """Return the payloads of each kind."""
    sections: dict[int, list[memoryview]] = {HEAD: [], PART: [], SETS: [], RULES: []}
    at, end = len(MAGIC), len(view) - HASH_BYTES
    while at < end:
        if end - at < SECTION.size:
            raise _wrong(f"section at byte {at} is cut")
        kind, size = SECTION.unpack_from(view, at)
        at += SECTION.size
        if kind not in sections or size > end - at:
            raise _wrong(f"section at byte {at} has kind {kind}, {size} bytes")
        sections[kind].append(view[at : at + size])
        at += size
    return sections


def _read_head(payloads: Sequence[memoryview]) -> Head:
    if len(payloads) != 1:
        raise _wrong(f"it has {len(payloads)} heads")
    try:
        head = _head_decoder.decode(payloads[0])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _wrong(f"head: {error}") from error
    for names in ([one.worker for one in head.records], [one.worker for one in head.holders]):
        if len(set(names)) != len(names):
            raise _wrong("a worker comes twice")
    slots = {one.slot for one in head.holders}
    if len(slots) != len(head.holders):
        raise _wrong("a slot comes twice")
    for one in head.holders:
        if len(one.blocks) != len(one.digests) or len(one.blocks) > TIERS:
            raise _wrong(f"worker {one.worker} has {len(one.blocks)} tiers")
    return head


def _read_rules(
    payloads: Sequence[memoryview], holders: Sequence[HeldByWorker]
) -> list[GroupedWorker]:
    if len(payloads) > 1:
        raise _wrong(f"it has {len(payloads)} sections of rules")
    if not payloads:
        return []
    try:
        grouped = _rules_decoder.decode(payloads[0])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _wrong(f"rules: {error}") from error
    names = [one.worker for one in grouped]
    if len(set(names)) != len(names) or not {one.worker for one in holders}.issuperset(names):
        raise _wrong("a rule is of no worker, or there are two of one")
    for one in grouped:
        if len(one.ends) != len(one.digests) or len(one.ends) > TIERS:
            raise _wrong(f"worker {one.worker} has ends in {len(one.ends)} tiers")
    return grouped


def _read_sets(
    payloads: Sequence[memoryview], holders: Sequence[HeldByWorker], masks: list[int]
) -> Iterator[None]:
    """Append each set to `masks`, as a mask in which the i-th holder has bit i."""
    known = sum(1 << one.slot for one in holders)
    dense = all(one.slot == number for number, one in enumerate(holders))
    bits = {one.slot: 1 << number for number, one in enumerate(holders)}
    for payload in payloads:
        at = 0
        while at < len(payload):
            if len(masks) % _SLICE_SETS == 0:
                yield
            size = int.from_bytes(payload[at : at + SET_HEAD.size], "little")
            at += SET_HEAD.size
            mask = int.from_bytes(payload[at : at + size], "little")
            at += size
            if at > len(payload) or not mask or mask & ~known:
                raise _wrong(f"set {len(masks)} is cut, empty or names an unknown worker")
            masks.append(mask if dense else _translate(mask, bits))


def _translate(mask: int, bits: dict[int, int]) -> int:
    translated = 0
    while mask:
        lowest = mask & -mask
        translated |= bits[lowest.bit_length() - 1]
        mask ^= lowest
    return translated


def _read_parts(payloads: Sequence[memoryview], image: IndexImage) -> Iterator[None]:
    seen: set[tuple[int, int]] = set()
    blocks = 0
    for payload in payloads:
        if len(payload) < PART_HEAD.size:
            raise _wrong("a part is cut")
        tier, shard, width, count = PART_HEAD.unpack_from(payload)
        place = f"part {shard} of tier {tier}"
        if tier & ~ENDS >= TIERS or (tier, shard) in seen:
            raise _wrong(f"{place} comes twice or is out of range")
        seen.add((tier, shard))
        columns = payload[PART_HEAD.size :]
        if width not in _WIDTHS or len(columns) != count * (KEY_BYTES + width):
            raise _wrong(f"{place} has {len(columns)} bytes for {count} blocks of width {width}")
        keys, numbers = columns[: count * KEY_BYTES], columns[count * KEY_BYTES :]
        step = _SLICE_OF_LARGE if count > MOST_AT_ONCE else MOST_AT_ONCE
        for first in range(0, count, step):
            end = min(count, first + step)
            some = keys[first * KEY_BYTES : end * KEY_BYTES]
            try:
                once = image.add(tier, shard, some, numbers[first * width : end * width], width)
            except IndexError as error:
                raise _wrong(f"{place} names an unknown set") from error
            if not once:
                raise _wrong(f"{place} has a block twice")
            blocks += end - first
            if blocks >= _SLICE_BLOCKS or step < count:
                blocks = 0
                yield


def _check_holder(
    worker: WorkerId,
    blocks: Sequence[int],
    digests: Sequence[int],
    first: int,
    image: IndexImage,
) -> None:
    """Refuse an image in which a worker holds something else in the tiers from `first` on."""
    for number in range(TIERS):
        want = (blocks[number], digests[number]) if number < len(blocks) else (0, 0)
        holding = image.holding(first + number, worker)
        have = (holding.blocks, holding.digest & _U64) if holding is not None else (0, 0)
        if have != want:
            raise _wrong(
                f"worker {worker} has {have[0]} blocks in tier {first + number}, not {want[0]}"
            )
