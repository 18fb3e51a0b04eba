import pytest

from kvmesh.core.insight.weight_search import alike, quantile, score_of


def test_weights_are_alike_to_a_part_in_a_hundred() -> None:
    assert alike({"a": 1.0}, {"a": 1.005})
    assert alike({"a": 1.0, "b": 0.0}, {"a": 1.0})
    assert not alike({"a": 1.0}, {"a": 1.02})
    assert not alike({"a": 1.0}, {"a": 1.0, "b": 0.1})


def test_less_is_better_and_a_ms_counts_as_one_at_least() -> None:
    assert score_of(90.0, 9.0) == pytest.approx(90.0 * 9.0**0.25)
    assert score_of(0.1, 0.0) == 1.0


def test_of_nothing_there_is_no_quantile() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([], 0.5) is None
