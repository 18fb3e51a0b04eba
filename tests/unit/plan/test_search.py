"""The search beside the naive model: every fleet tried."""

from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st

from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.plan import search
from kvmesh_lab.plan.kinds import Kind, Mix, price_of
from kvmesh_lab.plan.search import cheapest, fewest

ENGINE = EngineOptions()


def sorts_in(mix: Mix) -> int:
    return sum(count > 0 for count in mix)


@given(st.integers(1, 200), st.integers(1, 400), st.integers(1, 200))
def test_the_fewest_engines_are_found_from_any_start(least: int, start: int, most: int) -> None:
    asked: list[int] = []

    def holds(count: int) -> bool:
        assert 1 <= count <= most
        asked.append(count)
        return count >= least

    found = fewest(holds, start, most)

    assert found == (least if least <= most else None)
    assert len(set(asked)) <= 22


@given(st.integers(3, 60), st.integers(1, 80), st.integers(0, 3), st.booleans())
def test_one_number_that_is_out_of_line_moves_the_answer_by_one_at_most(
    least: int, start: int, at: int, kept: bool
) -> None:
    """With chance in the plays one number may hold below the edge, or miss above it."""
    odd = max(1, least - 1 + at if not kept else least - 1 - at)

    def holds(count: int) -> bool:
        return kept if count == odd else count >= least

    found = fewest(holds, start, 80)

    exhaustive = next(n for n in range(1, 81) if holds(n) and holds(n + 1))
    assert found is not None
    assert holds(found)
    assert holds(found + 1)
    assert abs(found - exhaustive) <= 4


@example([(1, 1), (1, 1), (2, 2)], 11)  # three kinds that are worth the same: the plays run out
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 9)), min_size=1, max_size=3),
    st.integers(1, 20),
)
def test_the_cheapest_mix_is_found(sorts: list[tuple[int, int]], need: int) -> None:
    """Naive model: engines whose powers add up, all mixes by price. Where `MOST_MIXES` are not
    enough, the cheapest fleet of one kind is.
    """
    played: set[Mix] = set()
    kinds = [Kind(f"k{n}", ENGINE, float(price), 8) for n, (_, price) in enumerate(sorts)]

    def holds(mix: Mix) -> bool:
        played.add(mix)
        return sum(n * power for n, (power, _) in zip(mix, sorts, strict=True)) >= need

    found = cheapest(kinds, holds, [1] * len(kinds))

    alone = any(8 * power >= need for power, _ in sorts)
    assert (found is not None) == alone
    if found is not None:
        assert holds(found)
        ran_out = sum(sorts_in(mix) > 1 for mix in played) >= search.MOST_MIXES
        mixes = [mix for mix in product(range(9), repeat=len(kinds)) if holds(mix)]
        if ran_out and sorts_in(found) == 1:
            mixes = [mix for mix in mixes if sorts_in(mix) == 1]
        assert price_of(kinds, found) == min(price_of(kinds, mix) for mix in mixes)


def test_a_mix_is_cheaper_than_one_engine_more_of_the_large_kind() -> None:
    kinds = [Kind("large", ENGINE, 10.0, 8), Kind("small", ENGINE, 3.0, 8)]
    played: list[Mix] = []

    def holds(mix: Mix) -> bool:
        played.append(mix)
        return 4 * mix[0] + mix[1] >= 9

    assert cheapest(kinds, holds, [2, 5]) == (2, 1)
    assert len(set(played)) < 20, "most mixes are never played"


def test_plays_of_mixes_are_bounded() -> None:
    kinds = [Kind(f"k{n}", ENGINE, 1.0 + n / 100, 64) for n in range(4)]
    played: set[Mix] = set()

    def holds(mix: Mix) -> bool:
        played.add(mix)
        return max(mix) >= 40

    assert cheapest(kinds, holds, [64] * 4) == (40, 0, 0, 0)
    assert sum(sum(map(bool, mix)) > 1 for mix in played) <= search.MOST_MIXES
