import pytest

from kvmesh._native import Arrivals

HALF_LIFE_S = 10.0


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


def test_a_time_that_goes_back_lets_nothing_decay_twice(arrivals: Arrivals) -> None:
    steady = Arrivals()
    for now in (10.0, 5.0, 10.0):
        arrivals.fold(now)
        steady.fold(10.0)

    assert arrivals.per_ms(15.0) == steady.per_ms(15.0)
