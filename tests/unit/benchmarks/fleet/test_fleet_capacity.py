import msgspec
import pytest

from benchmarks.fleet.capacity import (
    USED,
    most_blocks_s,
    most_chunks_s,
    most_requests_s,
    most_workers,
)
from benchmarks.fleet.costs import PlaneCosts, RequestCosts
from benchmarks.fleet.plane import Fleet, Plane

REQUEST = RequestCosts(own_us=50.0, sibling_us=2.0, booking_bytes=100.0, blocks=4.0)


@pytest.mark.parametrize("replicas", [1, 2, 8])
@pytest.mark.parametrize("events", [True, False])
def test_a_fleet_at_its_capacity_is_that_busy(replicas: int, events: bool) -> None:
    fleet = Fleet(workers=100, replicas=replicas, events=events)
    rate = most_requests_s(fleet, REQUEST, PlaneCosts())

    load = Plane(msgspec.structs.replace(fleet, requests_s=rate), REQUEST, PlaneCosts()).run(0.5)

    assert load.replica == pytest.approx(USED, rel=0.07)


def test_figures_of_one_kind_are_of_one_cost() -> None:
    costs = PlaneCosts(chunk_us=10.0, block_us=0.5, record_us=32.0, worker_beat_us=40.0)

    assert most_chunks_s(2, costs) == 160_000
    assert most_blocks_s(costs) == 800_000
    assert most_workers(Fleet(batch_s=0.05), costs) == pytest.approx(800_000 / 680)
