from kvmesh.core.cost.targets import Targets
from kvmesh.core.routing.choice.held import HeldRequest, HeldTargets
from kvmesh.core.routing.choice.slo_judge import SloJudge, SloOptions
from kvmesh.core.routing.choice.slo_tracker import SloTracker


def held(name: str = "r1", ttft_ms: float | None = 1000.0, priority: int = 0) -> HeldRequest:
    return HeldRequest(name, Targets(ttft_ms, 50.0), priority, own_ms=200.0)


def make(refuse_below: float = 0.5) -> tuple[HeldTargets, SloTracker]:
    tracker = SloTracker()
    judge = SloJudge(tracker)
    judge.options = SloOptions(refuse_below)
    return HeldTargets(tracker, judge), tracker


def test_a_request_is_refused_when_it_would_begin_too_late() -> None:
    targets, tracker = make()

    assert targets.offer(held(), 700.0, 5.0) is None
    assert targets.too_late({"r1"}, 500.0, 5.7) == []
    ((request_id, error),) = targets.too_late({"r1"}, 3000.0, 5.9)
    assert (request_id, error.retry_after_s) == ("r1", 3)
    assert "expected 4100" in str(error)
    assert targets.too_late({"r1"}, 500.0, 9.9) == []
    assert (tracker.statistics().results["refused"], len(targets)) == (1, 0)


def test_what_it_waited_before_counts() -> None:
    targets, tracker = make()
    tracker.arrive("r1", Targets(1000.0), 4.5)

    assert targets.offer(held(), 700.0, 5.0) is not None


def test_the_urgent_wait_longer() -> None:
    targets, _ = make()

    assert targets.offer(held("plain"), 900.0, 0.0) is not None
    assert targets.offer(held("urgent", priority=4), 900.0, 0.0) is None


def test_those_that_wait_no_longer_are_forgotten() -> None:
    targets, _ = make()
    targets.offer(held("r1"), 0.0, 0.0)
    targets.offer(held("r2"), 0.0, 3600.0)

    assert (targets.too_late({"r2"}, 0.0, 1.0), len(targets)) == ([], 1)
    assert (targets.too_late((), 0.0, 1.0), len(targets)) == ([], 0)


def test_nothing_is_refused_without_a_target_of_the_first_token_or_by_choice() -> None:
    targets, tracker = make()
    assert targets.offer(held(ttft_ms=None), 1e9, 0.0) is None
    kept, _ = make(0.0)
    assert kept.offer(held(), 1e9, 0.0) is None

    assert (len(targets), len(kept)) == (0, 0)
    assert "r1" in tracker.open
