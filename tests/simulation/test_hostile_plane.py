"""Whoever holds one key can neither end an actor nor part the replicas, nor stop a snapshot."""

import msgspec
import pytest

from kvmesh.core.blocks.events import VERSION
from tests.doubles.sim.faults import SimFaults
from tests.simulation.planes.event_plane import SUBJECTS
from tests.simulation.planes.hostile import HostilePlane
from tests.simulation.planes.snapshot_plane import SnapshotPlane

STORM_S = 4.0
SETTLE_S = 30.0
SEEDS = 8
U64 = 2**64 - 1


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_storm_of_hostile_records_ends_nobody_and_the_honest_are_followed(seed: int) -> None:
    plane = HostilePlane(seed, STORM_S)
    plane.run_engines(steps=40, every_s=STORM_S / 40)
    plane.sim.run(STORM_S)

    settled = plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)

    assert settled, plane.differences()
    assert plane.acts > 100


def test_a_record_beyond_the_last_number_stops_no_snapshot_also_after_a_restart() -> None:
    """`first_seq` 2^64-1 once ended each replica that snapshots, and again when it had started."""
    plane = SnapshotPlane(1, SimFaults())
    for epoch, first_seq in ((1, U64), (1, 2**63), (U64, 1), (2**62, 2**62)):
        poison = msgspec.msgpack.encode([VERSION, epoch, first_seq, [[2]]])
        plane.journal.store(SUBJECTS.events("odd"), poison)
    plane.run_engines(steps=30, every_s=0.1)
    plane.sim.run(5.0)
    first = len(plane.manifest().generations)

    plane.add_router("late")
    settled = plane.sim.run_until(plane.is_settled, limit_s=5.0)

    assert settled, plane.differences()
    assert first > 1
    garbage = {plane.indexer(one).replica.statistics().garbage for one in ("r0", "r1")}
    assert garbage == {4}, "all refuse the same records"
    assert plane.sim.logged["message refused"] >= 2
