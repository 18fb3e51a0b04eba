import pytest

from benchmarks.fleet.law import (
    Costs,
    mesh_rate,
    replicas_rate,
)

COSTS = Costs(alone=200.0, meta=50.0, replica=220.0, sibling=60.0)


def test_each_sibling_takes_its_share_of_a_replica() -> None:
    rates = [replicas_rate(COSTS, count) for count in (1, 2, 4)]

    assert rates == pytest.approx([5_000, 2e6 / 280, 4e6 / 400])


def test_processors_are_divided_among_replicas_and_meta_routers_as_serves_most() -> None:
    assert mesh_rate(COSTS, 1) == 5_000
    assert mesh_rate(COSTS, 4) == replicas_rate(COSTS, 3)
    expensive = Costs(alone=200.0, meta=190.0, replica=200.0, sibling=0.0)
    assert mesh_rate(expensive, 4) == pytest.approx(2e6 / 200)
