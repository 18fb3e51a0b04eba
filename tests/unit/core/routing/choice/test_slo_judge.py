import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.targets import Targets
from kvmesh.core.routing.choice.slo_judge import (
    MOST_RETRY_S,
    SloJudge,
    SloOptions,
    weight_of,
)
from kvmesh.core.routing.choice.slo_tracker import SloTracker
from kvmesh.core.routing.decision import Forecast

W1 = WorkerId("w1")


def forecast(chance: float = 0.5, ttft_ms: float = 9000.0, **fields: float) -> Forecast:
    known = {"tpot_ms": 0.0, "waited_ms": 0.0, "own_ms": 100.0, **fields}
    return Forecast(W1, ttft_ms, known["tpot_ms"], known["waited_ms"], known["own_ms"], chance)


def judge_of(refuse_below: float = 0.1) -> SloJudge:
    judge = SloJudge(SloTracker())
    judge.options = SloOptions(refuse_below)
    return judge


@pytest.mark.parametrize(
    ("priority", "weight"), [(0, 1.0), (1, 2.0), (9, 10.0), (-1, 0.5), (-9, 0.1)]
)
def test_a_request_of_higher_priority_counts_for_more(priority: int, weight: float) -> None:
    assert weight_of(priority) == pytest.approx(weight)


def test_only_what_is_hopeless_is_refused() -> None:
    judge = judge_of()

    assert not judge.is_hopeless(None, 0)
    assert not judge.is_hopeless(forecast(0.89), 0)
    assert judge.is_hopeless(forecast(0.91), 0)
    assert not judge.is_hopeless(forecast(0.91), 1)
    assert judge.is_hopeless(forecast(0.99), 1)
    assert judge.is_hopeless(forecast(0.85), -1)
    assert judge.is_hopeless(forecast(0.01), -32768)
    assert not judge_of(0.0).is_hopeless(forecast(1.0), -32768)


def test_a_token_time_gets_better_when_others_leave() -> None:
    judge, reported = judge_of(), forecast(1.0, 10.0, tpot_ms=80.0)

    assert judge.refuse("r1", Targets(None, 50.0), reported, 12_500.0).retry_after_s == 13
    assert judge.refuse("r1", Targets(5000.0, 50.0), reported, 0.0).retry_after_s == 1
    late = forecast(1.0, 9000.0, tpot_ms=80.0)
    fine = judge.refuse("r1", Targets(500.0, 100.0), late, 99e3)
    assert fine.retry_after_s == 9
    assert "100 ms a token (expected 80)" in str(fine)


def test_no_time_to_come_back_is_told_for_what_can_never_be_met() -> None:
    error = judge_of().refuse("r1", Targets(100.0), forecast(1.0, 9000.0, own_ms=5000.0), 0.0)

    assert (error.final, error.retry_after_s) == (True, 0)
    assert "its prompt alone takes longer" in str(error)


def test_a_time_to_come_back_is_bounded() -> None:
    error = judge_of().refuse("r1", Targets(1000.0), forecast(1.0, 1e12), 0.0)

    assert error.retry_after_s == MOST_RETRY_S


def test_the_refused_are_counted() -> None:
    tracker = SloTracker()
    tracker.arrive("r1", Targets(1000.0), 0.0)
    SloJudge(tracker).refuse("r1", Targets(1000.0), forecast(), 0.0)

    assert tracker.statistics().results["refused"] == 1
    assert not tracker.open
