import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.targets import Targets
from kvmesh.core.routing.choice.slo_tracker import RESULTS, SloTracker
from kvmesh.core.routing.decision import Forecast

W1 = WorkerId("w1")
BOTH = Targets(1000.0, 50.0)


def forecast(ttft_ms: float = 800.0, tpot_ms: float = 40.0, chance: float = 0.25) -> Forecast:
    return Forecast(W1, ttft_ms, tpot_ms, 0.0, 100.0, chance)


def tracker_of(targets: Targets = BOTH, reported: Forecast | None = None) -> SloTracker:
    tracker = SloTracker()
    tracker.arrive("r1", targets, 10.0)
    tracker.sent("r1", targets, reported or forecast(), 10.0)
    return tracker


@pytest.mark.parametrize(
    ("targets", "first_s", "end_s", "tokens", "result"),
    [
        (BOTH, 11.0, 11.5, 11, "met"),
        (BOTH, 11.1, 11.6, 11, "missed_ttft"),
        (BOTH, 11.0, 11.6, 11, "missed_tpot"),
        (BOTH, 12.0, 99.0, 11, "missed_ttft"),
        (BOTH, 11.0, 99.0, 1, "met"),
        (BOTH, 11.0, 99.0, 0, "met"),
        (Targets(1000.0, None), 11.0, 99.0, 11, "met"),
        (Targets(None, 50.0), 99.0, 99.5, 11, "met"),
    ],
)
def test_an_answer_meets_its_targets_or_misses_one(
    targets: Targets, first_s: float, end_s: float, tokens: int, result: str
) -> None:
    tracker = tracker_of(targets)
    tracker.first_token("r1", first_s)
    tracker.first_token("r1", 1e9)

    assert tracker.served("r1", tokens, end_s) == result
    statistics = tracker.statistics()
    assert statistics.results == {one: int(one == result) for one in RESULTS}
    assert (statistics.open, statistics.foretold_misses) == (0, 0.25)
    assert tracker.served("r1", tokens, end_s) is None


@pytest.mark.parametrize(
    ("targets", "reported", "end_s", "result"),
    [
        (BOTH, forecast(), 11.5, "met"),
        (BOTH, forecast(), 11.6, "missed_ttft"),
        (Targets(1000.0, None), forecast(), 11.39, "met"),
        (Targets(1000.0, None), forecast(), 11.51, "missed_ttft"),
        (Targets(1000.0, None), None, 10.9, "met"),
    ],
)
def test_a_whole_answer_is_held_against_what_its_tokens_may_take(
    targets: Targets, reported: Forecast | None, end_s: float, result: str
) -> None:
    tracker = SloTracker()
    tracker.sent("r1", targets, reported, 10.0)

    assert tracker.served("r1", 11, end_s) == result


def test_how_far_predictions_are_off_is_learned() -> None:
    tracker = SloTracker()
    for number in range(300):
        tracker.sent(str(number), BOTH, forecast(), 0.0)
        tracker.first_token(str(number), 1.6)
        tracker.served(str(number), 11, 1.6 + 0.2)
    statistics = tracker.statistics()

    assert statistics.ttft_bias == pytest.approx(1620.0 / 820.0, rel=0.05)
    assert statistics.tpot_bias == pytest.approx(40.0 / 60.0, rel=0.05)
    assert statistics.foretold_misses == pytest.approx(75.0)


def test_without_a_forecast_answers_count_and_teach_nothing() -> None:
    tracker = SloTracker()
    tracker.sent("r1", BOTH, None, 0.0)
    tracker.first_token("r1", 0.5)
    unknown = forecast(tpot_ms=0.0)
    tracker.sent("r2", Targets(None, 5.0), unknown, 0.0)
    tracker.first_token("r2", 0.8)

    assert (tracker.served("r1", 11, 1.0), tracker.served("r2", 11, 1.8)) == ("met", "missed_tpot")
    assert tracker.statistics().tpot_bias == 1.0


def test_who_was_not_answered_is_counted_once() -> None:
    tracker = SloTracker()
    for number in range(3):
        tracker.arrive(f"r{number}", BOTH, 0.0)
    tracker.first_token("r0", 1.0)
    tracker.refused("r0")
    tracker.close("r0")
    tracker.close("r1")
    tracker.close("r1")
    tracker.first_token("r1", 1.0)

    results = tracker.statistics().results
    assert (results["refused"], results["unserved"], tracker.statistics().open) == (1, 1, 1)


def test_no_more_are_followed_than_the_bound() -> None:
    tracker = SloTracker(most_open=3)
    for number in range(10):
        tracker.arrive(str(number), BOTH, float(number))

    assert list(tracker.open) == ["7", "8", "9"]
    assert tracker.served("1", 5, 20.0) is None
