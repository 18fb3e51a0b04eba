import pytest

from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.report.statistics import Slo, summarize
from kvmesh_lab.simulator.comparison import Cell, compare, measure


def cell(setting: str, policy: str, p90: float, hit: float = 0.5) -> Cell:
    return Cell(setting, policy, p90 / 2, p90, p90 * 2, 10.0, hit, 1.0, 0.1)


def test_ratios_are_geometric_means_against_the_first_policy() -> None:
    cells = [
        cell("low", "blind", 100),
        cell("low", "kv", 25, 0.8),
        cell("high", "blind", 100),
        cell("high", "kv", 100, 0.6),
    ]

    blind, kv = compare(cells)

    assert (blind.ttft_p90, blind.worst, blind.worst_of_best) == (1.0, 1.0, 4.0)
    assert kv.ttft_p50 == kv.ttft_p90 == kv.ttft_p99 == pytest.approx(0.5)
    assert (kv.worst, kv.worst_setting, kv.worst_of_best) == (1.0, "high", 1.0)
    assert kv.hit_rate == pytest.approx(0.7)


def test_a_cell_of_nothing_decides_nothing() -> None:
    nothing = measure("s", "p", summarize([], Slo()), [], 0.0)

    (verdict,) = compare([nothing])

    assert verdict.ttft_p90 == 1.0


def test_a_cell_has_the_requests_own_times_per_token() -> None:
    outcomes = [
        RequestOutcome(0, "", 0.0, 0.0, 30.0, 10.0, (10.0, 30.0), 100, 50, 3),
        RequestOutcome(1, "", 0.0, 0.0, 10.0, 10.0, (), 100, 0, 1),
    ]

    found = measure("s", "p", summarize(outcomes, Slo()), outcomes, 0.3)

    assert (found.tpot_ms_p90, found.ttft_ms_p50, found.hit_rate) == (20.0, 10.0, 0.25)
    assert found.busy_spread == 0.3


def test_lost_and_retried_requests_are_counted_and_summed() -> None:
    outcomes = [
        RequestOutcome(0, "", 0.0, 0.0, 30.0, 10.0, (), 100, 50, 3),
        RequestOutcome(1, "", 0.0, 0.0, 10.0, error="reset"),
        RequestOutcome(2, "", 0.0, 0.0, 10.0, error="hang"),
    ]

    low = measure("low", "kv", summarize(outcomes, Slo()), outcomes, 0.3, retried=3)
    high = measure("high", "kv", summarize(outcomes[:2], Slo()), outcomes[:2], 0.3)
    (verdict,) = compare([low, high])

    assert (low.lost, low.retried) == (2, 3)
    assert (verdict.lost, verdict.retried) == (3, 3)
