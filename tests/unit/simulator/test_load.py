import pytest

from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.simulator.load import backlog_share, find_saturation, largest_backlog, spread


def outcome(sent_ms: float, ttft_ms: float | None) -> RequestOutcome:
    return RequestOutcome(0, "", sent_ms, 0.0, 0.0, ttft_ms)


def backlog(capacity: float, speedup: float) -> float:
    return max(0.0, 1.0 - capacity / speedup)


@pytest.mark.parametrize("capacity", [0.02, 0.7, 1.0, 3.0, 150.0])
def test_saturation_is_found_from_above_and_below(capacity: float) -> None:
    found = find_saturation(lambda speedup: backlog(capacity, speedup), 1.0)

    assert capacity * 1.005 < found < capacity * 1.035


def test_what_never_saturates_gives_the_largest_tried() -> None:
    assert find_saturation(lambda _: 0.0, 1.0) == 4096.0


def test_backlog_counts_who_waits_when_the_last_is_sent() -> None:
    outcomes = [outcome(0, 50), outcome(10, 200), outcome(20, None), outcome(100, 0)]

    assert backlog_share(outcomes) == 0.25


def test_spread_is_the_range_over_the_mean() -> None:
    assert spread([1.0, 2.0, 3.0]) == 1.0
    assert spread([0.0, 0.0]) == 0.0


def test_a_few_waiting_are_no_backlog_in_a_short_run() -> None:
    assert largest_backlog(10_000, 8) == 0.03
    assert largest_backlog(100, 8) == 0.16
