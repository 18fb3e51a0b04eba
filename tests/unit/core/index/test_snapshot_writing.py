import struct
from collections.abc import Callable, Iterable
from itertools import combinations

import msgspec
import pytest
from xxhash import xxh3_64_intdigest

from kvmesh.core.blocks.events import ENDS, ROOT, Cleared, Removed, Reuse, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, sequence_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_in_slices, decode_snapshot
from kvmesh.core.index.snapshot_writing import (
    HEAD,
    MAGIC,
    PART,
    PART_HEAD,
    RULES,
    SECTION,
    SETS,
    GroupedWorker,
    Head,
    HeldByWorker,
    Position,
    WorkerRecord,
    encode_snapshot,
)
from kvmesh.errors import CodecError, NewerError
from kvmesh.formats import FormatRange

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
PROMPT = sequence_hashes(range(5000), 1)


def index_of(*held: tuple[WorkerId, int, int]) -> KvIndex:
    index = KvIndex()
    for worker, depth, tier in held:
        index.apply(worker, Stored(ROOT, pack_hashes(PROMPT[:depth]), tier))
    return index


def snapshot_of(index: KvIndex) -> bytes:
    return b"".join(encode_snapshot(index.freeze(), Position("now", 5)))


def sealed(*sections: tuple[int, bytes]) -> bytes:
    """Return a snapshot of any sections, with a right checksum."""
    data = MAGIC + b"".join(SECTION.pack(kind, len(body)) + body for kind, body in sections)
    return data + xxh3_64_intdigest(data).to_bytes(8, "little")


def head(*holders: HeldByWorker, records: Iterable[WorkerRecord] = ()) -> tuple[int, bytes]:
    return HEAD, msgspec.msgpack.encode(Head(Position(), tuple(records), holders))


def part(tier: int, shard: int, keys: list[int], sets: list[int]) -> tuple[int, bytes]:
    columns = b"".join(key.to_bytes(7, "little") for key in keys)
    columns += struct.pack(f"<{len(sets)}H", *sets)
    return PART, PART_HEAD.pack(tier, shard, 2, len(keys)) + columns


def holder(
    worker: WorkerId = A, slot: int = 0, blocks: int = 1, digest: int = 0x0507
) -> HeldByWorker:
    return HeldByWorker(worker, slot, False, (blocks,), (digest,))


ONE_SET = (SETS, b"\x01\x00\x01")
ONE_BLOCK = part(0, 7, [5], [0])


def test_an_index_comes_back_as_it_was() -> None:
    index = index_of((A, 5000, 0), (B, 300, 0), (C, 40, 2))
    index.apply(B, Removed(pack_hashes(PROMPT[200:300])))
    records = (WorkerRecord(A, 3, 77, True, 16, b"more"), WorkerRecord(WorkerId("idle"), 1))
    position = Position("2026-01-01", 123456, b"extra")

    snapshot = decode_snapshot(b"".join(encode_snapshot(index.freeze(), position, records)))
    copy = KvIndex()
    copy.load(snapshot.image, snapshot.truncated)

    assert (snapshot.position, snapshot.records) == (position, records)
    assert copy.digest() == index.digest()
    hashes = BlockHashes.of(PROMPT, 1)
    assert copy.find_tier_matches(hashes) == index.find_tier_matches(hashes)
    for worker in (A, B, C):
        assert copy.worker_digest(worker) == index.worker_digest(worker)
        assert copy.blocks(worker) == index.blocks(worker)
    copy.apply(B, Stored(PROMPT[199], pack_hashes(PROMPT[200:210])))
    copy.remove_worker(A)
    assert copy.find_matches(hashes) == {B: 210}
    assert copy.sweep(100_000)
    assert copy.find_matches(hashes) == {B: 210}


def test_slots_with_gaps_and_dead_bits_come_back_dense() -> None:
    index = index_of((A, 50, 0), (B, 30, 0), (C, 40, 0))
    index.remove_worker(A)

    snapshot = decode_snapshot(snapshot_of(index))
    copy = KvIndex()
    copy.load(snapshot.image)

    assert copy.find_matches(BlockHashes.of(PROMPT, 1)) == {C: 40, B: 30}
    assert (copy.statistics().blocks, len(copy.tiers), copy.digest()) == (40, 1, index.digest())


def test_a_block_costs_about_ten_bytes() -> None:
    assert len(snapshot_of(index_of((A, 5000, 0), (B, 5000, 0), (C, 2500, 0)))) < 10.5 * 5000


def test_many_sets_of_workers_need_wider_numbers() -> None:
    index = KvIndex()
    workers = [WorkerId(f"w{number}") for number in range(364)]
    blocks: dict[WorkerId, list[int]] = {worker: [] for worker in workers}
    for number, pair in enumerate(combinations(workers, 2), 1):
        for worker in pair:
            blocks[worker].append(number * 0x9E3779B97F4A7C15 % 2**64)
    for worker in workers:
        index.apply(worker, Stored(ROOT, pack_hashes(blocks[worker])))

    copy = KvIndex()
    copy.load(decode_snapshot(snapshot_of(index)).image)

    assert copy.digest() == index.digest()


def test_work_is_cut_into_slices_and_the_index_may_go_on_meanwhile() -> None:
    index = index_of((A, 5000, 0), (B, 5000, 1))
    before = index.digest()
    pieces: list[bytes] = []

    for number, piece in enumerate(encode_snapshot(index.freeze(), Position())):
        pieces.append(piece)
        index.apply(WorkerId(f"new{number}"), Stored(ROOT, pack_hashes(PROMPT[:4000])))
        index.apply(A, Removed(pack_hashes(PROMPT[-100 * (number + 1) :])))

    assert len(pieces) > 3
    assert max(map(len, pieces)) < sum(map(len, pieces)) / 2
    *steps, snapshot = decode_in_slices(b"".join(pieces))
    assert len(steps) >= 3
    assert snapshot is not None
    copy = KvIndex()
    copy.load(snapshot.image)
    assert copy.digest() == before != index.digest()


def test_blocks_of_one_lowest_byte_are_read_in_slices_whatever_part_they_are_of() -> None:
    """Whoever makes up blocks puts all of them into one part of a snapshot, which has 256."""
    index = KvIndex()
    index.apply(A, Stored(ROOT, pack_hashes(range(1 << 8 | 7, 40_000 << 8, 256))))
    frozen = index.freeze()
    index.clear(A)

    *pieces, last = encode_snapshot(frozen, Position())
    *steps, snapshot = decode_in_slices(b"".join((*pieces, last)))

    assert snapshot is not None
    assert snapshot.image.holding(0, A) is not None
    loaded = KvIndex()
    loaded.load(snapshot.image, snapshot.truncated)
    assert loaded.blocks(A) == 39_999
    assert len(steps) >= 40_000 // 4_096
    assert len(pieces) > 10
    assert max(map(len, pieces)) <= 8 * 16_384


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_giving_up_half_way_lets_the_index_go(steps: int) -> None:
    index = index_of((A, 5000, 0))
    pieces = encode_snapshot(index.freeze(), Position())
    for _ in range(steps):
        next(pieces)

    pieces.close()  # type: ignore[attr-defined]  # it is a generator
    index.apply(B, Stored(ROOT, pack_hashes(PROMPT)))

    assert index.statistics().entries == 10_000


def test_a_sealed_snapshot_made_by_hand_is_read() -> None:
    snapshot = decode_snapshot(sealed(head(holder()), ONE_BLOCK, ONE_SET))
    index = KvIndex()
    index.load(snapshot.image)

    assert index.find_matches(BlockHashes.of([0x0507], 1)) == {A: 1}


def rules(*workers: GroupedWorker) -> tuple[int, bytes]:
    return RULES, msgspec.msgpack.encode(workers)


ENDS_OF_A = GroupedWorker(A, 0, 1, (1,), (0x0507,))


def test_rules_and_ends_come_back() -> None:
    index = index_of((A, 50, 0), (B, 40, 0))
    index.apply(A, Reuse(0, 1))
    index.apply(A, Stored(ROOT, pack_hashes(PROMPT[10:20]), ENDS))
    index.apply(A, Stored(ROOT, pack_hashes(PROMPT[20:22]), ENDS + 3))

    data = snapshot_of(index)
    snapshot, copy = decode_snapshot(data), KvIndex()
    copy.load(snapshot.image)

    assert data[:8] == MAGIC
    hashes = BlockHashes.of(PROMPT, 1)
    assert copy.find_hits(hashes) == index.find_hits(hashes) == ([(40, (B,)), (19, (A,))], {A: 50})
    assert copy.digest() == index.digest()
    copy.apply(A, Removed(pack_hashes(PROMPT[15:20]), ENDS))
    assert (copy.find_matches(hashes), snapshot_of(copy)[:8]) == ({B: 40, A: 14}, data[:8])


def test_an_index_without_rules_has_no_section_of_them() -> None:
    index = index_of((A, 50, 0))
    index.apply(A, Reuse())
    index.apply(A, Cleared())
    plain = index_of((A, 50, 0))
    plain.apply(A, Cleared())

    assert snapshot_of(index) == snapshot_of(plain)


def test_a_sealed_snapshot_of_a_grouped_worker_is_read() -> None:
    sections = (head(holder()), rules(ENDS_OF_A), ONE_BLOCK, part(ENDS, 7, [5], [0]), ONE_SET)
    index = KvIndex()

    index.load(decode_snapshot(sealed(*sections)).image)

    assert index.find_hits(BlockHashes.of([0x0507], 1)) == ([], {A: 1})
    assert index.ends.rules() == {A: Reuse(0, 1)}


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ((rules(), rules()), "2 sections of rules"),
        (((RULES, b"\xc1"),), "rules: "),
        ((rules(msgspec.structs.replace(ENDS_OF_A, worker=B)),), "a rule is of no worker"),
        ((rules(ENDS_OF_A, ENDS_OF_A),), "or there are two of one"),
        ((rules(msgspec.structs.replace(ENDS_OF_A, drop=9)),), "<= 8"),
        ((rules(msgspec.structs.replace(ENDS_OF_A, lookahead=65)),), "<= 64"),
        ((rules(msgspec.structs.replace(ENDS_OF_A, ends=(1, 2))),), "ends in 2 tiers"),
        ((rules(GroupedWorker(A, 0, 0, (0,) * 5, (0,) * 5)),), "ends in 5 tiers"),
        ((rules(ENDS_OF_A),), "worker a has 0 blocks in tier 64, not 1"),
        ((part(ENDS, 7, [5], [0]),), "worker a has 1 blocks in tier 64, not 0"),
        ((part(ENDS + 4, 7, [5], [0]),), "out of range"),
        ((part(2 * ENDS, 7, [5], [0]),), "out of range"),
    ],
)
def test_contradictions_of_rules_are_found(
    sections: tuple[tuple[int, bytes], ...], problem: str
) -> None:
    data = sealed(head(holder()), ONE_BLOCK, *sections, ONE_SET)

    with pytest.raises(CodecError, match=problem):
        decode_snapshot(data)


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ((), "it has 0 heads"),
        ((head(), head()), "it has 2 heads"),
        (((HEAD, b"\xc1"),), "head: "),
        ((head(holder(), holder()),), "a worker comes twice"),
        ((head(records=[WorkerRecord(A), WorkerRecord(A)]),), "a worker comes twice"),
        ((head(holder(), holder(B)),), "a slot comes twice"),
        ((head(holder(slot=1 << 40)),), "< 65536|<= 65535"),
        ((head(holder(slot=1 << 16)),), "< 65536|<= 65535"),
        ((head(holder(slot=-1)),), ">= 0"),
        ((head(HeldByWorker(A, 0, False, (1,), ())),), "1 tiers"),
        ((head(HeldByWorker(A, 0, False, (0,) * 5, (0,) * 5)),), "5 tiers"),
        (((9, b""),), "kind 9"),
        ((head(holder()), ONE_BLOCK, (SETS, b"\x01\x00\x00")), "set 0 is cut, empty"),
        ((head(holder()), ONE_BLOCK, (SETS, b"\x01\x00\x02")), "names an unknown worker"),
        ((head(holder()), ONE_BLOCK, (SETS, b"\xff\xff\x01")), "set 0 is cut"),
        ((head(holder()), ONE_BLOCK, (SETS, b"\x01")), "set 0 is cut"),
        ((head(holder()), ONE_BLOCK), "names an unknown set"),
        ((head(holder()), part(0, 7, [5], [1]), ONE_SET), "names an unknown set"),
        ((head(holder()), (PART, b"abc"), ONE_SET), "a part is cut"),
        ((head(holder()), ONE_BLOCK, ONE_BLOCK, ONE_SET), "part 7 of tier 0 comes twice"),
        ((head(holder()), part(4, 7, [5], [0]), ONE_SET), "out of range"),
        ((head(holder()), (PART, PART_HEAD.pack(0, 7, 3, 1) + bytes(10)), ONE_SET), "of width 3"),
        ((head(holder()), (PART, PART_HEAD.pack(0, 7, 2, 2**32 - 1)), ONE_SET), "has 0 bytes"),
        ((head(holder()), part(0, 7, [5, 5], [0, 0]), ONE_SET), "a block twice"),
        ((head(holder(digest=8)), ONE_BLOCK, ONE_SET), "worker a has 1 blocks in tier 0"),
        ((head(holder(blocks=2)), ONE_BLOCK, ONE_SET), "not 2"),
        ((head(holder()), ONE_BLOCK, part(1, 7, [5], [0]), ONE_SET), "1 blocks in tier 1, not 0"),
        ((head(holder(), holder(B, 1)), ONE_BLOCK, ONE_SET), "worker b has 0 blocks"),
    ],
)
def test_contradictions_are_found(sections: tuple[tuple[int, bytes], ...], problem: str) -> None:
    with pytest.raises(CodecError, match=problem):
        decode_snapshot(sealed(*sections))


def checked(body: bytes) -> bytes:
    """Return `body` with a right checksum."""
    return body + xxh3_64_intdigest(body).to_bytes(8, "little")


@pytest.mark.parametrize("size", [101, 2**32 - 1])
def test_a_section_longer_than_the_snapshot_is_found(size: int) -> None:
    body = MAGIC + SECTION.pack(PART, size) + bytes(100)

    with pytest.raises(CodecError, match=f"kind 2, {size} bytes"):
        decode_snapshot(checked(body))
    with pytest.raises(CodecError, match="section at byte 8 is cut"):
        decode_snapshot(checked(MAGIC + b"\x01"))


def test_a_newer_format_is_refused_however_whole_it_is_and_told_from_damage() -> None:
    body = snapshot_of(index_of((A, 50, 0)))[:-8]
    newer = checked(MAGIC[:-1] + bytes([2]) + body[8:])

    with pytest.raises(NewerError, match="it has format 2, this build reads 1") as caught:
        decode_snapshot(newer)

    assert caught.value.number == 2
    assert decode_snapshot(newer, reads=FormatRange(1, 2)).position == Position("now", 5)


def test_a_snapshot_is_written_in_the_format_that_is_asked_for() -> None:
    index = index_of((A, 50, 0))

    data = b"".join(encode_snapshot(index.freeze(), Position("today", 7), (), 3))

    assert data[:8] == MAGIC[:-1] + bytes([3])
    assert decode_snapshot(data, reads=FormatRange(3, 3)).position == Position("today", 7)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda data: data[:-1], "checksum does not match"),
        (lambda data: data + b"x", "checksum does not match"),
        (lambda data: data[:20], "checksum does not match"),
        (lambda data: data[:15], "15 bytes do not begin with"),
        (lambda data: data[:8], "8 bytes do not begin with"),
        (lambda data: data[:3], "3 bytes do not begin with"),
        (lambda data: data[:0], "0 bytes do not begin with"),
        (lambda data: b"KVMINDY\x01" + data[8:], "bytes do not begin with"),
        (lambda data: b"KVMINDX\x00" + data[8:], "format 0, this build reads 1"),
        (
            lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
            "checksum does not match",
        ),
    ],
)
def test_damage_is_found(damage: Callable[[bytes], bytes], problem: str) -> None:
    data = snapshot_of(index_of((A, 50, 0)))

    with pytest.raises(CodecError, match=f"snapshot: .*{problem}.*; use an older one"):
        decode_snapshot(damage(data))
