import random

import pytest

from tests.doubles.sim.faults import SimFaults, draw_plan
from tests.simulation.planes.event_plane import EventPlane
from tests.simulation.seeds import seeds

STORM_S = 6.0
SETTLE_S = 10.0
SEEDS = 200


def storm(seed: int) -> EventPlane:
    plane = EventPlane(seed, draw_plan(random.Random(seed), STORM_S), workers=2 + seed % 2)
    # Engines fall silent some time before the storm ends: what is lost last has no successor.
    plane.run_engines(steps=60, every_s=(0.5 + 0.5 * random.Random(seed).random()) * STORM_S / 60)
    plane.sim.run(STORM_S)
    return plane


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_every_replica_follows_every_worker_through_a_storm(seed: int) -> None:
    plane = storm(seed)

    settled = plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)

    assert settled, plane.differences()


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = storm(3), storm(3)

    assert first.sim.steps == second.sim.steps
    assert first.sim.fingerprint == second.sim.fingerprint


def test_without_faults_replicas_follow_within_a_blink() -> None:
    plane = EventPlane(1, SimFaults())
    plane.run_engines(steps=20, every_s=0.1)
    plane.sim.run(2.1)

    assert plane.is_settled(), plane.differences()
