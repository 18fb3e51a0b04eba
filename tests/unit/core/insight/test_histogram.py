import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import Histogram
from kvmesh.core.insight.histogram import MICROSECONDS, SECONDS


def test_a_bound_belongs_to_its_bin() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)

    assert histogram.cumulative() == [(1.0, 2), (2.0, 4), (float("inf"), 5)]
    assert histogram.total == 14.0


def test_bounds_must_grow() -> None:
    with pytest.raises(ValueError, match="the bounds of a histogram rise"):
        Histogram((1.0, 1.0))


@pytest.mark.parametrize("bounds", [SECONDS, MICROSECONDS])
@given(values=st.lists(st.floats(0.0, 1e6), max_size=50))
def test_nothing_is_lost(bounds: tuple[float, ...], values: list[float]) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)

    for bound, count in histogram.cumulative():
        assert count == sum(value <= bound for value in values)
