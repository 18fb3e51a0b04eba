"""The compiled histogram counts as the naive one, and totals have rows of a second's fields."""

from hypothesis import given
from hypothesis import strategies as st

from kvmesh import _native
from kvmesh.core.insight.histogram import SECONDS, TOKENS
from kvmesh.core.insight.traffic import KEPT_S, TrafficSecond
from tests.reference.insight.histogram import Histogram


@given(st.lists(st.floats(-1.0, 200.0) | st.sampled_from(SECONDS)))
def test_histograms_count_alike(values: list[float]) -> None:
    naive, native = Histogram(SECONDS), _native.Histogram(SECONDS)

    for value in values:
        naive.observe(value)
        native.observe(value)

    assert naive.cumulative() == native.cumulative()
    assert naive.total == native.total


def test_a_row_of_totals_is_a_traffic_second() -> None:
    totals = _native.Totals(KEPT_S, SECONDS, TOKENS)
    totals.refused(7.5)

    assert [TrafficSecond(*row) for row in totals.rows(0)] == [TrafficSecond(7, refused=1)]
