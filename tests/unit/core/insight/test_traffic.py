from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import Totals
from kvmesh.core.insight.histogram import SECONDS, TOKENS
from kvmesh.core.insight.traffic import (
    Sketch,
    TrafficSecond,
    merge_seconds,
    share_of,
    sketch_quantile,
    sum_seconds,
)
from tests.reference.insight.totals import sketch_add


def seconds(totals: Totals, since: int = 0) -> list[TrafficSecond]:
    return [TrafficSecond(*row) for row in totals.rows(since)]


def sketch_of(durations: Sequence[float]) -> Sketch:
    """Return the sketch of first tokens that took so many ms."""
    sketch: Sketch = {}
    for duration in durations:
        sketch_add(sketch, duration)
    return sketch


def test_only_the_last_seconds_are_kept() -> None:
    totals = Totals(10, SECONDS, TOKENS)

    for second in range(100):
        totals.refused(second)

    assert [one.second for one in seconds(totals)] == list(range(90, 100))


@given(st.lists(st.floats(0.02, 1e6), min_size=1), st.floats(0.0, 1.0))
def test_a_sketch_knows_quantiles_to_a_few_percent(durations: list[float], share: float) -> None:
    exact = sorted(durations)[int(share * (len(durations) - 1))]

    assert sketch_quantile(sketch_of(durations), share) == pytest.approx(exact, rel=0.026)


def test_replicas_seconds_are_summed() -> None:
    one = TrafficSecond(3, finished=1, ttft={7: 1}, round_robin_ttft={7: 1})
    other = TrafficSecond(3, finished=2, ttft={7: 1, 9: 1}, round_robin_ttft={7: 1, 9: 1})

    third, fourth = merge_seconds([one, other, TrafficSecond(4, refused=1)])

    assert (third.second, third.finished, third.ttft) == (3, 3, {7: 2, 9: 1})
    assert (third.ttft, fourth.second, fourth.refused) == (third.round_robin_ttft, 4, 1)
    assert (one.finished, one.ttft) == (1, {7: 1})


def test_a_sketch_of_nothing_has_no_quantile_and_zero_is_tiny() -> None:
    assert sketch_quantile({}, 0.5) is None
    assert sketch_quantile(sketch_of([0.0]), 0.5) == pytest.approx(0.01, rel=0.05)


def test_all_seconds_are_summed_as_second_0() -> None:
    total = sum_seconds([TrafficSecond(3, finished=1), TrafficSecond(4, finished=2)])

    assert (total.second, total.finished, sum_seconds(())) == (0, 3, TrafficSecond(0))


def test_there_is_no_share_of_nothing() -> None:
    assert share_of(1, 4) == 0.25
    assert share_of(0, 0) is None
