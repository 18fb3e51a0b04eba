import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.performance import Performance, performance_of, quantile, score_of
from kvmesh.core.insight.trace_ring import Traced, TraceRow


def test_performance_is_the_slowest_tenth() -> None:
    rows = [
        TraceRow(0.0, 0.0, 1, 1, WorkerId("w"), Traced(0, b""), float(n), n / 10 if n else None)
        for n in range(101)
    ]
    rows.append(TraceRow(0.0, 0.0, 1, 1, WorkerId("w"), Traced(0, b"")))

    found = performance_of(rows)

    assert found == Performance(102, 90.0, 9.0)
    assert found.score == score_of(90.0, 9.0) == pytest.approx(90.0 * 9.0**0.25)
    assert str(found) == "p90 TTFT 90 ms, p90 per token 9.0 ms"


def test_nothing_has_the_best_score() -> None:
    assert performance_of([]) == Performance(0, 0.0, 0.0)
    assert performance_of([]).score == 1.0
    assert quantile([], 0.5) is None
