import random

import pytest

from tests.reference.workers.step_times import MAX_STEP_TOKENS, StepTimes


def test_a_fixed_time_is_told_from_a_time_per_token() -> None:
    steps, rng = StepTimes(), random.Random(1)

    for _ in range(200):
        tokens = rng.choice((30, 300, 3000, 8192))
        steps.fold(tokens, 20.0 + 0.02 * tokens + rng.uniform(-5.0, 5.0))

    assert steps.step_tokens == pytest.approx(1000.0, rel=0.25)


def test_nothing_is_believed_of_few_steps_or_steps_of_one_size() -> None:
    steps = StepTimes()
    for tokens in (100, 5000) * 3:
        steps.fold(tokens, 20.0 + 0.02 * tokens)
    assert steps.step_tokens == 0.0

    alike = StepTimes()
    for _ in range(500):
        alike.fold(1000, 40.0)
    assert alike.step_tokens == 0.0


def test_no_fixed_time_is_below_none_or_beyond_belief() -> None:
    none, huge, backwards = StepTimes(), StepTimes(), StepTimes()
    for _ in range(50):
        for tokens in (100, 5000):
            none.fold(tokens, 0.02 * max(0, tokens - 90))
            huge.fold(tokens, 5000.0 + 0.02 * tokens)
            backwards.fold(tokens, 500.0 - 0.02 * tokens)

    assert none.step_tokens == 0.0
    assert huge.step_tokens == MAX_STEP_TOKENS
    assert backwards.step_tokens == 0.0


def test_what_a_step_costs_is_followed_when_it_changes() -> None:
    steps = StepTimes()
    for _ in range(300):
        for tokens in (100, 5000):
            steps.fold(tokens, 40.0 + 0.02 * tokens)
    for _ in range(1500):
        for tokens in (100, 5000):
            steps.fold(tokens, 10.0 + 0.02 * tokens)

    assert steps.step_tokens == pytest.approx(500.0, rel=0.05)
