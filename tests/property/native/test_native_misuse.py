"""Nothing that Python code may do to the compiled table harms the process: it is an error."""

import gc
import os
import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.measure import resident_bytes
from kvmesh._native import Table, chain, chain_tokens
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes

A, B = WorkerId("a"), WorkerId("b")


def filled(count: int = 100) -> Any:
    table: Any = Table()
    table.store(table.admit(A, 1), pack_hashes(range(1, count + 1)))
    return table


def prepared(part: Any) -> Any:
    while part.prepare() is None:
        pass
    return part


def closed(frozen: Any) -> Any:
    frozen.close()
    return frozen


MISUSES: dict[str, Callable[[Any], object]] = {
    "made with arguments": lambda table: type(table)(1),
    "a holding made by hand": lambda table: type(table.admit(A, 1))(),
    "a view made by hand": lambda table: type(table.freeze())(),
    "a loader made by hand": lambda table: type(table.loader([]))(),
    "admit nothing": lambda table: table.admit(A),
    "admit a list": lambda table: table.admit([], 1),
    "admit no bit": lambda table: table.admit(B, 0),
    "admit two bits": lambda table: table.admit(B, 3),
    "admit a negative bit": lambda table: table.admit(B, -1),
    "admit a word": lambda table: table.admit(B, "1"),
    "admit a bit beyond all": lambda table: table.admit(B, 1 << (1 << 25)),
    "store without a holding": lambda table: table.store(None, b""),
    "store text": lambda table: table.store(table.admit(A, 1), "12345678"),
    "store one thing": lambda table: table.store(table.admit(A, 1)),
    "extend from a word": lambda table: table.extend(table.admit(A, 1), "root", b""),
    "extend without a holding": lambda table: table.extend(1, 0, b""),
    "extend by two": lambda table: table.extend(1, 0),
    "remove without a holding": lambda table: table.remove("a", b""),
    "remove numbers": lambda table: table.remove(table.admit(A, 1), [1]),
    "remove nothing": lambda table: table.remove(),
    "count in words": lambda table: setattr(table.admit(A, 1), "blocks", "1"),
    "count beyond": lambda table: setattr(table.admit(A, 1), "blocks", 1 << 70),
    "sum in floats": lambda table: setattr(table.admit(A, 1), "digest", 0.5),
    "count nothing": lambda table: delattr(table.admit(A, 1), "blocks"),
    "another bit": lambda table: setattr(table.admit(A, 1), "bit", 2),
    "other holdings": lambda table: setattr(table, "holdings", {}),
    "hold with two bits": lambda table: table.holds(3, 1),
    "hold a word": lambda table: table.holds(1, "1"),
    "hold alone": lambda table: table.holds(1),
    "mask of a word": lambda table: table.mask("1"),
    "move to itself": lambda table: table.move(b"", 1, table),
    "move to nobody": lambda table: table.move(b"", 0, type(table)()),
    "move to a dict": lambda table: table.move(b"", 1, {}),
    "move with a bad mask": lambda table: table.move(b"", -1, type(table)()),
    "move numbers": lambda table: table.move([1], 1, type(table)()),
    "clear shard -1": lambda table: table.clear_bits(-1, 1, 0),
    "clear shard 256": lambda table: table.clear_bits(256, 1, 0),
    "clear shard x": lambda table: table.clear_bits("x", 1, 0),
    "clear negative bits": lambda table: table.clear_bits(1, -1, 0),
    "clear alone": lambda table: table.clear_bits(1),
    "clear from a word": lambda table: table.clear_bits(1, 1, "0"),
    "clear from before": lambda table: table.clear_bits(1, 1, -1),
    "blocks of shard 256": lambda table: table.freeze().blocks(256),
    "part of shard -1": lambda table: table.freeze().part(-1, None, {}),
    "part into a list": lambda table: table.freeze().part(1, None, []),
    "part with a number": lambda table: table.freeze().part(1, None, {}, 1),
    "part before it is prepared": lambda table: table.freeze().part(1, None, {}).piece(),
    "part of bad numbers": lambda table: prepared(table.freeze().part(1, None, {1: "one"})),
    "part prepared twice": lambda table: prepared(prepared(table.freeze().part(1, None, {}))),
    "part of what is closed": lambda table: prepared(closed(table.freeze()).part(1, None, {})),
    "take shard 256": lambda table: table.freeze().take(256),
    "take shard 2^80": lambda table: table.freeze().take(1 << 80),
    "columns of shard -1": lambda table: table.freeze().columns(-1, None, {}),
    "columns with a word": lambda table: table.freeze().columns(1, "1", {}),
    "columns into a list": lambda table: table.freeze().columns(1, None, []),
    "columns with bad numbers": lambda table: table.freeze().columns(1, None, {1: "one"}),
    "columns with large numbers": lambda table: table.freeze().columns(1, None, {1: 1 << 33}),
    "load from a tuple": lambda table: table.loader((1,)),
    "load into what is full": lambda table: table.loader([1]).add(1, b"k" * 7, b"\0\0", 2),
    "load an unknown set": lambda table: type(table)().loader([1]).add(1, b"k" * 7, b"\1\0", 2),
    "load an empty set": lambda table: type(table)().loader([0]).add(1, b"k" * 7, b"\0\0", 2),
    "load a word as set": lambda table: type(table)().loader(["1"]).add(1, b"k" * 7, b"\0\0", 2),
    "load too few sets": lambda table: type(table)().loader([1]).add(1, b"k" * 14, b"\0\0", 2),
    "load half a key": lambda table: type(table)().loader([1]).add(1, b"k" * 8, b"\0\0", 2),
    "load width 3": lambda table: type(table)().loader([1]).add(1, b"k" * 7, b"\0\0\0", 3),
    "load width 0": lambda table: type(table)().loader([1]).add(1, b"", b"", 0),
    "load shard 256": lambda table: type(table)().loader([1]).add(256, b"", b"", 2),
    "load numbers": lambda table: type(table)().loader([1]).add(1, b"", [1], 2),
    "load alone": lambda table: type(table)().loader([1]).add(1),
    "total of -1": lambda table: table.loader([1]).total(-1),
    "total of 1": lambda table: table.loader([1]).total(1),
    "a view of no table": lambda table: table.view(1, [], 0),
    "a view of two things": lambda table: table.view(None, []),
    "a view without names": lambda table: table.view(None, None, 0),
    "a view of names below 0": lambda table: table.view(None, [], -1),
    "a view of too few names": lambda table: table.view(None, [A], 2),
    "a view of names that are lists": lambda table: table.view(None, [[]], 1),
    "a view of names made by hand": lambda table: type(table.view(None, [], 0))(),
    "other names": lambda table: setattr(table.view(None, [], 0), "names", ()),
    "a view of five things": lambda table: table.view(None, [A], 1, None, None),
    "ends that are a table": lambda table: table.view(None, [A], 1, table),
    "ends in a dict": lambda table: table.view(None, [A], 1, ({}, None, ())),
    "old ends in a dict": lambda table: table.view(None, [A], 1, (None, {}, ())),
    "rules in a list": lambda table: table.view(None, [A], 1, (None, None, [])),
    "a rule of two": lambda table: ended(table, (0, 0)),
    "a rule of words": lambda table: ended(table, ("0", 0, 1)),
    "a rule that drops words": lambda table: ended(table, (0, "0", 1)),
    "a rule of a word": lambda table: ended(table, (0, 0, "1")),
    "a rule of less than nobody": lambda table: ended(table, (0, 0, -1)),
    "a rule that looks back": lambda table: ended(table, (-1, 0, 1)),
    "a rule that looks far": lambda table: ended(table, (65, 0, 1)),
    "a rule that looks to 10^25": lambda table: ended(table, (10**25, 0, 1)),
    "a rule that drops 9": lambda table: ended(table, (0, 9, 1)),
    "a rule that drops -1": lambda table: ended(table, (0, -1, 1)),
    "two rules of one": lambda table: ended(table, (0, 0, 1), (1, 0, 1)),
    "hits of nothing": lambda table: ended(table, (0, 0, 1)).find_hits(None),
    "ids that are words": lambda table: ahead(table, ids="words"),
    "ids that are numbers": lambda table: ahead(table, ids=[1, 2]),
    "blocks of words": lambda table: ahead(table, block_size="4"),
    "blocks of -1": lambda table: ahead(table, block_size=-1),
    "blocks of 10^25": lambda table: ahead(table, block_size=10**25),
    "find matches of nothing": lambda table: table.view(None, [A], 1).find_matches(None),
    "find groups of a word": lambda table: table.view(None, [A], 1).find_groups("1"),
    "find in nothing": lambda table: table.find_drops(None, 1),
    "find alone": lambda table: table.find_drops(BlockHashes.of([1], 1)),
    "find for a word": lambda table: table.find_drops(BlockHashes.of([1], 1), "1"),
    "find below 0": lambda table: table.find_drops(BlockHashes.of([1], 1), -1),
    "find words": lambda table: table.find_drops(Meddler(lambda _: memoryview(b"1").cast("c")), 1),
    "find a list": lambda table: table.find_drops(Meddler(lambda _: [1]), 1),
    "find short numbers": lambda table: table.find_drops(Meddler(lambda _: array("I", [1, 2])), 1),
    "find fractions": lambda table: table.find_drops(Meddler(lambda _: array("d", [1.0])), 1),
    "find with a dict": lambda table: table.find_drops(BlockHashes.of([1], 1), 1, {}),
}


def ended(table: Any, *rules: object) -> Any:
    """Return a view of a worker with rules."""
    return table.view(None, [A], 1, (table, None, rules))


def ahead(table: Any, *, ids: object = bytes(4000), block_size: object = 1) -> object:
    """Return what is found where a rule asks for these ids."""
    hashes: Any = Meddler(lambda count: array("Q", range(1, count + 1)))
    hashes.ids, hashes.block_size = ids, block_size
    return ended(table, (2, 0, 1)).find_hits(hashes)


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_an_error_and_changes_nothing(misuse: str) -> None:
    table = filled()

    with pytest.raises((TypeError, ValueError, IndexError, OverflowError, AttributeError)):
        MISUSES[misuse](table)

    assert table.size() == 100
    assert (table.admit(A, 1).blocks, table.admit(A, 1).digest) == (100, 5050)
    assert table.find_drops(BlockHashes.of([1, 2, 101], 1), 1) == [(2, 1)]


class Meddler:
    """Hashes that do something to the table whenever they are asked for more."""

    def __init__(self, meddle: Callable[[int], Any]) -> None:
        self._meddle = meddle

    blocks = 1000

    def upto(self, count: int) -> "array[int]":
        return self._meddle(count)  # type: ignore[no-any-return]  # whatever it is


def test_a_table_that_changes_under_a_search_ends_it() -> None:
    table = filled()

    def meddle(count: int) -> "array[int]":
        table.remove(table.admit(A, 1), pack_hashes([50]))
        return array("Q", range(1, count + 64))

    with pytest.raises(RuntimeError, match="changed while it was searched"):
        table.find_drops(Meddler(meddle), 1)


@pytest.mark.parametrize(
    ("ids", "block_size", "found"),
    [
        (None, 1, ([(99, (A,))], {A: 100})),
        (bytes(4000), 0, ([(99, (A,))], {A: 100})),
        (bytes(4000), 2**31, ([(99, (A,))], {A: 100})),
        (bytes(3), 1, ([], {A: 100})),
        (bytes(4000), 1, ([], {A: 100})),
        (bytearray(4000), 1, ([], {A: 100})),
        (bytes(4000), 2**30, ([], {A: 100})),
    ],
)
def test_ids_are_read_as_far_as_there_are_any(ids: Any, block_size: int, found: object) -> None:
    assert ahead(filled(), ids=ids, block_size=block_size) == found


def test_hashes_without_ids_are_searched_all_the_same() -> None:
    hashes = Meddler(lambda count: array("Q", range(1, count + 1)))

    assert ended(filled(), (2, 0, 1)).find_hits(hashes) == ([(99, (A,))], {A: 100})


class SlyIds:
    """Hashes that change the table of ends when their ids are asked for."""

    block_size = 1

    def __init__(self, table: Any) -> None:
        self.table = table

    @property
    def ids(self) -> bytes:
        self.table.remove(self.table.admit(A, 1), pack_hashes(range(1, 101)))
        self.table.pieces()
        gc.collect()
        return bytes(400)

    def upto(self, count: int) -> "array[int]":
        return array("Q", range(1, min(count, 100) + 1))


def test_ends_that_go_while_ids_are_asked_for_are_gone() -> None:
    table: Any = filled()
    ends: Any = filled()
    view = table.view(ends, [A], 1, (ends, table, ((1, 1, 1),)))

    assert view.find_hits(SlyIds(ends)) == ([], {A: 100})


def test_rules_of_workers_that_do_not_count_are_passed_over() -> None:
    table: Any = filled()
    view = table.view(None, [A, B], 1, (None, None, ((0, 0, 1 << 5000 | 2),)))

    assert view.find_hits(BlockHashes.of([1, 2], 1)) == ([(2, (A,))], {})


def test_a_search_within_a_search_has_its_own_memory() -> None:
    table = filled()
    view = table.view(None, [A], 1)
    inner = BlockHashes.of([1, 2, 3], 1)
    found: list[object] = []

    def meddle(count: int) -> "array[int]":
        found.append(view.find_groups(inner))
        return array("Q", range(1, count + 1))

    assert view.find_groups(Meddler(meddle)) == [(100, (A,))]
    assert found == [[(3, (A,))]] * 2


def test_a_prompt_that_shrinks_under_a_search_ends_it() -> None:
    lengths = iter([64, 3, 2])
    hashes = Meddler(lambda _: array("Q", range(1, 1 + next(lengths))))

    with pytest.raises(ValueError, match="lost blocks"):
        filled().find_drops(hashes, 1)
    with pytest.raises(TypeError, match="hashes are an array of u64s"):
        filled().find_drops(Meddler(lambda _: b"12345678"), 1)
    with pytest.raises(ZeroDivisionError):
        filled().find_drops(Meddler(lambda count: count // 0), 1)


class Sly(int):
    """A mask that compares by running code."""

    table: Any = None

    def __hash__(self) -> int:
        return hash(1)

    def __eq__(self, other: object) -> bool:
        self.table.remove(self.table.admit(A, 1), pack_hashes(range(1, 101)))
        return False


def test_numbers_that_change_the_table_end_a_reading() -> None:
    table = filled()
    sly = Sly(7)
    sly.table = table
    frozen = table.freeze()
    frozen.close()

    with pytest.raises(ValueError, match="numbers must map masks"):
        frozen.columns(1, None, {sly: 0})


def test_a_holding_of_another_table_is_as_good_as_any() -> None:
    table, other = filled(), filled()
    stranger = other.admit(B, 1 << 5000)

    table.store(stranger, pack_hashes([1, 1000]))

    assert table.mask(1) == 1 | 1 << 5000
    assert table.remove(stranger, pack_hashes([1, 1000, 7])) == [7]


def test_views_outlive_their_table_and_tables_their_pieces() -> None:
    table = filled()
    frozen = table.freeze()
    table.remove(table.admit(A, 1), pack_hashes(range(1, 51)))
    pieces = table.pieces()
    del table
    gc.collect()

    assert sum(len(frozen.take(number)) for number in range(256)) == 100
    assert pieces == [None] * 256

    other = filled()
    pieces = other.pieces()
    assert (other.size(), len(pieces)) == (0, 256)
    other.store(other.admit(A, 1), pack_hashes([1]))
    assert other.mask(1) == 1


def test_a_table_in_a_cycle_is_collected() -> None:
    table = filled()
    table.holdings[B] = table
    del table

    assert gc.collect() >= 1


def everything_once(rng: random.Random) -> None:
    table = filled(2000)
    other = table.admit(B, 1 << 70)
    table.store(other, pack_hashes(range(1, 1500)))
    frozen = table.freeze()
    table.remove(other, pack_hashes(rng.sample(range(1, 1500), 500)))
    numbers: dict[int, int] = {}
    parts = [frozen.columns(number, 1 | 1 << 70, numbers) for number in range(256)]
    again: Any = Table()
    loader = again.loader(list(numbers))
    for shard, (count, width, columns) in enumerate(parts):
        loader.add(shard, columns[: 7 * count], columns[7 * count :], width)
    again.find_drops(BlockHashes.of(list(range(1, 300)), 1), 1 | 1 << 70, table)
    view = again.view(table, [WorkerId(f"w{slot}") for slot in range(71)], 1 | 1 << 70)
    view.find_groups(BlockHashes.of(list(range(1, 300)), 1))
    view.find_matches(BlockHashes.of(list(range(1, 300)), 1))
    view.sizes()
    rules = ((0, 1, 1), (2, 0, 1 << 70))
    view = again.view(
        table, [WorkerId(f"w{slot}") for slot in range(71)], 1 | 1 << 70, (table, again, rules)
    )
    view.find_hits(BlockHashes.of(list(range(1, 300)), 1, bytes(800)))
    view.find_matches(BlockHashes.of(list(range(1, 300)), 1))
    again.move(pack_hashes([1, 2]), 1, table)
    again.clear_bits(3, 1, 0)
    part = table.freeze().part(1, 1 | 1 << 70, {}, again.freeze())
    for steps in range(8):
        part = table.freeze().part(1, 1 | 1 << 70, {}, again.freeze())
        for _ in range(steps):
            part.prepare()
    prepared(part).piece()
    again.pieces()
    again.holds(1, ROOT)
    chain(1, bytes(4096), 0, 64, 64)
    chain_tokens(1, [1, 2, 3, 2**31], 0, 1, 4)


def test_nothing_leaks() -> None:
    rng = random.Random(1)
    for _ in range(40):
        everything_once(rng)
    gc.collect()
    before = resident_bytes(os.getpid())

    for _ in range(300):
        everything_once(rng)
    gc.collect()

    # Each turn makes a few hundred kilobytes: a leak of one of its parts would show.
    assert resident_bytes(os.getpid()) - before < 8 << 20
