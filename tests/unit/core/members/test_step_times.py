import random

import pytest

from kvmesh._native import StepTimes


def test_a_fixed_time_is_told_from_a_time_per_token() -> None:
    steps, rng = StepTimes(), random.Random(1)

    for _ in range(200):
        tokens = rng.choice((30, 300, 3000, 8192))
        steps.fold(tokens, 20.0 + 0.02 * tokens + rng.uniform(-5.0, 5.0))

    assert steps.step_tokens == pytest.approx(1000.0, rel=0.25)
