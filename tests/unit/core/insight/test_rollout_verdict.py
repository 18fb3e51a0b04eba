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


def windows_of(requests: int, number: int = 6, **how: float) -> list[Tally]:
    seed = int(how.pop("seed", 1))
    return [
        tally_of(requests, seed=100 * seed + one, **how)  # type: ignore[arg-type]  # any of them
        for one in range(number)
    ]


def test_equal_arms_go_on_once_it_is_sure_that_they_are() -> None:
    baseline = windows_of(700)

    assert compare(baseline, windows_of(700, seed=2), BOUNDS, 200).kind == "ahead"
    early = compare(baseline, windows_of(75, 2, seed=2), BOUNDS, 200)
    assert (early.kind, early.reason) == ("open", "150 of 200 requests seen of the rarer arm")
    unsure = compare(baseline, windows_of(75, 4, seed=2), BOUNDS, 200)
    assert unsure.kind == "open"
    assert "of the baseline's, which may be chance" in unsure.reason
    assert compare([], [], BOUNDS, 20).kind == "open"


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (windows_of(100, 2, slower=3.0, seed=2), "time to first token .* beyond 1.1 times"),
        (windows_of(400, 2, dearer=2.0, seed=2), "time per token .* beyond 1.1 times"),
        (windows_of(300, 2, tail=12.0, slower=0.6, seed=2), "time to first token of the slowest"),
        (windows_of(30, 1, errors=6, seed=2), "6 of 30 requests failed, 0 of 4200 by the baseline"),
    ],
)
def test_what_is_worse_is_named_with_its_figures(candidate: list[Tally], said: str) -> None:
    verdict = compare(windows_of(700), candidate, BOUNDS, 10_000)

    assert verdict.kind == "worse"
    assert re.search(said, verdict.reason)


def test_what_windows_of_the_baseline_differ_by_is_noise() -> None:
    steady = windows_of(300)
    bursts = [*windows_of(300, 3, slower=0.5), *windows_of(300, 3, slower=2.0, seed=4)]
    tried = windows_of(300, 2, slower=2.0, seed=2)

    assert compare(steady, tried, BOUNDS, 200).kind == "worse"
    assert compare(bursts, tried, BOUNDS, 200).kind == "open"


def test_a_few_failures_in_a_row_are_enough() -> None:
    assert compare([tally_of(95)], [tally_of(5, errors=5)], BOUNDS, 200).kind == "worse"


def test_failures_of_both_arms_are_not_the_candidates() -> None:
    verdict = compare([tally_of(1000, errors=300)], [tally_of(100, errors=32)], BOUNDS, 50)

    assert verdict.kind != "worse"


def test_times_beyond_all_bins_are_left_to_the_mean() -> None:
    slow, slower = (windows_of(100, 2, slower=1e6, seed=seed) for seed in (1, 2))

    assert compare(slow, slower, BOUNDS, 50).kind != "worse"


def test_shares_are_bounded_from_above() -> None:
    assert (wilson_upper(0, 0), wilson_upper(10, 10)) == (1.0, 1.0)
    assert 0.03 < wilson_upper(0, 100) < 0.05
    assert not is_unlikely(0, 0, 0.1)
    assert not is_unlikely(10, 100, 0.1)
    assert is_unlikely(1, 1, 0.0)
    assert not is_unlikely(3, 3, 0.05)
    assert is_unlikely(40, 100, 0.1)


@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_equal_arms_are_seldom_returned_from_though_looked_at_again_and_again(
    spread: float, noise: float
) -> None:
    returned = 0

    for seed in range(20):
        rng = random.Random(seed)
        sides: tuple[list[Tally], list[Tally]] = ([], [])
        for window in range(24):
            load = exp(rng.gauss(0.0, noise))
            counter = Counter()
            seen = sides[window % 4 in (1, 2)]
            seen.append(Tally())
            for number in range(160):
                counter.began(100.0 * load * exp(rng.gauss(0.0, spread)))
                tpot_ms = 20.0 * exp(rng.gauss(0, 0.3))
                counter.ended(failed=rng.random() < 0.02, ms_per_token=tpot_ms)
                if number % 40 == 39:
                    seen[-1] = counter.tally()
                    returned += compare(*sides, BOUNDS, 10**6).kind == "worse"

    assert returned == 0
