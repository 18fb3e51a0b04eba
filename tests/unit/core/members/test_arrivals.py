import pytest

from kvmesh._native import Arrivals
from tests.reference.workers.arrivals import HALF_LIFE_S


@pytest.fixture
def arrivals() -> Arrivals:
    return Arrivals()


def test_a_steady_stream_is_counted_as_it_comes(arrivals: Arrivals) -> None:
    for number in range(2000):
        arrivals.fold(number * 0.05)

    assert arrivals.per_ms(100.0) == pytest.approx(0.02, rel=0.02)
    assert arrivals.per_ms(100.0 + HALF_LIFE_S) == pytest.approx(0.01, rel=0.02)


def test_the_rate_of_a_stream_just_begun_is_known_within_seconds(arrivals: Arrivals) -> None:
    for number in range(100):
        arrivals.fold(1e6 + number * 0.05)

    assert arrivals.per_ms(1e6 + 5.0) == pytest.approx(0.02, rel=0.1)


def test_a_first_request_tells_of_no_high_rate(arrivals: Arrivals) -> None:
    arrivals.fold(1e6)

    assert arrivals.per_ms(1e6) == pytest.approx(0.002, rel=0.05)


def test_nothing_came_at_first_and_a_clock_that_steps_back_stands_still(arrivals: Arrivals) -> None:
    assert arrivals.per_ms(5.0) == 0.0

    arrivals.fold(100.0)
    arrivals.fold(50.0)

    assert arrivals.per_ms(50.0) == arrivals.per_ms(100.0) > 0.0
