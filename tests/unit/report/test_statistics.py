import pytest

from kvmesh_lab.report.outcome import UNKNOWN, RequestOutcome, percentile
from kvmesh_lab.report.statistics import Slo, meets, metrics, summarize


def outcome(
    index: int = 0,
    *,
    ttft_ms: float | None = 100.0,
    itl_ms: tuple[float, ...] = (10.0, 30.0),
    worker: str = "w0",
    cached: int = 50,
    error: str = "",
    overlap: int | None = None,
) -> RequestOutcome:
    return RequestOutcome(
        index=index,
        session="",
        sent_ms=1000.0 * index,
        lag_ms=1.0,
        latency_ms=500.0,
        ttft_ms=ttft_ms,
        itl_ms=itl_ms,
        prompt_tokens=100,
        cached_tokens=cached,
        output_tokens=3,
        worker=worker,
        overlap_blocks=overlap,
        status=200,
        error=error,
    )


def test_percentiles_are_linear_between_neighbours() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.9) == pytest.approx(3.7)
    assert percentile([7.0], 0.99) == 7.0


def test_time_per_token_counts_tokens_not_chunks() -> None:
    assert outcome(itl_ms=()).mean_itl_ms() is None
    assert outcome(itl_ms=(10.0, 30.0)).mean_itl_ms() == 20.0
    assert outcome(itl_ms=(40.0,)).mean_itl_ms() == 20.0


@pytest.mark.parametrize(
    ("found", "good"),
    [
        (outcome(), True),
        (outcome(error="timeout"), False),
        (outcome(ttft_ms=None), False),
        (outcome(ttft_ms=2001), False),
        (outcome(itl_ms=(150.0, 60.0)), False),
        (outcome(itl_ms=()), True),
    ],
)
def test_a_request_is_good_within_both_bounds(found: RequestOutcome, good: bool) -> None:
    assert meets(found, Slo()) is good


def test_a_summary_counts_successes_and_names_failures() -> None:
    outcomes = [
        outcome(0, worker="w0", cached=0, overlap=2),
        outcome(1, worker="w1", cached=100, overlap=4),
        outcome(2, worker="w1", cached=80),
        outcome(3, error="http 503", ttft_ms=None),
        outcome(4, error="http 503", ttft_ms=None),
        outcome(5, error="timeout", ttft_ms=None),
    ]

    summary = summarize(outcomes, Slo())

    assert (summary.requests, summary.succeeded) == (6, 3)
    assert summary.errors == {"http 503": 2, "timeout": 1}
    assert summary.hit_rate == 0.6
    assert summary.duration_s == 5.5
    assert summary.requests_per_s == pytest.approx(3 / 5.5)
    assert summary.output_tokens_per_s == pytest.approx(9 / 5.5)
    assert summary.goodput_share == 0.5
    assert summary.overlap_blocks == 3
    assert [(w.name, w.requests, w.hit_rate) for w in summary.workers] == [
        ("w0", 1, 0.0),
        ("w1", 2, 0.9),
    ]
    assert summary.imbalance == pytest.approx(100 / 60)
    assert [share.name for share in summary.routers] == [UNKNOWN]
    assert summary.lag_ms is not None
    assert summary.lag_ms.count == 6


def test_a_run_without_any_success_has_a_summary() -> None:
    for outcomes in ([], [outcome(error="connect", ttft_ms=None)]):
        summary = summarize(outcomes, Slo())

        assert summary.ttft_ms is None
        assert summary.hit_rate == 0
        assert summary.imbalance == 1
        assert summary.workers == ()
        assert {metric.value for metric in metrics(summary)} >= {None, 0}


def test_a_known_worker_that_served_nothing_counts_as_idle() -> None:
    summary = summarize([outcome(worker="a"), outcome(worker="a")], Slo(), {"a", "b"})

    assert [(worker.name, worker.requests) for worker in summary.workers] == [("a", 2), ("b", 0)]
    assert summary.imbalance == 2
    assert [w.request_share for w in summarize([], Slo(), {"b"}).workers] == [0]


def test_metrics_say_which_direction_is_good() -> None:
    found = {metric.name: metric for metric in metrics(summarize([outcome()], Slo()))}

    assert found["hit rate"].value == 50
    assert found["hit rate"].better == "higher"
    assert found["TTFT p90"].value == 100
    assert found["TTFT p90"].better == "lower"
    assert found["duration"].better is None
