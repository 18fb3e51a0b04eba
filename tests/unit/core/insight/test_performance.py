import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.performance import Performance, performance_of, score_of
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
