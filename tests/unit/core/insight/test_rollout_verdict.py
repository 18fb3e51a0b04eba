import random
import re
from math import exp

import pytest

from kvmesh.core.cost.arm_tally import Counter, Tally
from kvmesh.core.insight.policy_change import Bounds
from kvmesh.core.insight.rollout_verdict import compare, is_unlikely, wilson_upper

BOUNDS = Bounds(1.1, 1.1, 0.01)


def tally_of(
    requests: int,
    *,
    slower: float = 1.0,
    tail: float = 1.0,
    dearer: float = 1.0,
    errors: int = 0,
    spread: float = 0.8,
    seed: int = 1,
) -> Tally:
    """Return so many requests, log-normal around 100 ms, one in four `tail` times as slow."""
    rng, counter = random.Random(seed), Counter()
    for number in range(requests):
        slow = tail if number % 4 == 0 else 1.0
        counter.began(100.0 * slower * slow * exp(rng.gauss(0.0, spread)))
        counter.ended(failed=number < errors, ms_per_token=20.0 * dearer * exp(rng.gauss(0, 0.2)))
    return counter.tally()


def test_equal_arms_go_on_once_enough_was_seen() -> None:
    baseline = tally_of(4000)

    assert compare(baseline, tally_of(500, seed=2), BOUNDS, 200).kind == "ahead"
    early = compare(baseline, tally_of(150, seed=2), BOUNDS, 200)
    assert (early.kind, early.reason) == ("open", "150 of 200 requests seen of the rarer arm")
    assert compare(Tally(), Tally(), BOUNDS, 20).kind == "open"


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (tally_of(200, slower=2.0, seed=2), "time to first token .* beyond 1.1 times"),
        (tally_of(400, dearer=1.3, seed=2), "time per token .* beyond 1.1 times"),
        (tally_of(600, tail=12.0, slower=0.6, seed=2), "time to first token of the slowest tenth"),
        (tally_of(30, errors=6, seed=2), "6 of 30 requests failed, 0 of 4000 by the baseline"),
    ],
)
def test_what_is_worse_is_named_with_its_figures(candidate: Tally, said: str) -> None:
    verdict = compare(tally_of(4000), candidate, BOUNDS, 10_000)

    assert verdict.kind == "worse"
    assert re.search(said, verdict.reason)


def test_a_few_failures_in_a_row_are_enough() -> None:
    verdict = compare(tally_of(95), tally_of(5, errors=5), BOUNDS, 200)

    assert verdict.kind == "worse"


def test_failures_of_both_arms_are_not_the_candidates() -> None:
    verdict = compare(tally_of(1000, errors=300), tally_of(100, errors=32), BOUNDS, 50)

    assert verdict.kind != "worse"


def test_a_difference_that_may_be_chance_waits_for_more() -> None:
    verdict = compare(tally_of(300), tally_of(60, slower=1.5, seed=3), BOUNDS, 50)

    assert verdict.kind == "open"
    assert "may be chance" in verdict.reason


def test_times_beyond_all_bins_are_left_to_the_mean() -> None:
    slow = tally_of(100, slower=1e6)

    assert compare(slow, tally_of(100, slower=1e6, seed=2), BOUNDS, 50).kind != "worse"


def test_shares_are_bounded_from_above() -> None:
    assert wilson_upper(0, 0) == 1.0
    assert wilson_upper(10, 10) == 1.0
    assert 0.03 < wilson_upper(0, 100) < 0.05
    assert not is_unlikely(0, 0, 0.1)
    assert not is_unlikely(10, 100, 0.1)
    assert is_unlikely(1, 1, 0.0)
    assert is_unlikely(40, 100, 0.1)


@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_equal_arms_are_seldom_returned_from_though_looked_at_again_and_again(
    spread: float,
) -> None:
    returned = 0

    for seed in range(50):
        rng = random.Random(seed)
        arms = (Counter(), Counter())
        for number in range(4000):
            counter = arms[rng.random() < 0.25]
            counter.began(100.0 * exp(rng.gauss(0.0, spread)))
            counter.ended(failed=rng.random() < 0.02, ms_per_token=20.0 * exp(rng.gauss(0, 0.3)))
            if number % 100 == 99:
                verdict = compare(arms[0].tally(), arms[1].tally(), BOUNDS, 10**6)
                returned += verdict.kind == "worse"

    assert returned == 0
