import pytest

from kvmesh.core.members.retry_budget import BURST, LEAST_PER_S, RetryBudget


def spend(budget: RetryBudget, now: float) -> int:
    """Return how many retries there are now, and use them."""
    taken = 0
    while budget.take(now):
        taken += 1
    return taken


def test_a_burst_may_be_sent_again_and_then_a_share_of_the_requests() -> None:
    budget = RetryBudget(0.2)
    assert spend(budget, 0.0) == BURST

    for _ in range(50):
        budget.deposit()

    assert budget.left() == pytest.approx(10.0)
    assert spend(budget, 0.0) in (9, 10), "a fifth of them, give or take rounding"
    assert budget.refused == 2


def test_a_quiet_fleet_has_some_retries_a_second() -> None:
    budget = RetryBudget(0.2)
    spend(budget, 5.0)

    assert spend(budget, 6.0) == LEAST_PER_S
    assert spend(budget, 5.5) == 0, "a clock that steps back gives nothing"
    assert spend(budget, 1e9) == BURST, "no more than a burst is saved up"


def test_no_ratio_is_no_retry_at_all() -> None:
    budget = RetryBudget(0.0)

    budget.deposit()

    assert not budget.take(0.0)
    assert not budget.take(1e6)
    assert (budget.spent, budget.refused, budget.left()) == (0, 2, 0.0)


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_a_fleet_that_fails_everything_gets_little_more_than_its_load(ratio: float) -> None:
    budget = RetryBudget(ratio)
    requests, rate = 20_000, 1000

    for number in range(requests):
        budget.deposit()
        budget.take(number / rate)
        budget.take(number / rate)

    assert budget.spent <= BURST + ratio * requests + LEAST_PER_S * requests / rate
    assert budget.spent >= ratio * requests


def test_one_tenants_streams_may_not_use_all_of_it_up() -> None:
    budget = RetryBudget(0.2)

    assert sum(budget.take_for("greedy", 0.0) for _ in range(60)) == 25
    assert (budget.left(), budget.refused) == (75.0, 35)
    assert budget.take_for("modest", 0.0)
    assert sum(budget.take_for("greedy", 1.0) for _ in range(60)) == 2
    assert spend(budget, 1.0) > 60
    assert not budget.take_for("new", 1.0), "there is nothing left for anybody"


def test_streams_go_on_for_nothing_once_unless_there_are_no_retries() -> None:
    budget = RetryBudget(0.2)

    assert all(budget.take_for("t", 0.0, first=True) for _ in range(200))
    assert (budget.left(), budget.spent, budget.refused) == (100.0, 200, 0)
    assert not RetryBudget(0.0).take_for("t", 0.0, first=True)


def test_only_some_tenants_are_remembered() -> None:
    budget = RetryBudget(0.2)
    for _ in range(25):
        budget.take_for("first", 0.0)
    assert not budget.take_for("first", 0.0)

    for number in range(1024):
        budget.take_for(f"t{number}", 0.0)

    assert budget.take_for("first", 1e6), "it was forgotten, or had its share again"
