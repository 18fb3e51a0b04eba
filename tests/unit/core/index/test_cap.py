import pytest

from kvmesh.core.blocks.events import ROOT, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, sequence_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import Position, encode_snapshot

A, B, C, D = (WorkerId(name) for name in "abcd")


def prompt(number: int, blocks: int) -> list[int]:
    """Return the hashes of a prompt like no other number's."""
    return sequence_hashes(range(1000 * number, 1000 * number + blocks), 1)


def store(index: KvIndex, worker: WorkerId, hashes: list[int], parent: int = ROOT) -> None:
    assert index.apply(worker, Stored(parent, pack_hashes(hashes))) == 0


def found(index: KvIndex, hashes: list[int]) -> dict[WorkerId, int]:
    return index.find_matches(BlockHashes.of(hashes, 1))


def contents(index: KvIndex) -> dict[int, set[WorkerId]]:
    frozen = index.freeze()
    return {
        key << 8 | shard: {one.worker for one in frozen.workers if mask & one.bit}
        for _, shard, part in frozen.parts()
        for key, mask in part.items()
    }


def test_who_fills_the_last_room_is_not_truncated_and_the_next_block_evicts() -> None:
    index = KvIndex(max_blocks=16)
    store(index, A, prompt(0, 8))

    store(index, B, prompt(1, 8))
    assert (index.truncated(A), index.truncated(B), index.statistics().blocks) == (False, False, 16)
    store(index, C, prompt(2, 1))

    assert index.statistics().blocks == 9
    assert [index.truncated(one) for one in (A, B, C)] == [True, False, False]


def test_a_loaded_index_keeps_within_the_cap_and_knows_who_was_truncated() -> None:
    index = KvIndex(max_blocks=16)
    for number, worker in enumerate((A, B, C)):
        store(index, worker, prompt(number, 8))
    snapshot = decode_snapshot(b"".join(encode_snapshot(index.freeze(), Position())))
    copy = KvIndex(max_blocks=16)

    copy.load(snapshot.image, snapshot.truncated)

    assert [copy.truncated(one) for one in (A, B, C)] == [True, False, False]
    for number, blocks in enumerate((1, 3, 3, 3, 3, 3), 3):
        store(copy, D, prompt(number, blocks))
        assert copy.statistics().blocks <= 16
        assert found(copy, prompt(1, 8)) in ({B: 8}, {})
        assert found(copy, prompt(number, blocks)) == ({D: blocks} if number > 3 else {})
        copy.sweep(1000)


def test_matched_prompts_outlive_a_rotation_only_as_far_as_there_is_room() -> None:
    index = KvIndex(max_blocks=64)
    prompts = [prompt(number, 8) for number in range(4)]
    for hashes in prompts:
        store(index, A, hashes)
    store(index, B, prompt(4, 8))

    for hashes in prompts:
        assert found(index, hashes) == {A: 8}
    assert index.sweep(10_000)
    for number in (5, 6):
        store(index, B, prompt(number, 16))

    assert [found(index, hashes) for hashes in prompts] == [{}, {}, {A: 8}, {A: 8}]
    assert (index.statistics().evicted, index.blocks(A)) == (16, 16)
    assert index.worker_digest(A) == sum(prompts[2] + prompts[3]) % 2**64


def test_matches_are_remembered_up_to_a_limit_and_followed_up_within_the_budget() -> None:
    index = KvIndex(max_blocks=64)
    for number in range(4):
        store(index, A, prompt(number, 8))
    store(index, B, prompt(4, 8))
    index.sweep(10_000)
    for number in range(3):
        assert found(index, prompt(number, 4)) == {A: 4}

    assert not index.sweep(8)
    assert index.sweep(1000)
    for _ in range(5000):
        found(index, prompt(0, 1))
    assert index.sweep(3000)


def test_a_frozen_view_shows_old_and_young_blocks_as_one_and_changes_neither() -> None:
    index = KvIndex(max_blocks=1024)
    shared = sequence_hashes(range(400), 1)
    store(index, A, shared)
    store(index, C, prompt(1, 112))
    store(index, B, shared[:300])
    expected = {block: {A, B} for block in shared[:300]}
    expected |= {block: {A} for block in shared[300:]}
    expected |= {block: {C} for block in prompt(1, 112)}

    for _ in range(2):
        assert contents(index) == expected
        assert index.find_groups(BlockHashes.of(shared, 1)) == [(400, (A,)), (300, (B,))]


@pytest.mark.parametrize("max_blocks", [-1, 0, 3])
def test_a_cap_that_holds_nothing_is_refused(max_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"max_blocks is {max_blocks}, it must be at least 4"):
        KvIndex(max_blocks=max_blocks)
