"""Thousands of storms, for `make chaos`: other seeds than the suite's, and longer."""

import random

import pytest

from tests.doubles.sim.faults import draw_plan
from tests.simulation.planes.booking_plane import BookingPlane
from tests.simulation.planes.event_plane import EventPlane

pytestmark = pytest.mark.chaos

BLOCK = 100
BLOCKS = 30


@pytest.mark.parametrize("block", range(BLOCKS))
def test_replicas_follow_workers_through_thousands_of_storms(block: int) -> None:
    for seed in range(10_000 + block * BLOCK, 10_000 + (block + 1) * BLOCK):
        rng = random.Random(seed)
        storm_s = 4.0 + 10.0 * rng.random()
        plane = EventPlane(
            seed, draw_plan(rng, storm_s), workers=1 + seed % 3, replicas=2 + seed % 2
        )
        plane.run_engines(steps=int(8 * storm_s), every_s=0.1)
        plane.sim.run(storm_s)
        settled = plane.sim.run_until(plane.is_settled, limit_s=12.0)
        assert settled, (seed, plane.differences())


@pytest.mark.parametrize("block", range(BLOCKS))
def test_bookings_are_shared_through_thousands_of_storms(block: int) -> None:
    for seed in range(10_000 + block * BLOCK, 10_000 + (block + 1) * BLOCK):
        rng = random.Random(seed)
        plane = BookingPlane(seed, draw_plan(rng, 6.0), replicas=2 + seed % 2, stop_s=6.0)
        plane.sim.run(6.0)
        settled = plane.sim.run_until(plane.is_settled, limit_s=12.0)
        assert settled, (seed, plane.differences())
