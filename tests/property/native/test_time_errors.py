"""How far predicted times are off is learned, and as its model does, to the last bit."""

import random
from math import exp, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import TimeErrors
from tests.reference.routing.time_errors import FLOOR_MS, LEAST_SPREAD, MOST_RATIO
from tests.reference.routing.time_errors import TimeErrors as Model

TIMES = st.floats(0.0, 1e6)


def learned(ratio: float, spread: float, samples: int = 3000) -> TimeErrors:
    rng, errors = random.Random(3), TimeErrors()
    for _ in range(samples):
        predicted_ms = rng.uniform(100.0, 5000.0)
        factor = ratio * exp(rng.gauss(0.0, spread))
        errors.learn(predicted_ms, (predicted_ms + FLOOR_MS) * factor - FLOOR_MS)
    return errors


def test_before_anything_was_seen_a_time_is_as_likely_above_as_below_its_prediction() -> None:
    errors = TimeErrors()

    assert errors.chance_above(1000.0, 1000.0) == pytest.approx(0.5)
    assert 0.05 < errors.chance_above(1000.0, 3000.0) < 0.2
    assert errors.bias == 1.0
    assert errors.longest(1000.0, 0.5) == pytest.approx(1000.0)


def test_bias_and_spread_are_learned() -> None:
    errors = learned(1.5, 0.3)

    assert errors.bias == pytest.approx(1.5, rel=0.05)
    assert errors.spread == pytest.approx(0.3, rel=0.1)
    assert errors.chance_above(1000.0, 1500.0) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("limit_share", [0.6, 0.8, 1.0, 1.3, 1.7])
def test_chances_fit_what_came_though_it_was_distributed_otherwise(limit_share: float) -> None:
    errors, rng = learned(1.0, 0.4), random.Random(4)
    chance = errors.chance_above(1000.0, 1000.0 * limit_share)
    limit = (1000.0 * limit_share + FLOOR_MS) / (1000.0 + FLOOR_MS)
    above = sum(exp(rng.gauss(0.0, 0.4)) > limit for _ in range(4000)) / 4000

    assert chance == pytest.approx(above, abs=0.06)


def test_a_new_habit_replaces_the_old_one() -> None:
    errors = learned(1.0, 0.1)
    for _ in range(2000):
        errors.learn(1000.0, 3000.0)

    assert errors.bias == pytest.approx(3020.0 / 1020.0, rel=0.1)


def test_a_clock_that_steps_and_what_is_no_number_do_little() -> None:
    errors = TimeErrors()
    for wrong in (nan, inf, -inf):
        errors.learn(wrong, 100.0)
        errors.learn(100.0, wrong)
    assert errors.bias == 1.0
    errors.learn(0.0, 1e300)
    assert errors.bias <= MOST_RATIO ** (1.0 / errors.samples) * 1.01
    errors.learn(1e300, -5.0)
    assert 0.0 < errors.bias < MOST_RATIO


def test_equal_ratios_leave_a_least_spread() -> None:
    errors = learned(1.0, 0.0, 20_000)

    assert errors.spread == LEAST_SPREAD
    assert errors.chance_above(1e9, 0.0) == 1.0
    assert errors.chance_above(0.0, 1e9) == pytest.approx(0.0)


@given(TIMES, TIMES, st.floats(0.02, 0.98))
def test_the_longest_prediction_is_where_the_chance_is_reached(
    predicted_ms: float, limit_ms: float, chance: float
) -> None:
    errors = learned(1.2, 0.4, 50)
    longest = errors.longest(limit_ms, chance)

    assert 0.0 <= errors.chance_above(predicted_ms, limit_ms) <= 1.0
    if longest > 0.0:
        assert errors.chance_above(longest, limit_ms) == pytest.approx(1.0 - chance, abs=1e-6)
    else:
        assert errors.chance_above(0.0, limit_ms) >= 1.0 - chance - 1e-6


@given(st.lists(TIMES, min_size=2, max_size=2), TIMES)
def test_a_longer_prediction_is_never_less_likely_to_be_late(
    predictions: list[float], limit_ms: float
) -> None:
    errors = TimeErrors()
    short, long = sorted(predictions)

    assert errors.chance_above(short, limit_ms) <= errors.chance_above(long, limit_ms)


def test_a_chance_beyond_the_scale_is_taken_as_its_end() -> None:
    errors = TimeErrors()

    assert errors.longest(100.0, 0.0) == errors.longest(100.0, 0.01)
    assert errors.longest(100.0, 1.0) == errors.longest(100.0, 0.99)


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=20), st.floats(), st.floats())
def test_it_learns_as_its_model_does(
    samples: list[tuple[float, float]], one: float, other: float
) -> None:
    errors, model = TimeErrors(), Model()
    for predicted_ms, actual_ms in samples:
        errors.learn(predicted_ms, actual_ms)
        model.learn(predicted_ms, actual_ms)

    assert (errors.samples, errors.bias, errors.spread) == (
        model.samples,
        model.bias,
        model.spread,
    )
    assert repr(errors.chance_above(one, other)) == repr(model.chance_above(one, other))
    assert repr(errors.longest(one, other)) == repr(model.longest(one, other))
