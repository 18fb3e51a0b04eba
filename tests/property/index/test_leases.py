"""Leases of runs by example: those of the model, which the compiled ones are compared with."""

from kvmesh._native import Table
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import pack_hashes
from tests.reference.overlap.leases import Leases


def leases() -> Leases:
    return Leases(Table().admit(WorkerId("a"), 1))


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
