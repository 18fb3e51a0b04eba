import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=60),
    st.integers(4, 40),
)
def test_a_parent_is_kept_and_named_before_its_children(
    prompts: list[list[int]], max_nodes: int
) -> None:
    prefixes = HotPrefixes(max_nodes=max_nodes)
    for number, blocks in enumerate(prompts):
        prefixes.record(prompt(*blocks), number % 3, float(number))

    found = hottest(prefixes, float(len(prompts)))

    named: dict[int, HotPrefix] = {}
    for one in found:
        if one.parent:
            assert named[one.parent].depth < one.depth
            assert named[one.parent].requests >= one.requests * 0.98
        named[one.key] = one
        assert 0.0 <= one.cached_share <= 1.0 + 1e-9
        assert 0.0 < one.share <= 1.0 + 1e-9
    assert prefixes.nodes() <= max_nodes
