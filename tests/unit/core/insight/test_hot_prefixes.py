import pytest

from kvmesh.core.blocks.hashing import sequence_hashes
from kvmesh.core.insight.hot_prefixes import HotPrefix, HotPrefixes


def prompt(*blocks: int) -> list[int]:
    """Return the sequence hashes of a prompt whose blocks are named by numbers."""
    return sequence_hashes(blocks, 1)


def hottest(prefixes: HotPrefixes, now: float = 0.0, limit: int = 99) -> list[HotPrefix]:
    return prefixes.hottest(limit, now)


def test_a_chain_that_all_go_down_is_named_once_at_its_deepest() -> None:
    prefixes = HotPrefixes()
    for last in (6, 7):
        prefixes.record(prompt(1, 2, 3, 4, 5, last), 4, 0.0)

    (only,) = hottest(prefixes)

    assert (only.depth, only.parent, only.key) == (4, 0, prompt(1, 2, 3, 4)[-1])
    assert (only.requests, only.share, only.cached_share) == (2.0, 1.0, 1.0)


def test_a_hash_made_up_behind_two_beginnings_hurts_nobody() -> None:
    """Who chooses hashes may have a child that is heavier than the parent it came behind first."""
    prefixes = HotPrefixes()
    prefixes.record((1, 7), 0, 0.0)
    for _ in range(2):
        prefixes.record((2, 7), 0, 0.0)

    assert [(one.key, one.parent, one.depth) for one in hottest(prefixes)] == [(7, 0, 2), (2, 0, 1)]


def test_branches_stand_below_what_they_go_on_from() -> None:
    prefixes = HotPrefixes()
    for last in (1, 1, 1, 2, 2):
        prefixes.record(prompt(7, last, last, last), 0, 0.0)

    root, first, second = hottest(prefixes)

    assert (root.depth, root.requests) == (1, 5.0)
    assert [one.parent for one in (first, second)] == [root.key, root.key]
    assert [one.requests for one in (first, second)] == [3.0, 2.0]
    assert first.share == pytest.approx(0.6)


def test_only_so_many_are_named_and_kept() -> None:
    prefixes = HotPrefixes(max_nodes=8)
    for _ in range(3):
        prefixes.record(prompt(0), 0, 0.0)
    for number in range(1, 50):
        prefixes.record(prompt(number, number), 0, 0.0)

    assert prefixes.nodes() <= 8
    assert [one.key for one in hottest(prefixes, limit=1)] == [prompt(0)[0]]
    assert hottest(prefixes, limit=0) == []
