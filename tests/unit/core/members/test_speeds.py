from math import inf, nan

import pytest

from kvmesh._native import Speeds
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import PRIOR_MS_PER_TOKEN, new_speeds
from tests.reference.workers.speed_report import speed_report

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


def test_mixed_speeds_are_told_apart_and_strangers_get_the_fleets(speeds: Speeds) -> None:
    for _ in range(40):
        feed(speeds, W1, 0.1, prompts=1)
        feed(speeds, W2, 0.2, prompts=1)

    assert speeds.ms_per_token(W1) == pytest.approx(0.1, rel=0.1)
    assert speeds.ms_per_token(W2) == pytest.approx(0.2, rel=0.1)
    assert 0.1 < speeds.ms_per_token(WorkerId("new")) < 0.2


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


def test_one_stall_moves_little(speeds: Speeds) -> None:
    feed(speeds, W1, 0.1, prompts=60)
    before = speeds.ms_per_token(W1)

    speeds.first_token(W1, 1000, 3600.0, now=1e6)
    speeds.first_token(W1, 1000, 0.1, now=2e6)

    assert speeds.ms_per_token(W1) < 1.5 * before


def test_first_tokens_of_one_step_count_together(speeds: Speeds) -> None:
    for step in range(60):
        now = 10.0 * step
        speeds.first_token(W1, 100, 0.2, now)
        speeds.first_token(W1, 1900, 0.0, now + 0.001)

    assert speeds.ms_per_token(W1) == pytest.approx(0.1, rel=0.1)


def test_short_prompts_teach_nothing(speeds: Speeds) -> None:
    for number in range(50):
        speeds.first_token(W1, 256, 1.0, now=10.0 * number)

    assert speeds.ms_per_token(W1) == pytest.approx(PRIOR_MS_PER_TOKEN)
    assert speed_report(speeds, W1).prefill_evidence_tokens == 0.0


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


def test_decode_speed_and_residence_are_learned_per_worker_and_fleet(speeds: Speeds) -> None:
    for _ in range(300):
        speeds.output(W1, 16, 0.32)
        speeds.finished(W1, 4.0, 200)
    speeds.output(W1, 0, 1.0)
    speeds.finished(W1, 4.0, 0)

    report = speed_report(speeds, W1)
    assert report.ms_per_output_token == pytest.approx(20.0)
    assert report.residence_ms == pytest.approx(4000.0)
    assert report.output_tokens == pytest.approx(200.0)
    assert speeds.ms_per_output_token(W2) == pytest.approx(20.0)
    assert speeds.residence_ms(W2) == pytest.approx(4000.0)


def test_a_worker_that_left_is_believed_to_be_as_fast_as_the_fleet(speeds: Speeds) -> None:
    for _ in range(20):
        feed(speeds, W1, 0.02, prompts=1)
        feed(speeds, W2, 0.08, prompts=1)

    speeds.remove_worker(W2)
    speeds.remove_worker(WorkerId("nobody"))

    assert speeds.ms_per_token(W2) == speeds.fleet_ms_per_token
    assert speeds.ms_per_token(W1) < speeds.fleet_ms_per_token


def test_an_engines_own_totals_are_its_speed_and_first_tokens_count_no_more(speeds: Speeds) -> None:
    for report in range(1, 30):
        speeds.measured(W1, 10_000 * report, 2_000_000 * report)
        speeds.first_token(W1, 1000, 50.0, now=10.0 * report)

    assert speeds.prefill_ratio(W1).ms / speeds.prefill_ratio(W1).tokens == pytest.approx(0.2)
    assert speeds.ms_per_token(W1) == pytest.approx(0.2, rel=0.05)


def test_totals_of_a_long_life_weigh_no_more_than_what_a_worker_is_remembered_by(
    speeds: Speeds,
) -> None:
    speeds.measured(W1, 10**9, 10**9)
    for report in range(1, 40):
        speeds.measured(W1, 10**9 + 20_000 * report, 10**9 + 10_000_000 * report)

    assert speeds.ms_per_token(W1) == pytest.approx(0.5, rel=0.05)


def test_small_steps_of_the_totals_are_taken_together_and_a_new_engine_begins_anew(
    speeds: Speeds,
) -> None:
    for report in range(1, 11):
        speeds.measured(W1, 100 * report, 10_000 * report)
    assert speed_report(speeds, W1).prefill_evidence_tokens > 800
    before = speed_report(speeds, W1).prefill_evidence_tokens

    speeds.measured(W1, 200, 40_000)
    assert speed_report(speeds, W1).prefill_evidence_tokens == before
    speeds.measured(W1, 1000, 200_000)

    ratio = speeds.prefill_ratio(W1)
    assert 0.1 < ratio.ms / ratio.tokens < 0.2


def test_short_prompts_teach_the_steps_fixed_time_not_a_dearer_token(speeds: Speeds) -> None:
    for number in range(600):
        tokens = (20, 300, 1500, 8000)[number % 4]
        worker, slow = ((W1, 1.0), (W2, 2.0))[number % 2 ^ (number // 4) % 2]
        speeds.first_token(worker, tokens, slow * (20 + 0.02 * tokens) / 1000.0, now=float(number))

    assert speeds.steps.step_tokens == pytest.approx(1000.0, rel=0.2)
    assert speeds.ms_per_token(W1) == pytest.approx(0.02, rel=0.15)
    assert speeds.ms_per_token(W2) == pytest.approx(0.04, rel=0.15)


def test_a_prompt_that_is_wholly_cached_says_nothing_of_how_long_prompts_are(
    speeds: Speeds,
) -> None:
    speeds.first_token(W1, 500, 0.1, now=1.0)

    for number in range(9):
        speeds.first_token(W1, 0, 0.1, now=2.0 + number)

    assert speeds.uncached_tokens == 500
    assert speed_report(speeds, W1).prefill_evidence_tokens > 0.0
