from math import exp, inf, log, nan

import pytest

from kvmesh.core.cost.arm_tally import (
    EDGES,
    LEAST_MS,
    MOST_BINS,
    Clocked,
    Counter,
    Tally,
    Times,
    add_tallies,
)


def times_of(*values: float) -> Times:
    clocked = Clocked()
    for value in values:
        clocked.observe(value)
    return clocked.times()


def test_the_mean_is_geometric_and_quantiles_are_edges_above() -> None:
    times = times_of(10.0, 10.0, 1000.0)

    assert times.mean_ms() == pytest.approx(exp((2 * log(10.0) + log(1000.0)) / 3))
    assert times.log_variance() == pytest.approx(log(100.0) ** 2 / 3)
    assert 10.0 <= times.quantile_ms(0.5) < 13.0
    assert 1000.0 <= times.quantile_ms(0.9) < 1260.0
    assert times.above(times.bin_of(0.5)) == 1


def test_nothing_and_one_have_no_spread() -> None:
    assert (Times().mean_ms(), Times().quantile_ms(0.5), Times().log_variance()) == (0, 0, 0)
    assert times_of(7.0).log_variance() == 0.0


def test_times_out_of_range_fall_into_the_outer_bins() -> None:
    times = times_of(0.0, LEAST_MS, 1e9)

    assert (times.bins[0], len(times.bins), times.quantile_ms(1.0)) == (2, MOST_BINS, EDGES[-1])


def test_a_counter_keeps_requests_errors_and_both_times() -> None:
    counter = Counter()
    counter.began(20.0)
    counter.ended(failed=False, ms_per_token=5.0)
    counter.ended(failed=True)

    tally = counter.tally()

    assert (tally.requests, tally.errors, tally.ttft.count, tally.tpot.count) == (2, 1, 1, 1)


def test_tallies_of_replicas_are_the_tally_of_all() -> None:
    first, second, whole = Counter(), Counter(), Counter()
    for counter in (first, whole):
        counter.began(3.0)
        counter.ended(failed=False, ms_per_token=2.0)
    for counter in (second, whole):
        counter.began(300.0)
        counter.ended(failed=True)

    added = add_tallies([first.tally(), second.tally()])

    assert added.ttft.bins == whole.tally().ttft.bins
    assert added.ttft.log_sum == pytest.approx(whole.tally().ttft.log_sum)
    assert (added.requests, added.errors, added.tpot) == (2, 1, whole.tally().tpot)
    assert add_tallies([]) == Tally()


@pytest.mark.parametrize(
    "tally",
    [
        Tally(1, 2),
        Tally(-1, -1),
        Tally(1 << 60, 0),
        Tally(1, 0, Times(1, 0.0, 0.0, ())),
        Tally(1, 0, Times(0, 0.0, 0.0, (1, -1))),
        Tally(1, 0, Times(0, nan, 0.0)),
        Tally(1, 0, Times(0, 0.0, -1.0)),
        Tally(1, 0, Times(), Times(0, inf, 0.0)),
        Tally(1, 0, Times(0, 0.0, 0.0, (0,) * 65)),
    ],
)
def test_a_tally_that_cannot_be_is_seen(tally: Tally) -> None:
    assert tally.wrong()
