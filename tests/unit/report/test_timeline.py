import pytest

from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.report.timeline import timeline


def outcome(
    sent_ms: float, *, cached: int = 0, worker: str = "w", error: str = ""
) -> RequestOutcome:
    return RequestOutcome(
        index=0,
        session="",
        sent_ms=sent_ms,
        lag_ms=0,
        latency_ms=10,
        ttft_ms=sent_ms or None,
        prompt_tokens=100,
        cached_tokens=cached,
        worker=worker,
        error=error,
    )


def test_every_success_is_in_one_window() -> None:
    outcomes = [outcome(10.0 * number) for number in range(101)] + [outcome(55, error="timeout")]

    windows = timeline(outcomes, 10)

    assert len(windows) == 10
    assert sum(window.requests for window in windows) == 101
    assert [window.start_s for window in windows][:2] == [0.0, 0.1]


def test_a_window_has_its_own_hit_rate_ttft_and_workers() -> None:
    windows = timeline(
        [outcome(0, worker="a"), outcome(1, cached=100, worker="b"), outcome(100, cached=50)], 2
    )

    assert windows[0].hit_rate == 0.5
    assert windows[0].workers == {"a": 1, "b": 1}
    assert windows[0].ttft_ms_p50 == pytest.approx(1)
    assert windows[1].ttft_ms_p90 == pytest.approx(100)
