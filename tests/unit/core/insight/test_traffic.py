import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.insight.traffic import (
    Sketch,
    Traffic,
    TrafficSecond,
    merge_seconds,
    share_of,
    sketch_add,
    sketch_quantile,
    sum_seconds,
)


def test_one_second_is_counted_in_one_place() -> None:
    traffic = Traffic()

    traffic.at(7.1).requests += 1
    traffic.at(7.9).requests += 1
    traffic.at(8.0).requests += 1

    assert [(one.second, one.requests) for one in traffic.since(0)] == [(7, 2), (8, 1)]
    assert [one.second for one in traffic.since(8)] == [8]


def test_only_the_last_seconds_are_kept() -> None:
    traffic = Traffic(kept_s=10)

    for second in range(100):
        traffic.at(second)

    assert [one.second for one in traffic.since(0)] == list(range(90, 100))


def test_a_late_count_finds_its_own_second() -> None:
    traffic = Traffic()
    traffic.at(9.0)

    traffic.at(5.0).finished += 1

    assert [one.second for one in traffic.since(0)] == [5, 9]


@given(st.lists(st.floats(0.02, 1e6), min_size=1), st.floats(0.0, 1.0))
def test_a_sketch_knows_quantiles_to_a_few_percent(durations: list[float], share: float) -> None:
    sketch: Sketch = {}
    for duration in durations:
        sketch_add(sketch, duration)

    exact = sorted(durations)[int(share * (len(durations) - 1))]

    assert sketch_quantile(sketch, share) == pytest.approx(exact, rel=0.026)


def test_a_sketch_of_nothing_has_no_quantile_and_zero_is_tiny() -> None:
    sketch: Sketch = {}
    assert sketch_quantile(sketch, 0.5) is None

    sketch_add(sketch, 0.0)

    assert sketch_quantile(sketch, 0.5) == pytest.approx(0.01, rel=0.05)


def test_replicas_seconds_are_summed() -> None:
    one, other = Traffic(), Traffic()
    for traffic, ms in ((one, 10.0), (other, 10.0), (other, 1000.0)):
        second = traffic.at(3.0)
        second.finished += 1
        sketch_add(second.ttft, ms)
        sketch_add(second.round_robin_ttft, ms)
    other.at(4.0).refused += 1

    third, fourth = merge_seconds([*one.since(0), *other.since(0)])

    assert (third.second, third.finished, sorted(third.ttft.values())) == (3, 3, [1, 2])
    assert third.ttft == third.round_robin_ttft
    assert (fourth.second, fourth.refused) == (4, 1)
    assert one.at(3.0).finished == 1


def test_all_seconds_are_summed_as_second_0() -> None:
    traffic = Traffic()
    traffic.at(3.0).finished += 1
    traffic.at(4.0).finished += 2

    total = sum_seconds(traffic.since(0))

    assert (total.second, total.finished) == (0, 3)
    assert sum_seconds(()) == TrafficSecond(0)


def test_there_is_no_share_of_nothing() -> None:
    assert share_of(1, 4) == 0.25
    assert share_of(0, 0) is None
