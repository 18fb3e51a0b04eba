"""The compiled table where it grows and shrinks, against a dict: same content, same order."""

import random
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

from kvmesh._native import Table
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import pack_hashes, unpack_run
from kvmesh.core.index.freeze import SetNumbers, masked, merged
from kvmesh.core.index.search import SHARDS
from kvmesh.core.index.slots import Decoder, Slots, clear_released

SHARD = 7
NAMES = [WorkerId("a"), WorkerId("b")]
MULTIPLIER = 0x9E3779B97F4A7C15
U64 = 2**64 - 1


class Plain:
    """A table of one shard, and a view of it: key -> mask of those who hold it."""

    def __init__(self, held: dict[int, int] | None = None) -> None:
        self.held = dict(held or {})

    def admit(self, _worker: WorkerId, bit: int) -> int:
        return bit

    def store(self, bit: int, run: bytes) -> None:
        for block in unpack_run(run):
            self.held[block >> 8] = self.held.get(block >> 8, 0) | bit

    def remove(self, bit: int, run: bytes) -> list[int]:
        missing = []
        for block in unpack_run(run):
            if self.mask(block) & bit:
                self._clear(block >> 8, bit)
            else:
                missing.append(block)
        return missing

    def clear_bits(self, _shard: int, dead: int, _place: int) -> tuple[int, int]:
        for key in [*self.held]:
            self._clear(key, dead)
        return 0, 0

    def _clear(self, key: int, bits: int) -> None:
        self.held[key] &= ~bits
        if not self.held[key]:
            del self.held[key]

    def mask(self, block: int) -> int:
        return self.held.get(block >> 8, 0)

    def size(self) -> int:
        return len(self.held)

    def freeze(self) -> "Plain":
        return Plain(self.held)

    def take(self, _shard: int) -> dict[int, int]:
        return self.held

    def columns(
        self, _shard: int, live: int | None, numbers: SetNumbers, *older: "Plain"
    ) -> tuple[int, int, bytes]:
        """Return as a snapshot has it: how many, the width of numbers, 7-byte keys and numbers."""
        held = merged([one.held for one in (self, *older)])
        held = held if live is None else masked(held, live)
        sets = [numbers[mask] for mask in held.values()]
        keys = b"".join(struct.pack("<Q", key)[:7] for key in held)
        return len(held), 2, keys + struct.pack(f"<{len(sets)}H", *sets)

    def close(self) -> None:
        """Nothing is copied later."""


class Twins:
    """Both tables, told the same; all blocks are of one shard."""

    def __init__(self) -> None:
        self.tables: list[Any] = [Plain(), Table()]
        self.views: list[list[Any]] = []

    def store(self, worker: int, blocks: Sequence[int]) -> None:
        for table in self.tables:
            table.store(table.admit(NAMES[worker], 1 << worker), pack_hashes(blocks))

    def remove(self, worker: int, blocks: Sequence[int]) -> None:
        pure, native = (
            table.remove(table.admit(NAMES[worker], 1 << worker), pack_hashes(blocks))
            for table in self.tables
        )
        assert native == pure

    def freeze(self) -> None:
        self.views.append([table.freeze() for table in self.tables])

    def check_view(self, place: int) -> None:
        """Read one of the open views, and close it."""
        views = self.views.pop(place)
        numbers = [SetNumbers(), SetNumbers()]
        if place % 2:
            pure, native = (list(view.take(SHARD).items()) for view in views)
        else:
            pure, native = (
                view.columns(SHARD, None, known) for view, known in zip(views, numbers, strict=True)
            )
        for view in views:
            view.close()
        assert native == pure
        assert numbers[0] == numbers[1]

    def check(self, blocks: Sequence[int]) -> None:
        pure, native = self.tables
        assert native.size() == pure.size()
        assert [native.mask(block) for block in blocks] == [pure.mask(block) for block in blocks]
        self.freeze()
        self.check_view(-1)


def blocks_of_one_shard(rng: random.Random) -> Iterator[int]:
    while True:
        yield rng.getrandbits(56) << 8 | SHARD


def test_a_shard_grows_changes_and_shrinks_as_a_dict_does() -> None:
    rng = random.Random(5)
    twins = Twins()
    fresh = blocks_of_one_shard(rng)
    known: list[int] = []
    for turn in range(120):
        updates = list(islice(fresh, rng.choice((1, 60, 700))))
        twins.store(turn % 2, updates)
        known += updates
        if turn % 7 == 0:
            twins.freeze()
        twins.store(1, rng.sample(known, min(len(known), 200)))
        twins.remove(rng.randrange(2), rng.sample(known, min(len(known), 300)))
        if turn % 11 == 0 and twins.views:
            twins.check_view(rng.randrange(len(twins.views)))
    twins.check(known)

    twins.freeze()
    for table in twins.tables:
        clear_all(table)
    twins.remove(1, known[::3])
    while twins.views:
        twins.check_view(0)
    twins.check(known)


def clear_all(table: Any) -> int:
    """Take the first worker out of all blocks; return in how many calls."""
    calls, place = 0, -1
    while place:
        _, place = table.clear_bits(SHARD, 1, max(place, 0))
        calls += 1
    return calls


def test_released_bits_leave_a_large_part_in_slices() -> None:
    table: Any = Table()
    slots = Slots()
    mask = slots.assign(NAMES[0])
    blocks = list(islice(blocks_of_one_shard(random.Random(1)), 60_000))
    table.store(table.admit(NAMES[0], mask), pack_hashes(blocks))
    slots.release(NAMES[0])

    cleared = list(clear_released(slots, [table]))

    assert len(cleared) > SHARDS
    assert sum(cleared) >= len(blocks)
    assert {table.mask(block) for block in blocks} == {0}


@pytest.mark.parametrize("seed", range(3))
def test_a_part_made_in_slices_is_that_of_the_moment_whatever_changes_between_them(
    seed: int,
) -> None:
    rng = random.Random(seed)
    twins, older = Twins(), Twins()
    known = list(islice(blocks_of_one_shard(rng), 60_000))
    twins.store(0, known[:40_000])
    twins.store(1, rng.sample(known[:40_000], 9_000))
    older.store(1, rng.sample(known, 30_000))
    twins.remove(0, rng.sample(known, 5_000))
    (pure, native), numbers = (
        [table.freeze() for table in twins.tables],
        [SetNumbers(), SetNumbers()],
    )
    pure_older, native_older = [table.freeze() for table in older.tables]
    live = rng.choice((None, 1))
    wanted = pure.columns(SHARD, live, numbers[0], pure_older)

    part = native.part(SHARD, live, numbers[1], native_older)
    steps = 0
    while (size := part.prepare()) is None:
        steps += 1
        twins.store(0, list(islice(blocks_of_one_shard(rng), 2_000)))
        older.remove(1, rng.sample(known, 2_000))
        if steps % 5 == 0:
            for table in twins.tables:
                clear_all(table)
    pieces = []
    while (piece := part.piece()) is not None:
        pieces.append(piece)
    for view in (pure, native, pure_older, native_older):
        view.close()

    assert (*size, b"".join(pieces)) == wanted
    assert numbers[0] == numbers[1]
    assert steps > 10
    assert max(map(len, pieces)) < 8 * 16_384
    del part, native, native_older
    twins.check(known)
    older.check(known)
    for pair in (twins, older):
        assert [table.size() for table in pair.tables] == [pair.tables[0].size()] * 2


def test_a_view_copies_what_changes_once_or_twice_however_often_that_is() -> None:
    table = Table()
    first, second = (table.admit(NAMES[one], 1 << one) for one in range(2))
    fresh = blocks_of_one_shard(random.Random(3))
    known = list(islice(fresh, 3_000))
    table.store(first, pack_hashes(known))
    view = table.freeze()

    table.store(first, pack_hashes(list(islice(fresh, 5_000))))
    copied_of_new = view.blocks(SHARD) - table.size()
    for turn in range(4_000):
        flip = table.remove if turn % 2 else table.store
        flip(second, pack_hashes(known[:100]))
    table.remove(first, pack_hashes(known[::3]))
    copied = view.blocks(SHARD) - table.size()

    assert copied_of_new == 0
    assert 1_100 <= copied <= 8_000 + len(known)
    assert list(view.take(SHARD).items()) == [(block >> 8, 1) for block in known]


@pytest.mark.parametrize("steps", [0, 1, 4, 9, 14, 20, 30, 40, 50])
def test_a_part_given_up_half_way_lets_its_table_go(steps: int) -> None:
    rng = random.Random(steps)
    table = Table()
    first, second = (table.admit(NAMES[one], 1 << one) for one in range(2))
    known = list(islice(blocks_of_one_shard(rng), 50_000))
    table.store(first, pack_hashes(known))
    table.store(second, pack_hashes(known[::2]))

    view = table.freeze()
    part = view.part(SHARD, None, SetNumbers())
    ready = False
    for _ in range(steps):
        if ready:
            part.piece()
        ready = ready or part.prepare() is not None
    view.close()
    del part, view

    for worker, blocks in ((first, known), (second, known[::2])):
        assert table.remove(worker, pack_hashes(blocks)) == []
    assert table.size() == 0


def test_a_large_shard_is_cleared_in_slices_and_gives_its_memory_back() -> None:
    rng = random.Random(3)
    table = Table()
    known = list(islice(blocks_of_one_shard(rng), 100_000))
    table.store(table.admit(NAMES[0], 1), pack_hashes(known))
    table.store(table.admit(NAMES[1], 2), pack_hashes(known[:50]))

    assert clear_all(table) >= 100_000 // 16_384

    assert table.size() == 50
    assert [table.mask(block) for block in known[:51]] == [2] * 50 + [0]
    assert clear_all(table) == 1


def made_up(rng: random.Random, bits: int, count: int) -> list[int]:
    """Return blocks of one shard whose hashes in the table have their upper `bits` alike."""
    inverse = pow(MULTIPLIER, -1, 2**64)
    upper = rng.getrandbits(bits) << (64 - bits)
    found: set[int] = set()
    while len(found) < count:
        mixed = (upper | rng.getrandbits(64 - bits)) * inverse & U64
        block = mixed ^ mixed >> 32
        if block & 255 == SHARD:
            found.add(block)
    return sorted(found)


@pytest.mark.parametrize("bits", [12, 22, 40])
def test_made_up_blocks_are_found_as_others_are(bits: int) -> None:
    rng = random.Random(bits)
    blocks = made_up(rng, bits, 3000)
    others = list(islice(blocks_of_one_shard(rng), 3000))
    twins = Twins()

    for number in range(0, 3000, 100):
        twins.store(number // 100 % 2, blocks[number : number + 100])
        twins.store(0, others[number : number + 100])
    twins.check(blocks + others)
    twins.remove(0, blocks)
    twins.store(1, blocks[::2])

    twins.check(blocks + others)


def test_thousands_of_sets_are_told_apart() -> None:
    rng = random.Random(3)
    table: Any = Table()
    holdings = [table.admit(WorkerId(f"w{slot}"), 1 << slot) for slot in range(90)]
    expected = dict.fromkeys(range(1, 8001), 0)
    for block in expected:
        for slot in rng.sample(range(90), 3):
            table.store(holdings[slot], pack_hashes([block]))
            expected[block] |= 1 << slot
    assert {block: table.mask(block) for block in expected} == expected

    for block in range(1, 8001, 2):
        for slot in range(90):
            if expected[block] >> slot & 1:
                table.remove(holdings[slot], pack_hashes([block]))
        expected[block] = 0

    assert {block: table.mask(block) for block in expected} == expected


def test_a_set_is_decoded_alike_each_time() -> None:
    decode = Decoder((*NAMES, WorkerId("c"))).decode

    assert decode(3) == decode(3) == tuple(NAMES)
