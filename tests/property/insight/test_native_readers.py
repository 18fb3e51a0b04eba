"""The compiled readers of prompts, prefix counts and a shadow, do what the naive ones do."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh import _native
from kvmesh.core.blocks.hashing import sequence_hashes
from kvmesh.core.insight.decision_log import SHADOW_ENTRIES
from tests.reference.insight.hot_prefixes import PrefixCounts
from tests.reference.insight.round_robin_shadow import RoundRobinShadow

BLOCKS = sequence_hashes(list(range(700)), 1)
LATER = sequence_hashes(list(range(700)), 1, root=9)
FLEETS = ((1, 40, 1.0), (3, 40, 1.0), (3, 900, 1.0), (5, 900, 2.0), (2, 0, 8.0), (4, 90_000, 1.5))
HUGE = ((1 << 40, 50, float(1 << 19)), (2, 1 << 60, 0.0))


def both_shadows() -> tuple[RoundRobinShadow, _native.RoundRobinShadow]:
    return RoundRobinShadow(SHADOW_ENTRIES), _native.RoundRobinShadow(SHADOW_ENTRIES)


@st.composite
def prompts(draw: st.DrawFn) -> Sequence[int]:
    """Return a prompt that shares a beginning with others, as a list or an array."""
    shared = draw(st.integers(0, 300) | st.integers(0, 12))
    tail = draw(st.integers(0, 60))
    start = draw(st.integers(0, 5)) * 70
    hashes = [*BLOCKS[:shared], *LATER[start : start + tail]]
    return array("Q", hashes) if draw(st.booleans()) else hashes


@given(
    st.lists(st.tuples(prompts(), st.integers(0, 80), st.sampled_from((0.0, 1.0, 90.0, 6000.0)))),
    st.sampled_from((4, 16, 60)),
)
def test_prefixes_are_counted_alike(
    asked: list[tuple[Sequence[int], int, float]], most: int
) -> None:
    naive, native, now = PrefixCounts(most), _native.PrefixCounts(most), 0.0

    for hashes, cached, step in asked:
        now += step
        for one in (naive, native):
            one.record(hashes, cached, now)
        assert naive.rows() == native.rows()

    assert (naive.weight(now + 9.0), naive.total()) == (native.weight(now + 9.0), native.total())


@given(
    st.lists(st.tuples(prompts(), st.sampled_from(FLEETS)), max_size=60),
    st.sampled_from((8, 64, 1 << 18)),
)
def test_the_shadows_find_alike(
    asked: list[tuple[Sequence[int], tuple[int, int, float]]], most: int
) -> None:
    naive, native = RoundRobinShadow(most), _native.RoundRobinShadow(most)

    for hashes, (workers, blocks, replicas) in asked:
        found = [one.route(hashes, workers, blocks, replicas) for one in (naive, native)]
        assert found[0] == found[1]
        assert naive.entries() == native.entries()


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=40), st.sampled_from(FLEETS))))
def test_blocks_that_come_twice_in_a_prompt_are_the_same_to_both(
    asked: list[tuple[list[int], tuple[int, int, float]]],
) -> None:
    shadows = both_shadows()
    counts = PrefixCounts(8), _native.PrefixCounts(8)

    for hashes, fleet in asked:
        found = [one.route(hashes, *fleet) for one in shadows]
        assert found[0] == found[1]
        for one in counts:
            one.record(hashes, 3, 1.0)

    assert counts[0].rows() == counts[1].rows()


@pytest.mark.parametrize("fleet", HUGE)
def test_no_fleet_is_too_large(fleet: tuple[int, int, float]) -> None:
    shadows = both_shadows()

    found = [[one.route(BLOCKS, *fleet) for _ in range(4)] for one in shadows]

    assert found[0] == found[1]


@pytest.mark.parametrize("given_hashes", [b"12345678", [-1], [1 << 64], ["x"], 7, array("I", [1])])
def test_what_are_no_hashes_is_refused(given_hashes: object) -> None:
    shadow: Any = _native.RoundRobinShadow(SHADOW_ENTRIES)
    counts: Any = _native.PrefixCounts(8)

    with pytest.raises((TypeError, OverflowError)):
        shadow.route(given_hashes, 1, 1)
    with pytest.raises((TypeError, OverflowError)):
        counts.record(given_hashes, 1, 1.0)
    assert (shadow.entries(), counts.rows()) == (0, [])


def test_tables_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 entry, not 0"):
        _native.RoundRobinShadow(0)
    with pytest.raises(ValueError, match="at least 1 prefix is counted, not 0"):
        _native.PrefixCounts(0)
