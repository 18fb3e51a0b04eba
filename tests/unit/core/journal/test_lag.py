import pytest

from kvmesh.core.journal.lag import RECENT, JournalLag


def test_percentiles_are_of_the_last_records_and_the_histogram_of_all() -> None:
    lag = JournalLag()
    for _ in range(RECENT):
        lag.note(9.0)
    for number in range(RECENT):
        lag.note(number / 1000)

    assert lag.percentile_ms(0.5) == pytest.approx(RECENT / 2)
    assert lag.percentile_ms(0.99) == pytest.approx(int(RECENT * 0.99))
    assert lag.percentile_ms(1.0) == pytest.approx(RECENT - 1)
    assert lag.seconds.cumulative()[-1][1] == 2 * RECENT


def test_a_clock_that_is_ahead_of_the_servers_counts_as_no_lag() -> None:
    lag = JournalLag()
    lag.note(-5.0)

    assert (lag.percentile_ms(0.5), lag.seconds.total) == (0.0, 0.0)
