import pytest

from kvmesh.core.blocks.events import ROOT, Cleared, Removed, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, sequence_hashes
from kvmesh.core.index.index import TIERS, KvIndex

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
PROMPT = sequence_hashes(range(16 * 400), 16)


def stored(hashes: list[int], parent: int = ROOT, tier: int = 0) -> Stored:
    return Stored(parent, pack_hashes(hashes), tier)


def asked(hashes: list[int]) -> BlockHashes:
    return BlockHashes.of(hashes, 16)


def test_a_removed_workers_memory_is_swept_in_slices() -> None:
    index = KvIndex()
    index.apply(A, stored(PROMPT))
    index.apply(B, stored(PROMPT[:100]))

    index.remove_worker(A)
    index.remove_worker(C)

    assert index.find_matches(asked(PROMPT)) == {B: 100}
    assert (index.statistics().blocks, index.statistics().unclean) == (400, 1)
    slices = 1
    while not index.sweep(50):
        slices += 1
        assert index.find_matches(asked(PROMPT)) == {B: 100}
    assert slices > 5
    assert (index.statistics().blocks, index.statistics().unclean) == (100, 0)


def test_thousands_of_workers_share_one_index() -> None:
    index = KvIndex()
    names = [WorkerId(f"worker-{number}") for number in range(3000)]

    for number, name in enumerate(names):
        index.apply(name, stored(PROMPT[: number % 5 + 1]))

    groups = index.find_groups(asked(PROMPT))
    assert [(depth, len(group)) for depth, group in groups] == [(d, 600) for d in range(5, 0, -1)]
    assert index.find_matches(asked(PROMPT)) == {
        name: number % 5 + 1 for number, name in enumerate(names)
    }


def test_watchers_are_told_what_was_removed_from_the_device_and_of_whom() -> None:
    index = KvIndex()
    reported: list[tuple[WorkerId, bytes]] = []
    index.watchers.append(lambda worker, hashes: reported.append((worker, hashes)))
    run = pack_hashes(PROMPT[:4])
    for tier in (0, 1):
        index.store(A, ROOT, run, tier)

    index.apply(A, Removed(run, tier=1))
    assert reported == []
    index.apply(A, Removed(run[8:]))
    index.apply(B, Removed(run[:8]))

    assert reported == [(A, run[8:]), (B, run[:8])]


def test_a_tier_nobody_knows_is_counted_and_ignored() -> None:
    index = KvIndex()

    assert index.apply(A, stored(PROMPT[:4], tier=TIERS)) == 0
    assert index.apply(A, stored(PROMPT[:4], tier=-1)) == 0

    assert (index.workers(), index.statistics().unknown_tier) == ([], 8)


def test_a_memory_cap_evicts_what_was_not_matched_and_says_so() -> None:
    index = KvIndex(max_blocks=512)
    old = [sequence_hashes(range(1000 * n, 1000 * n + 100), 1) for n in range(4)]
    for number, hashes in enumerate(old):
        index.apply(A if number < 2 else B, stored(hashes))

    assert index.find_matches(asked(old[1])) == {A: 100}
    index.sweep(1000)
    assert index.sizes((A, B)) == [index.blocks(A), index.blocks(B)]
    new = [sequence_hashes(range(1000 * n, 1000 * n + 100), 1) for n in range(10, 12)]
    for hashes in new:
        index.apply(C, stored(hashes))

    assert [index.find_matches(asked(hashes)) for hashes in old] == [
        {},
        {A: 100},
        {B: 100},
        {B: 100},
    ]
    assert [index.find_matches(asked(hashes)) for hashes in new] == [{C: 100}, {C: 100}]
    statistics = index.statistics()
    assert (statistics.evicted, statistics.truncated_workers) == (100, 1)
    assert (index.truncated(A), index.truncated(B), index.truncated(C)) == (True, False, False)


def test_matched_blocks_stay_everyones_who_held_them_and_nobody_elses() -> None:
    index = KvIndex(max_blocks=16)
    index.apply(C, stored([1, 2, 3]))
    index.apply(A, stored(PROMPT[:4]))
    index.apply(B, stored(PROMPT[:2]))

    for _ in range(2):
        assert index.find_matches(asked(PROMPT)) == {A: 4, B: 2}
        assert index.sweep(1000)

    assert [index.blocks(worker) for worker in (A, B, C)] == [4, 2, 3]
    assert (index.worker_digest(A), index.statistics().blocks) == (sum(PROMPT[:4]) % 2**64, 7)
    index.apply(A, Removed(pack_hashes(PROMPT[3::-1])))
    assert (index.find_matches(asked(PROMPT)), index.statistics().missing) == ({B: 2}, 0)


def test_orphans_of_a_truncated_worker_are_no_gap() -> None:
    index = KvIndex(max_blocks=8)
    for number in range(9):
        index.apply(A, stored([1000 + number]))
    assert index.truncated(A)

    for _ in range(2):
        assert index.apply(A, stored([5, 6], parent=1000)) == 0

    statistics = index.statistics()
    assert (statistics.orphans, statistics.truncated_orphans) == (0, 4)
    index.apply(A, Cleared())
    assert not index.truncated(A)
    assert index.apply(A, stored([5, 6], parent=1000)) == 2


def test_a_truncated_worker_that_is_removed_or_starts_anew_is_none() -> None:
    index = KvIndex(max_blocks=8)
    for number in range(9):
        index.apply(A, stored([1000 + number]))
        index.apply(B, stored([2000 + number]))
    assert index.statistics().truncated_workers == 2

    index.remove_worker(B)
    assert index.statistics().truncated_workers == 1
    index.apply(A, Removed(pack_hashes([1000 + number for number in range(9)])))
    assert (index.blocks(A), index.truncated(A)) == (0, True)
    index.apply(A, Cleared())
    assert index.statistics().truncated_workers == 0


def test_a_run_behind_a_held_block_makes_room_for_itself() -> None:
    index = KvIndex(max_blocks=16)
    index.apply(A, stored(PROMPT[:4]))

    assert index.apply(A, stored(PROMPT[4:10], PROMPT[3])) == 0

    assert index.find_matches(asked(PROMPT)) == {A: 10}
    assert not index.truncated(A)


def test_evicted_memory_is_given_back_bit_by_bit() -> None:
    index = KvIndex(max_blocks=4096)
    for first in range(0, 20_000, 40):
        run = sequence_hashes(range(first, first + 40), 1)
        assert index.apply(A, stored(run)) == 0
        assert index.statistics().blocks <= 4096

    assert index.statistics().evicted > 15_000
    assert len(index._cap._garbage) <= 256
    while not index.sweep(100):
        pass
    assert index.blocks(A) == index.statistics().blocks > 2048


def test_an_index_that_shrank_forgets_that_it_was_short_of_memory() -> None:
    index = KvIndex(max_blocks=16)
    index.apply(A, stored(PROMPT[:8]))
    index.apply(B, stored([1, 2]))
    assert index.find_matches(asked(PROMPT)) == {A: 8}

    index.apply(A, Removed(pack_hashes(PROMPT[7::-1])))
    while not index.sweep(100):
        pass

    assert index.apply(B, stored([3], parent=2)) == 0
    assert index.find_matches(asked([1, 2, 3])) == {B: 3}
    assert (index.statistics().blocks, index.statistics().evicted) == (3, 0)


def test_a_frozen_view_can_be_given_up() -> None:
    index = KvIndex()
    index.apply(A, stored(PROMPT[:4]))
    frozen = index.freeze()

    frozen.close()
    frozen.close()
    index.apply(A, Removed(pack_hashes(PROMPT[2:4])))

    assert sum(len(held) for _, _, held in frozen.parts()) == 2


@pytest.mark.parametrize(
    ("held", "hashed"), [(0, 64), (63, 64), (64, 128), (127, 128), (128, 192), (1000, 1213)]
)
def test_little_more_of_a_prompt_is_hashed_than_is_held(held: int, hashed: int) -> None:
    tokens = bytes(4 * 20_000)
    index = KvIndex()
    index.store(A, ROOT, pack_hashes(sequence_hashes(tokens, 1)[:held]))
    prompt = BlockHashes(tokens, 1)

    assert (index.find_matches(prompt), len(prompt.upto(0))) == ({A: held} if held else {}, hashed)


def test_tiers_tell_what_is_held_there_or_nearer() -> None:
    index = KvIndex()
    index.apply(A, stored(PROMPT[:4]))
    index.apply(A, stored(PROMPT[:9], tier=2))
    index.apply(B, stored(PROMPT[:2]))

    assert index.find_tier_matches(asked(PROMPT)) == [{A: 4, B: 2}, {A: 4, B: 2}, {A: 9, B: 2}]
    assert index.find_matches(asked(PROMPT)) == {A: 4, B: 2}
    assert (index.blocks(A, 2), index.blocks(A, 3), index.statistics().tiers) == (9, 0, 3)
    assert index.worker_digest(A) == (sum(PROMPT[:4]) + 5 * sum(PROMPT[:9])) % 2**64


def test_a_tier_made_late_has_nothing_old() -> None:
    index = KvIndex(max_blocks=16)
    index.apply(A, stored(PROMPT[:4]))
    index.apply(C, stored([11, 12, 13, 14]))
    index.apply(B, stored([1]))

    index.apply(B, stored([1], tier=1))
    assert index.find_tier_matches(asked(PROMPT)) == [{A: 4}, {A: 4}]
    index.sweep(1000)

    assert index.find_tier_matches(asked([1])) == [{B: 1}, {B: 1}]
    assert (index.blocks(A), index.blocks(C)) == (4, 4)
