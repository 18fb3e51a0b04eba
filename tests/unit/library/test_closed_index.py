import pytest

from kvmesh.core.blocks.events import ENDS, ROOT, Cleared, Removed, Reuse, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.index.snapshot_writing import Position, encode_snapshot
from kvmesh.errors import CodecError
from kvmesh.library.closed_index import ClosedIndex

W = WorkerId("w")
CHAIN = [11, 12, 13, 14, 15]


def held(index: ClosedIndex, chain: list[int] = CHAIN) -> int:
    return index.index.find_matches(BlockHashes.of(chain, 16)).get(W, 0)


def filled(max_blocks: int = 100) -> ClosedIndex:
    index = ClosedIndex(max_blocks)
    assert index.apply(W, Stored(ROOT, pack_hashes(CHAIN))) == 0
    return index


def test_a_removed_block_ends_what_is_held_behind_it_until_it_is_back() -> None:
    index = filled()

    index.apply(W, Removed(pack_hashes([12, 99])))
    without = held(index)
    index.apply(W, Removed(pack_hashes([15])))
    index.apply(W, Stored(11, pack_hashes([12])))

    assert (without, held(index)) == (1, 4)


def test_blocks_behind_a_gap_count_as_soon_as_it_is_closed() -> None:
    index = ClosedIndex()

    assert index.apply(W, Stored(12, pack_hashes(CHAIN[2:]))) == 3
    before = held(index)
    assert index.apply(W, Stored(ROOT, pack_hashes(CHAIN[:2]))) == 0

    assert (before, held(index)) == (0, 5)


def test_tiers_are_closed_apart_and_ends_and_unknown_tiers_go_on_as_they_are() -> None:
    index = filled()
    host = Stored(ROOT, pack_hashes(CHAIN), 1)
    index.apply(W, host)
    index.apply(W, Stored(ROOT, pack_hashes(CHAIN), 9))
    index.apply(W, Stored(ROOT, pack_hashes(CHAIN), -1))

    index.apply(W, Removed(pack_hashes([13])))

    device, hosts = index.index.find_tier_matches(BlockHashes.of(CHAIN, 16))
    assert (device, hosts) == ({W: 2}, {W: 5})
    index.apply(W, Reuse())
    index.apply(W, Stored(ROOT, pack_hashes([11]), ENDS))
    assert held(index) == 1
    assert index.index.statistics().unknown_tier == 10


def test_a_cleared_or_removed_worker_leaves_nothing_hidden() -> None:
    for is_cleared in (True, False):
        index = filled()
        index.apply(W, Removed(pack_hashes([11])))
        if is_cleared:
            index.apply(W, Cleared())
        else:
            index.remove_worker(W)

        index.apply(W, Stored(ROOT, pack_hashes([11])))

        assert held(index) == 1


def test_a_worker_that_holds_more_than_the_index_may_has_the_rest_kept_out() -> None:
    index = ClosedIndex(4)

    assert index.apply(W, Stored(ROOT, pack_hashes(CHAIN))) == 1
    assert index.apply(W, Stored(ROOT, pack_hashes(CHAIN[:4]))) == 0
    assert index.apply(W, Stored(ROOT, pack_hashes([21, 22]))) == 2
    index.apply(W, Removed(pack_hashes(CHAIN[2:])))
    assert index.apply(W, Stored(12, pack_hashes([13, 14, 15]))) == 1

    assert held(index) == 4


def test_what_was_restored_is_removed_block_by_block_until_it_is_stored_anew() -> None:
    dump = b"".join(encode_snapshot(filled().index.freeze(), Position(), ()))
    index = ClosedIndex()
    index.restore(dump)

    index.apply(W, Removed(pack_hashes([15])))
    assert held(index) == 4
    index.apply(W, Stored(ROOT, pack_hashes(CHAIN)))
    index.apply(W, Removed(pack_hashes([12])))

    assert held(index) == 1


def test_half_a_hash_changes_nothing() -> None:
    index = filled()

    for event in (Stored(ROOT, b"abc"), Removed(b"abc")):
        with pytest.raises(CodecError, match="not a multiple of 8"):
            index.apply(W, event)

    assert held(index) == 5
