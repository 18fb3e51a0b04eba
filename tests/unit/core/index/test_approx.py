import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, sequence_hashes
from kvmesh.core.index.approx import new_approx

A, B, C, D = (WorkerId(name) for name in "abcd")
PROMPT = sequence_hashes(range(3000), 1)


def prompt(depth: int, start: int = 0) -> BlockHashes:
    return BlockHashes(range(start, start + depth), 1)


def test_a_routed_prompt_counts_as_cached() -> None:
    index = new_approx()

    index.record(A, prompt(300), 0.0)
    index.record(B, PROMPT[:20], 1.0)
    index.record(C, prompt(0), 1.0)

    assert index.find_groups(prompt(400)) == [(300, (A,)), (20, (B,))]
    assert index.find_matches(prompt(10)) == {A: 10, B: 10}
    assert index.workers() == [A, B]
    assert (index.blocks(A), index.blocks(C)) == (300, 0)
    statistics = index.statistics()
    assert (statistics.workers, statistics.blocks, statistics.entries) == (2, 300, 320)


def test_an_entry_lives_for_its_ttl_and_little_longer() -> None:
    index = new_approx(ttl_s=120.0)
    index.record(A, prompt(300), 1000.3)

    assert index.expire(1120.3)
    assert index.find_matches(prompt(300)) == {A: 300}
    assert index.expire(1127.8)

    assert index.find_matches(prompt(300)) == {}
    assert index.statistics().expired == 300
    assert index.statistics().blocks == 0


def test_an_entry_whose_time_is_over_now_is_gone() -> None:
    index = new_approx(ttl_s=64.0)
    index.record(A, prompt(30), 0.0)

    assert index.expire(64.0)

    assert index.find_matches(prompt(30)) == {}


def test_a_short_ttl_is_kept_as_closely_as_a_long_one() -> None:
    index = new_approx(ttl_s=0.5)
    index.record(A, prompt(30), 0.0)

    index.expire(0.499)
    assert index.find_matches(prompt(30)) == {A: 30}
    index.expire(0.508)
    assert index.find_matches(prompt(30)) == {}


def test_a_clock_may_start_anywhere() -> None:
    index = new_approx(ttl_s=10.0)

    index.record(A, prompt(30), -1000.0)

    assert index.find_matches(prompt(30)) == {A: 30}
    index.expire(-980.0)
    assert index.find_matches(prompt(30)) == {}


def test_a_further_prompt_prolongs_what_it_covers() -> None:
    index = new_approx(ttl_s=10.0)
    index.record(A, prompt(300), 0.0)
    index.record(A, prompt(100), 5.0)

    index.expire(11.0)
    assert index.find_matches(prompt(300)) == {A: 100}
    index.expire(16.0)
    assert index.find_matches(prompt(300)) == {}


@pytest.mark.parametrize("known", range(10))
def test_a_longer_prompt_prolongs_and_adds_whatever_was_believed_before(known: int) -> None:
    index = new_approx(ttl_s=10.0)
    index.record(A, prompt(known), 0.0)
    index.record(A, prompt(9), 5.0)

    assert index.find_matches(prompt(20)) == {A: 9}
    index.expire(11.0)
    assert index.find_matches(prompt(20)) == {A: 9}
    index.record(A, prompt(9), 12.0)
    index.record(A, prompt(12), 12.0)
    index.expire(17.0)
    assert index.find_matches(prompt(20)) == {A: 12}
    index.expire(23.0)
    assert index.statistics().entries == 0


def test_each_prompt_may_have_its_own_ttl() -> None:
    index = new_approx(ttl_s=120.0)
    index.record(A, prompt(100), 0.0, 120.0)
    index.record(A, prompt(300), 1.0, 5.0)
    index.record(B, prompt(300), 1.0, 0.0)

    assert index.find_matches(prompt(300)) == {A: 300}
    index.expire(7.0)
    assert index.find_matches(prompt(300)) == {A: 100}
    index.expire(122.0)
    assert index.find_matches(prompt(300)) == {}


def test_expiry_can_be_taken_in_slices_and_stays_prefix_closed() -> None:
    index = new_approx(ttl_s=10.0)
    index.record(A, prompt(300), 0.0)
    index.record(A, prompt(500), 0.01)
    index.record(B, prompt(300), 0.02)

    left = 800
    while not index.expire(100.0, budget=70):
        left -= 70
        found = index.find_matches(prompt(600))
        assert sum(found.values()) == index.statistics().entries == left
    assert index.statistics().entries == 0


def test_recording_drops_what_ended_meanwhile() -> None:
    index = new_approx(ttl_s=10.0)
    index.record(A, prompt(300), 0.0)

    index.record(B, prompt(10), 100.0)

    assert index.find_matches(prompt(300)) == {B: 10}


def test_recording_drops_a_slice_of_much_that_ended_meanwhile() -> None:
    index = new_approx(ttl_s=10.0)
    index.record(A, prompt(3000), 0.0)

    index.record(B, prompt(10), 100.0)
    assert 0 < index.statistics().expired < 3000
    index.record(B, prompt(10), 100.0)

    assert (index.statistics().expired, index.statistics().entries) == (3000, 10)


def test_expiry_goes_on_however_small_the_slices() -> None:
    index = new_approx(ttl_s=10.0)
    index.record(A, prompt(3), 0.0)

    assert [index.expire(100.0, budget=1) for _ in range(4)] == [False, False, True, True]
    assert index.statistics().expired == 3


def test_above_the_cap_the_oldest_go_down_to_the_target() -> None:
    index = new_approx(max_entries=1000, prune_target=0.8)

    for number in range(11):
        index.record(A if number % 2 else B, prompt(100, number * 1000), float(8 * number))

    assert index.statistics().entries == 800
    assert index.statistics().pruned == 300
    assert [bool(index.find_matches(prompt(100, n * 1000))) for n in range(11)] == [False] * 3 + [
        True
    ] * 8
    index.record(A, prompt(100, 50_000), 30.0)
    assert index.statistics().entries == 900


def test_nothing_is_pruned_below_the_cap() -> None:
    index = new_approx(max_entries=1000, prune_target=0.8)

    index.record(A, prompt(1000), 0.0)

    assert index.statistics().entries == 1000


def test_a_long_prompt_prunes_twice_its_own_length() -> None:
    index = new_approx(max_entries=20_000, prune_target=0.5)
    for number in range(2):
        index.record(A, prompt(10_000, number * 20_000), float(2 * number))

    index.record(A, prompt(1500, 10**6), 10.0)

    assert index.statistics().entries == 21_500 - 3000


@pytest.mark.parametrize("blocks", [5999, 6000, 6001])
def test_pruning_ends_where_removals_left_no_more_than_the_target(blocks: int) -> None:
    index = new_approx(max_entries=20_000, prune_target=0.5)
    for number in range(9):
        index.record(A, prompt(2000, number * 10_000), float(2 * number))
    for number in range(9, 12):
        index.record(B, prompt(2000, number * 10_000), float(2 * number))
    index.remove_worker(A)
    left = index.statistics().entries

    index.record(B, prompt(10_000 - left - 6000 + blocks, 10**6), 40.0)

    assert index.statistics().entries == min(10_000, 10_000 - 6000 + blocks)
    index.record(B, prompt(100, 10**7), 41.0)
    assert index.statistics().entries == min(10_000, 10_000 - 6000 + blocks) + 100


def test_pruning_is_over_when_one_slice_was_just_enough() -> None:
    index = new_approx(max_entries=2100, prune_target=0.48)
    index.record(A, prompt(2050), 0.0)
    index.record(A, prompt(1006, 10**6), 2.0)
    assert index.statistics().entries == 1008

    index.record(A, prompt(100, 10**7), 4.0)

    assert index.statistics().entries == 1108


def test_pruning_goes_on_with_the_next_prompts_when_there_is_much_to_do() -> None:
    index = new_approx(max_entries=20_000, prune_target=0.5)

    for number in range(11):
        index.record(A, prompt(2000, number * 10_000), float(2 * number))
    assert index.statistics().entries == 22_000 - 4000
    for number in range(4):
        index.record(A, prompt(10, 10**6 + number * 100), 30.0 + number)

    assert index.statistics().entries == 10_000
    index.record(A, prompt(10, 10**7), 40.0)
    assert index.statistics().entries == 10_010


def test_pruning_ends_when_expiry_was_quicker() -> None:
    index = new_approx(ttl_s=10.0, max_entries=20_000, prune_target=0.5)
    for number in range(11):
        index.record(A, prompt(2000, number * 10_000), number / 100)
    assert index.statistics().pruned == 4000
    index.expire(100.0)

    index.record(A, prompt(10), 101.0)

    assert (index.statistics().pruned, index.statistics().entries) == (4000, 10)


def test_a_workers_capacity_displaces_its_least_recently_used_leaves() -> None:
    index = new_approx(ttl_s=86_400.0, worker_blocks=250)
    index.record(A, prompt(100), 0.0)
    index.record(A, prompt(100, 5000), 10.0)
    index.record(A, prompt(50), 20.0)
    index.record(B, prompt(200), 20.0)

    index.record(A, prompt(100, 9000), 30.0)

    assert index.find_matches(prompt(100)) == {A: 50, B: 100}
    assert index.find_matches(prompt(100, 5000)) == {A: 100}
    assert index.find_matches(prompt(100, 9000)) == {A: 100}
    assert (index.blocks(A), index.statistics().displaced) == (250, 50)
    index.record(A, prompt(400, 20_000), 40.0)
    assert index.find_matches(prompt(400, 20_000)) == {A: 250}
    assert index.statistics().displaced == 50 + 400


def test_least_recently_used_is_meant_to_the_second() -> None:
    index = new_approx(ttl_s=86_400.0, worker_blocks=20)
    index.record(A, prompt(10), 0.0)
    index.record(A, prompt(10, 5000), 2.0)
    index.record(A, prompt(10), 4.0)

    index.record(A, prompt(5, 9000), 6.0)

    assert index.find_matches(prompt(10)) == {A: 10}
    assert index.find_matches(prompt(10, 5000)) == {A: 5}


def test_a_removed_worker_leaves_nothing_behind() -> None:
    index = new_approx(ttl_s=10.0)
    index.record(A, prompt(300), 0.0)
    index.record(B, prompt(100), 0.0)

    index.remove_worker(A)
    index.remove_worker(C)

    assert index.find_matches(prompt(300)) == {B: 100}
    assert index.statistics().entries == 100
    assert not index.sweep(1)
    assert not index.sweep(10)
    assert 100 < index.statistics().blocks <= 300
    while not index.sweep(100):
        pass
    assert index.statistics().blocks == 100
    index.record(A, prompt(7), 1.0)
    assert index.find_matches(prompt(300)) == {B: 100, A: 7}
    index.expire(20.0)
    assert index.statistics().entries == 0


def test_cleaning_up_stops_when_its_budget_is_spent_and_gets_to_an_end() -> None:
    index = new_approx()
    index.record(A, [1], 0.0)
    index.remove_worker(A)

    assert not index.sweep(100)
    assert [index.sweep(1) for _ in range(300)][-1]
    assert index.statistics().blocks == 0


def test_blocks_of_workers_that_come_and_go_are_not_kept_until_somebody_sweeps() -> None:
    index = new_approx()

    for number in range(1000):
        index.record(WorkerId(f"w{number}"), [number], 0.0)
        index.remove_worker(WorkerId(f"w{number}"))

    assert index.statistics().blocks <= 300


def test_workers_that_come_and_go_do_not_use_up_slots() -> None:
    index = new_approx()

    for number in range(1000):
        index.record(WorkerId(f"w{number}"), [1], 0.0)
        index.remove_worker(WorkerId(f"w{number}"))

    while not index.sweep(10_000):
        pass
    index.record(A, [1], 0.0)
    assert index.find_matches(BlockHashes.of([1], 1)) == {A: 1}


def test_a_full_worker_gives_up_what_ends_first_even_if_it_is_newest() -> None:
    index = new_approx(worker_blocks=3)
    index.record(WorkerId("w0"), [1, 2], 0.0, 120.0)

    index.record(WorkerId("w0"), [8, 9], 1.0, 5.0)

    assert index.find_matches(BlockHashes.of([1, 2], 1)) == {WorkerId("w0"): 2}
    assert index.find_matches(BlockHashes.of([8, 9], 1)) == {WorkerId("w0"): 1}
    assert index.statistics().displaced == 1


def test_a_removed_block_ends_the_belief_in_what_follows_it() -> None:
    index = new_approx()
    index.record(A, PROMPT[:10], 0.0)
    index.record(B, PROMPT[:10], 0.0)

    index.revoke(A, pack_hashes(PROMPT[6:7]))
    index.revoke(C, pack_hashes(PROMPT[:1]))

    assert index.find_matches(prompt(20)) == {A: 6, B: 10}
    assert (index.blocks(A), index.statistics().revoked) == (6, 4)
    index.record(A, PROMPT[:10], 1.0)
    assert index.find_matches(prompt(20)) == {A: 10, B: 10}


def test_branches_that_come_and_go_leave_nothing_behind_at_what_they_share() -> None:
    index = new_approx()
    for number in range(100):
        branch = [*PROMPT[:4], 10_000 + number]
        index.record(A, branch, float(number))
        index.revoke(A, pack_hashes(branch[-1:]))
    for number in range(5):
        index.record(A, [*PROMPT[:4], number, 100 + number], 101.0)

    index.revoke(A, pack_hashes(PROMPT[:1]))

    assert index.blocks(A) == 0
    assert index.statistics().revoked == 100 + 4 + 10
    index.revoke(A, pack_hashes(PROMPT[:1]))
    assert index.statistics().revoked == 100 + 4 + 10


def test_what_follows_a_revoked_block_goes_with_it_however_it_came() -> None:
    index = new_approx()
    paths = [[1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 5], *([1, 2, 10 + n] for n in range(10))]
    for number, path in enumerate(paths):
        for now in (float(number), 30.0 + number):
            index.record(A, path, now)
    index.record(A, [20, 21], 50.0)

    index.revoke(A, pack_hashes([2]))

    assert index.find_matches(BlockHashes.of([1, 2, 3], 1)) == {A: 1}
    assert index.find_matches(BlockHashes.of([1, 5], 1)) == {A: 2}
    assert (index.blocks(A), index.statistics().revoked) == (4, 13)
    index.revoke(A, pack_hashes([1]))
    assert (index.blocks(A), index.statistics().revoked) == (2, 15)
    index.revoke(A, pack_hashes([20, 21]))
    assert (index.blocks(A), index.statistics().entries) == (0, 0)
