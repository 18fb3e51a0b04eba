"""How soon prompts are foretold to come again."""

import pytest

from kvmesh.core.warming.returns import MOST_SAMPLES, Returns


def test_what_nobody_has_seen_is_expected_once_an_hour() -> None:
    outlook = Returns().outlook(())

    assert outlook.rate(1, 0.0, 60.0) == pytest.approx(1.0 / 3600.0, rel=0.01)


def test_prompts_that_return_after_a_while_are_expected_then() -> None:
    returns = Returns()
    for _ in range(200):
        returns.returned(2, 40.0)
    outlook = returns.outlook(())

    early, due, late = (outlook.rate(2, age_s, 10.0) for age_s in (1.0, 35.0, 500.0))

    assert early < 0.001
    assert due > 0.05
    assert late == pytest.approx(1.0 / 3600.0, rel=0.01)


def test_turns_are_told_apart() -> None:
    returns = Returns()
    for _ in range(100):
        returns.returned(9, 40.0)
        returns.gone(1, 600.0)
    outlook = returns.outlook(())

    assert outlook.rate(1, 35.0, 10.0) < outlook.rate(4, 35.0, 10.0) < outlook.rate(20, 35.0, 10.0)


def test_those_that_still_wait_count_for_the_time_that_they_have_waited() -> None:
    returns = Returns()
    for _ in range(100):
        returns.returned(1, 5.0)

    without, beside = returns.outlook(()), returns.outlook([(1, 5000.0)] * 300)

    assert beside.rate(1, 4.0, 4.0) < without.rate(1, 4.0, 4.0) / 2.0
    assert beside.rate(1, 6000.0, 60.0) < without.rate(1, 6000.0, 60.0)


def test_old_samples_count_less() -> None:
    returns = Returns()
    for _ in range(int(MOST_SAMPLES) * 4):
        returns.returned(1, 5.0)
    for _ in range(int(MOST_SAMPLES)):
        returns.gone(1, 600.0)

    assert returns.outlook(()).rate(1, 4.0, 4.0) < 0.12


def test_a_clock_that_went_back_is_an_age_of_none() -> None:
    returns = Returns()
    returns.returned(1, -5.0)

    assert returns.outlook(()).rate(1, 0.0, 1.0) > 0.003
