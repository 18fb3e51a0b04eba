from typing import SupportsIndex, overload

from kvmesh._native import Table
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.overlap.leases import Leases


class Looked(list[int]):
    """Blocks that count how often one is looked at."""

    looks = 0

    @overload
    def __getitem__(self, place: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, place: slice, /) -> list[int]: ...
    def __getitem__(self, place: SupportsIndex | slice, /) -> int | list[int]:
        self.looks += 1
        return super().__getitem__(place)


def leases() -> Leases:
    return Leases(Table().admit(WorkerId("a"), 1))


def test_a_long_prompt_is_prolonged_run_by_run() -> None:
    held = leases()
    blocks = list(range(1, 6251))
    assert held.extend(blocks, 1.0) == (pack_hashes(blocks), True)
    again = Looked(blocks)

    assert held.extend(again, 2.0) == (b"", True)
    assert again.looks < 300

    assert held.take(10_000) == []
    assert held.take(10_000) == blocks[::-1]


def test_a_prompt_prolonged_within_the_tick_costs_two_looks_a_run() -> None:
    held = leases()
    held.extend(range(1, 6251), 1.0)
    again = Looked(range(1, 6251))

    assert held.extend(again, 1.0) == (b"", False)

    assert again.looks < 200


def test_a_run_is_split_where_a_prompt_that_lives_longer_leaves_it() -> None:
    held = leases()
    held.extend([1, 2, 3, 4], 1.0)

    assert held.extend([1, 2, 8, 9], 2.0) == (pack_hashes([8, 9]), True)

    assert held.take(10) == [4, 3]
    assert held.take(10) == [9, 8, 2, 1]
    assert held.earliest() is None


def test_the_parts_of_a_split_run_follow_each_other() -> None:
    held = leases()
    held.extend([1, 2, 3, 4], 1.0)
    held.extend([1, 2], 2.0)

    assert held.revoke([2]) == [2, 3, 4]
    assert held.extend([1, 2, 3], 1.0) == (pack_hashes([2, 3]), False)


def test_of_two_blocks_with_one_hash_the_later_one_counts() -> None:
    held = leases()
    held.extend([1, 2, 3], 1.0)

    assert held.extend([3, 2, 2], 2.0) == (pack_hashes([3, 2, 2]), True)

    assert held.take(10) == [1]
    assert sorted(held.take(10)) == [2, 3]


def test_nothing_is_left_of_what_is_cleared() -> None:
    held = leases()
    held.extend([1, 2, 3], 1.0)

    held.clear()

    assert held.earliest() is None
    assert held.revoke([1, 2, 3]) == []
    assert held.extend([1], 1.0) == (pack_hashes([1]), True)
