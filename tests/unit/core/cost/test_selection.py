import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from kvmesh.core.cost.selection import (
    choose_least,
    choose_softmax,
    find_home,
    find_ties,
    next_in_turn,
    pick,
    pure_find_home,
    softmax_probabilities,
    two_of,
)

FindHome = Callable[[Sequence[str], dict[str, int], Sequence[int]], int]


class Fixed:
    """An rng that always draws the same, and counts."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.draws = 0

    def random(self) -> float:
        self.draws += 1
        return self.value


def test_the_least_cost_wins_without_a_draw() -> None:
    rng = Fixed(0.9)

    assert choose_least([3.0, 1.0, 2.0], rng) == 1
    assert rng.draws == 0


def test_equal_costs_are_drawn_evenly() -> None:
    rng = random.Random(7)

    drawn = Counter(choose_least([1.0, 2.0, 1.0, 1.0], rng) for _ in range(3000))

    assert set(drawn) == {0, 2, 3}
    assert all(900 < count < 1100 for count in drawn.values())


def test_equal_costs_go_to_the_smallest_tree_when_asked() -> None:
    assert choose_least([1.0, 1.0, 1.0], Fixed(0.9), tie_sizes=[9, 2, 5]) == 1
    assert choose_least([1.0, 1.0, 1.0], Fixed(0.99), tie_sizes=[2, 9, 2]) == 2
    assert choose_least([1.0, 1.0], Fixed(0.0), tie_sizes=[9, 2]) == 1
    assert choose_least([0.5, 1.0], Fixed(0.9), tie_sizes=[9, 2]) == 0


def test_a_draw_stays_below_the_count() -> None:
    assert pick(3, Fixed(1.0 - 2**-53)) == 2
    assert pick(3, Fixed(1.0)) == 2
    assert pick(1, Fixed(0.5)) == 0


def test_temperature_is_scale_free() -> None:
    for scale in (1e-6, 1.0, 1e9):
        best, other = softmax_probabilities([10 * scale, 20 * scale], 1.0)
        assert best == pytest.approx(0.731, abs=1e-3)
        assert other == pytest.approx(0.269, abs=1e-3)
    assert softmax_probabilities([1.0, 2.0], 0.1)[0] == pytest.approx(0.99995, abs=1e-5)
    assert softmax_probabilities([5.0, 5.0, 5.0, 5.0], 0.3) == [0.25] * 4


def test_a_slight_difference_between_large_costs_counts_in_full() -> None:
    best, other = softmax_probabilities([1e6, 1e6 + 1.0], 1.0)

    assert best == pytest.approx(0.731, abs=1e-3)
    assert other == pytest.approx(0.269, abs=1e-3)


def test_costs_are_equal_within_the_margin_only() -> None:
    costs = [1.0, 1.05, 1.06]

    assert find_ties(costs) == [0]
    assert find_ties(costs, margin=0.05) == [0, 1]


def test_a_draw_on_the_border_belongs_to_the_next() -> None:
    assert choose_softmax([1.0, 1.0], 1.0, Fixed(0.5)) == 1


def test_a_tiny_temperature_still_gives_probabilities() -> None:
    best, other = softmax_probabilities([0.0, 1.0], 1e-300)

    assert best == 1.0
    assert 0.0 < other < 1e-300


def test_softmax_draws_in_proportion() -> None:
    rng = random.Random(3)

    drawn = Counter(choose_softmax([1.0, 2.0], 1.0, rng) for _ in range(10_000))

    assert 7100 < drawn[0] < 7500


def test_rounding_at_the_end_of_the_sum_takes_the_last() -> None:
    assert choose_softmax([1.0, 1.0, 1.0], 1.0, Fixed(1.0)) == 2


def test_turns_go_round_whoever_comes_and_goes() -> None:
    assert next_in_turn(["a", "b", "c"], "") == "a"
    assert next_in_turn(["a", "b", "c"], "a") == "b"
    assert next_in_turn(["a", "c"], "b") == "c"
    assert next_in_turn(["a", "b"], "c") == "a"


def test_two_are_never_the_same_and_every_pair_comes() -> None:
    rng = random.Random(5)

    pairs = Counter(two_of(3, rng) for _ in range(6000))

    assert set(pairs) == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert all(850 < count < 1150 for count in pairs.values())


def test_costs_within_the_margin_are_equal() -> None:
    costs = [10.0, 10.9, 11.1, 30.0]

    drawn = Counter(choose_least(costs, random.Random(seed), margin=0.1) for seed in range(200))

    assert set(drawn) == {0, 1}
    assert min(drawn.values()) > 60
    assert choose_least([0.0, 0.1], Fixed(0.9), margin=0.1) == 0


@pytest.mark.parametrize("find", [pure_find_home, find_home])
def test_a_key_stays_at_home_when_other_names_come_or_go(find: FindHome) -> None:
    names = ["a", "b", "c", "d"]
    homes = {key: names[find(names, {}, [key])] for key in range(200)}

    fewer = [name for name in names if name != "b"]
    for key, home in homes.items():
        if home != "b":
            assert fewer[find(fewer, {}, [key])] == home
    assert {list(homes.values()).count(name) > 30 for name in names} == {True}


@pytest.mark.parametrize("find", [pure_find_home, find_home])
def test_home_is_among_those_with_the_most_overlap(find: FindHome) -> None:
    names = ["a", "b", "c", "d", "e"]
    overlaps = {"b": 3, "c": 7, "e": 7, "stranger": 9}

    homes = {names[find(names, overlaps, [*range(7), key])] for key in range(50)}

    assert homes == {"c", "e"}
    assert find(names, overlaps, range(7)) == -1


def test_both_cores_find_the_same_home() -> None:
    rng = random.Random(5)
    for _ in range(300):
        names = [f"wörker-{rng.randrange(10**9)}" * rng.randint(1, 30) for _ in range(6)]
        overlaps = {name: rng.randint(0, 2) for name in names[:4]}
        blocks = [rng.getrandbits(64) for _ in range(rng.randint(0, 4))]

        assert find_home(names, overlaps, blocks) == pure_find_home(names, overlaps, blocks)
