from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, sequence_hashes
from kvmesh.core.index.approx import new_approx

A, B, C, D = (WorkerId(name) for name in "abcd")
PROMPT = sequence_hashes(range(3000), 1)


def prompt(depth: int, start: int = 0) -> BlockHashes:
    return BlockHashes(range(start, start + depth), 1)


def test_an_entry_lives_for_its_ttl_and_little_longer() -> None:
    index = new_approx(ttl_s=120.0)
    index.record(A, prompt(300), 1000.3)

    assert index.expire(1120.3)
    assert index.find_matches(prompt(300)) == {A: 300}
    assert index.expire(1127.8)

    assert (index.find_matches(prompt(300)), index.statistics().expired) == ({}, 300)
    assert index.statistics().blocks == 0


def test_a_prompt_that_shall_be_kept_longer_is_while_half_of_the_entries_are_free() -> None:
    index = new_approx(ttl_s=120.0, max_entries=100)
    for number in range(7):
        index.record(A, prompt(10, 100 * number), 0.0, None, 3600.0)
    index.record(A, prompt(5, 900), 0.0, None, 60.0)

    index.expire(130.0)

    # The fifth made half of them.
    assert index.find_matches(prompt(10, 400)) == {A: 10}
    assert [index.find_matches(prompt(10, one)) for one in (500, 600, 900)] == [{}, {}, {}]
    index.record(A, prompt(10), 140.0)  # whoever follows does not shorten it
    index.expire(3500.0)
    assert index.find_matches(prompt(10)) == {A: 10}
    index.expire(3609.0)
    assert index.statistics().entries == 0


def test_above_the_cap_the_oldest_go_down_to_the_target() -> None:
    index = new_approx(max_entries=1000, prune_target=0.8)

    for number in range(11):
        index.record(A if number % 2 else B, prompt(100, number * 1000), float(8 * number))

    assert (index.statistics().entries, index.statistics().pruned) == (800, 300)
    assert [bool(index.find_matches(prompt(100, n * 1000))) for n in range(11)] == [False] * 3 + [
        True
    ] * 8
    index.record(A, prompt(100, 50_000), 30.0)
    assert index.statistics().entries == 900


def test_a_long_prompt_prunes_twice_its_own_length() -> None:
    index = new_approx(max_entries=20_000, prune_target=0.5)
    for number in range(2):
        index.record(A, prompt(10_000, number * 20_000), float(2 * number))

    index.record(A, prompt(1500, 10**6), 10.0)

    assert index.statistics().entries == 21_500 - 3000


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


def test_blocks_of_workers_that_come_and_go_are_not_kept_until_somebody_sweeps() -> None:
    index = new_approx()

    for number in range(1000):
        index.record(WorkerId(f"w{number}"), [number], 0.0)
        index.remove_worker(WorkerId(f"w{number}"))

    assert index.statistics().blocks <= 300


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
