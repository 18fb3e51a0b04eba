from math import inf, nan

import pytest

from kvmesh._native import Speeds
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import new_speeds

W1, W2 = WorkerId("w1"), WorkerId("w2")


@pytest.fixture
def speeds() -> Speeds:
    return new_speeds()


def feed(speeds: Speeds, worker: WorkerId, ms_per_token: float, prompts: int) -> None:
    for number in range(prompts + 1):
        tokens = 1000 + 100 * (number % 7)
        speeds.first_token(worker, tokens, tokens * ms_per_token / 1000.0, now=10.0 * number)


@pytest.mark.parametrize("true", [0.001, 0.05, 0.3, 20.0])
def test_the_true_speed_is_learned_from_any_prior(speeds: Speeds, true: float) -> None:
    feed(speeds, W1, true, prompts=40)

    assert speeds.ms_per_token(W1) == pytest.approx(true, rel=0.2)


def test_a_worker_believed_slow_that_gets_no_prompts_is_tried_again(speeds: Speeds) -> None:
    for _ in range(40):
        feed(speeds, W1, 0.1, prompts=1)
        feed(speeds, W2, 0.3, prompts=1)
    assert speeds.ms_per_token(W2) > 2.0 * speeds.ms_per_token(W1)

    feed(speeds, W1, 0.1, prompts=1000)

    assert speeds.ms_per_token(W2) == pytest.approx(speeds.ms_per_token(W1), rel=0.05)
    feed(speeds, W1, 0.1, prompts=1000)
    assert speeds.prefill_ratio(W2).tokens == 0.0
    feed(speeds, W2, 0.3, prompts=40)
    assert speeds.ms_per_token(W2) > 2.0 * speeds.ms_per_token(W1)


@pytest.mark.parametrize("wrong", [-5.0, 0.0, nan, inf, 1e300])
def test_broken_clocks_leave_finite_positive_speeds(speeds: Speeds, wrong: float) -> None:
    for number in range(2000):
        speeds.first_token(W1, 1000, wrong, now=10.0 * number)
        speeds.output(W1, 3, wrong)
        speeds.finished(W1, wrong, 10)

    assert 0.0 < speeds.ms_per_token(W1) < 1e7
    assert 0.0 < speeds.fleet_ms_per_token < 1e7
    assert 0.0 <= speeds.ms_per_output_token(W1) < 1e7
    assert 0.0 <= speeds.residence_ms(W1) < 1e7
