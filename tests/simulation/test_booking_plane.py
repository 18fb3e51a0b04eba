import random

import pytest

from kvmesh.testing.sim.faults import SimFaults, draw_plan
from tests.simulation.planes.booking_plane import LEASE_S, BookingPlane

STORM_S = 6.0
SETTLE_S = 10.0


@pytest.mark.parametrize("seed", range(60))
def test_every_replica_knows_every_booking_after_a_storm(seed: int) -> None:
    plan = draw_plan(random.Random(seed), STORM_S)
    plane = BookingPlane(seed, plan, replicas=2 + seed % 2, stop_s=STORM_S)
    plane.sim.run(STORM_S)

    settled = plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)

    assert settled, plane.differences()
    # Requests that never end are booked for as long as they run.
    plane.sim.run(plane.sim.now + LEASE_S)
    assert plane.is_settled(), plane.differences()


def test_requests_outlive_their_lease_while_they_run() -> None:
    plane = BookingPlane(1, SimFaults(), replicas=2, stop_s=2.0)
    plane.sim.run(3.0)
    before = plane.view("r0")

    plane.sim.run(3.0 + 5 * LEASE_S)

    assert before
    assert plane.view("r0") == before
    assert plane.is_settled()


def test_a_dead_replicas_bookings_are_gone_within_five_seconds() -> None:
    plane = BookingPlane(1, SimFaults(), replicas=2, stop_s=2.0)
    plane.sim.run(3.0)
    plane.sim.kill(plane.sim.processes["r1"])
    assert any(one[-1] == "r1" for one in plane.view("r0"))

    plane.sim.run(8.0)

    assert not any(one[-1] == "r1" for one in plane.view("r0"))


def test_a_booking_reaches_the_other_replica_within_twenty_milliseconds() -> None:
    plane = BookingPlane(1, SimFaults(), replicas=2, stop_s=2.0)
    plane.sim.run_until(lambda: len(plane.view("r0")) > 3, limit_s=2.0, check_s=0.001)
    booked = {one[0] for one in plane.view("r0") if one[-1] == "r0"}

    plane.sim.run(plane.sim.now + 0.02)

    ended = booked - {one[0] for one in plane.view("r0")}
    assert booked - ended <= {one[0] for one in plane.view("r1")}
