import random
from collections import Counter

from tests.reference.routing.selection import choose_least, find_home, find_ties, pick, two_of


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


def test_costs_are_equal_within_the_margin_only() -> None:
    costs = [1.0, 1.05, 1.06]

    assert find_ties(costs) == [0]
    assert find_ties(costs, margin=0.05) == [0, 1]


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


def test_a_key_stays_at_home_when_other_names_come_or_go() -> None:
    names = ["a", "b", "c", "d"]
    homes = {key: names[find_home(names, {}, [key])] for key in range(200)}

    fewer = [name for name in names if name != "b"]
    for key, home in homes.items():
        if home != "b":
            assert fewer[find_home(fewer, {}, [key])] == home
    assert {list(homes.values()).count(name) > 30 for name in names} == {True}


def test_home_is_among_those_with_the_most_overlap() -> None:
    names = ["a", "b", "c", "d", "e"]
    overlaps = {"b": 3, "c": 7, "e": 7, "stranger": 9}

    homes = {names[find_home(names, overlaps, [*range(7), key])] for key in range(50)}

    assert homes == {"c", "e"}
    assert find_home(names, overlaps, range(7)) == -1
