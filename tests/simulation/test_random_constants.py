"""Storms with constants drawn from the seed, and a clock for each process: exact again without an
engine being touched.
"""

import random

import msgspec
import pytest

from tests.doubles.sim.faults import SimFaults, draw_plan
from tests.simulation.planes.booking_plane import BookingPlane
from tests.simulation.planes.constants import DRIFT, SKEW_S, draw_constants
from tests.simulation.planes.event_plane import EventPlane
from tests.simulation.planes.liveness_plane import LivenessPlane
from tests.simulation.planes.snapshot_plane import SnapshotPlane
from tests.simulation.seeds import seeds
from tests.simulation.test_liveness_plane import OF_JOURNALS

STORM_S = 6.0
LIVENESS_S = 15.0
SETTLE_S = 60.0
"""The slowest of drawn pauses is 10 s, and some wait for each other."""


def storm(seed: int) -> SimFaults:
    plan = draw_plan(random.Random(seed), STORM_S)
    return msgspec.structs.replace(plan, skew_s=SKEW_S, drift=DRIFT)


def run(plane: EventPlane, seed: int) -> None:
    for engine in plane.engines.values():
        engine.restarts = False
    plane.run_engines(steps=60, every_s=(0.5 + 0.5 * random.Random(seed).random()) * STORM_S / 60)
    plane.sim.run(STORM_S)


@pytest.mark.parametrize("seed", seeds(40))
def test_every_worker_is_exact_again_whatever_the_constants(seed: int) -> None:
    constants = draw_constants(random.Random(seed))
    plane = EventPlane(seed, storm(seed), workers=2 + seed % 2, constants=constants)
    run(plane, seed)

    settled = plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)

    assert settled, (constants, plane.differences())
    assert {engine.generation for engine in plane.engines.values()} == {1}


@pytest.mark.parametrize("seed", seeds(24))
def test_with_snapshots_every_worker_is_exact_again(seed: int) -> None:
    constants = draw_constants(random.Random(seed))
    plane = SnapshotPlane(seed, storm(seed), workers=2 + seed % 2, constants=constants)
    run(plane, seed)

    settled = plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)

    assert settled, (constants, plane.differences())
    assert {engine.generation for engine in plane.engines.values()} == {1}


@pytest.mark.parametrize("seed", seeds(24))
def test_every_replica_knows_every_booking_whatever_the_constants(seed: int) -> None:
    constants = draw_constants(random.Random(seed))
    plane = BookingPlane(
        seed, storm(seed), replicas=2 + seed % 2, stop_s=STORM_S, constants=constants
    )
    plane.sim.run(STORM_S)

    settled = plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)

    assert settled, (constants, plane.differences())


@pytest.mark.parametrize("seed", seeds(24))
def test_who_answers_is_served_whatever_the_clocks_say(seed: int) -> None:
    plan = draw_plan(random.Random(seed), LIVENESS_S, OF_JOURNALS)
    plan = msgspec.structs.replace(plan, skew_s=SKEW_S, drift=DRIFT)
    plane = LivenessPlane(seed, plan, workers=1 + seed % 3, routers=1 + seed % 2)
    plane.sim.run(LIVENESS_S)

    assert plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)


def test_each_life_of_a_process_has_a_clock_of_its_own() -> None:
    sim = EventPlane(7, SimFaults(skew_s=SKEW_S, drift=DRIFT)).sim
    process = sim.processes["r0"]
    before = [one.time(0.0) for one in sim.processes.values()]

    sim.run(10.0)
    after_s, rate = process.time(sim.now), process.rate
    sim.kill(process)
    sim.start(process)

    assert len({*before}) == len(before)
    assert 0.0 <= min(before) < max(before) <= SKEW_S
    assert rate != 1.0
    assert abs(rate - 1.0) <= DRIFT
    assert after_s == pytest.approx(before[list(sim.processes).index("r0")] + 10.0 * rate)
    assert abs(process.time(sim.now) - after_s) > 1.0
