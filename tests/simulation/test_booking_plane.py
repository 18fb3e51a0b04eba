import random
from functools import partial

import pytest

from kvmesh.formats import FIRST, Formats
from tests.doubles.sim.faults import SimFaults, draw_plan
from tests.simulation.planes.booking_plane import LEASE_S, NEXT, BookingPlane
from tests.simulation.seeds import seeds

STORM_S = 6.0
SETTLE_S = 10.0


@pytest.mark.parametrize("seed", seeds(60))
def test_every_replica_knows_every_booking_after_a_storm(seed: int) -> None:
    plan = draw_plan(random.Random(seed), STORM_S)
    plane = BookingPlane(seed, plan, replicas=2 + seed % 2, stop_s=STORM_S)
    plane.sim.run(STORM_S)

    settled = plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)

    assert settled, plane.differences()
    # Requests that never end are booked for as long as they run.
    plane.sim.run(plane.sim.now + LEASE_S)
    assert plane.is_settled(), plane.differences()
    assert plane.formats() == {2}


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


UPGRADED_S = 3.0
OLD = {"r0": (0.0, UPGRADED_S), "r1": (UPGRADED_S, 1e9), "r2": (0.0, 1e9)}
"""From when to when a replica is of an older version: r0 is upgraded, r1 rolled back."""


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("seed", seeds(32))
def test_replicas_of_two_versions_know_every_booking_of_each_other(
    seed: int, replicas: int
) -> None:
    plan = draw_plan(random.Random(seed), STORM_S)

    def formats(router: str, now: float) -> Formats:
        since_s, until_s = OLD[router]
        return FIRST if since_s <= now < until_s else NEXT

    plane = BookingPlane(seed, plan, replicas=replicas, stop_s=STORM_S, formats=formats)
    for router in ("r0", "r1"):
        plane.sim.at(UPGRADED_S, partial(plane.sim.crash, plane.sim.processes[router]))
    plane.sim.run(STORM_S)

    settled = plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)

    assert settled, plane.differences()
    assert plane.formats() == {1}
    assert plane.garbage() < 40


def test_a_fleet_that_is_upgraded_tells_in_the_newer_format_from_then_on() -> None:
    def formats(router: str, now: float) -> Formats:
        return FIRST if router == "r0" and now < UPGRADED_S else NEXT

    plane = BookingPlane(3, SimFaults(), replicas=2, stop_s=STORM_S, formats=formats)
    plane.sim.run(UPGRADED_S)
    before = plane.formats()
    plane.sim.crash(plane.sim.processes["r0"])

    plane.sim.run(STORM_S + 2.0)

    assert before == {1}
    assert plane.formats() == {2}
    assert plane.is_settled(), plane.differences()
    assert not plane.garbage()
