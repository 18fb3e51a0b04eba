import random
from collections import Counter

import pytest

from kvmesh.core.cost.selection import choose_softmax, next_in_turn, softmax_probabilities


class Fixed:
    """An rng that always draws the same, and counts."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.draws = 0

    def random(self) -> float:
        self.draws += 1
        return self.value


def test_temperature_is_scale_free() -> None:
    for scale in (1e-6, 1.0, 1e9):
        best, other = softmax_probabilities([10 * scale, 20 * scale], 1.0)
        assert best == pytest.approx(0.731, abs=1e-3)
        assert other == pytest.approx(0.269, abs=1e-3)
    assert softmax_probabilities([1.0, 2.0], 0.1)[0] == pytest.approx(0.99995, abs=1e-5)
    assert softmax_probabilities([5.0, 5.0, 5.0, 5.0], 0.3) == [0.25] * 4


def test_a_tiny_temperature_still_gives_probabilities() -> None:
    best, other = softmax_probabilities([0.0, 1.0], 1e-300)

    assert best == 1.0
    assert 0.0 < other < 1e-300


def test_softmax_draws_in_proportion() -> None:
    rng = random.Random(3)

    assert 7100 < Counter(choose_softmax([1.0, 2.0], 1.0, rng) for _ in range(10_000))[0] < 7500


def test_rounding_at_the_end_of_the_sum_takes_the_last() -> None:
    assert choose_softmax([1.0, 1.0, 1.0], 1.0, Fixed(1.0)) == 2


def test_turns_go_round_whoever_comes_and_goes() -> None:
    assert (next_in_turn(["a", "b", "c"], ""), next_in_turn(["a", "b", "c"], "a")) == ("a", "b")
    assert (next_in_turn(["a", "c"], "b"), next_in_turn(["a", "b"], "c")) == ("c", "a")
