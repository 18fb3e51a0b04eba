import random

import pytest

from kvmesh.actors.kernel import Effect
from kvmesh.actors.storage import FetchObject
from kvmesh.runtime.faults import FaultPlan, draw_plan
from kvmesh.runtime.sim import Process
from tests.simulation.snapshot_plane import SnapshotPlane

STORM_S = 6.0
SETTLE_S = 20.0
SEEDS = 60


@pytest.mark.parametrize("seed", range(SEEDS))
def test_snapshots_lose_nothing_through_a_storm(seed: int) -> None:
    plane = SnapshotPlane(seed, draw_plan(random.Random(seed), STORM_S))
    plane.run_engines(steps=60, every_s=STORM_S / 75)
    plane.sim.run(STORM_S)

    settled = plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)

    assert settled, plane.differences()
    newest = plane.manifest().generations[:1]
    plane.run_engines(steps=5, every_s=0.1)
    goes_on = plane.sim.run_until(
        lambda: plane.manifest().generations[:1] != newest, limit_s=SETTLE_S
    )
    assert goes_on, "no snapshot after the storm"
    assert plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S), plane.differences()


def test_snapshots_are_taken_and_the_journal_is_purged_behind_them() -> None:
    plane = SnapshotPlane(1, FaultPlan())
    plane.run_engines(steps=60, every_s=0.1)
    plane.sim.run(8.0)

    assert plane.is_settled(), plane.differences()
    assert len(plane.manifest().generations) == 3
    assert plane.purges > 0
    assert len(plane.stores.objects) < 12


def test_a_new_replica_starts_from_the_snapshot_of_a_purged_journal() -> None:
    plane = SnapshotPlane(2, FaultPlan())
    plane.run_engines(steps=60, every_s=0.1)
    plane.sim.run(8.0)

    plane.add_router("late")
    settled = plane.sim.run_until(plane.is_settled, limit_s=2.0)

    assert settled, plane.differences()
    assert plane.lives("late") == (1,)


def test_a_holder_overtaken_while_paused_supersedes_nothing() -> None:
    plane = SnapshotPlane(4, FaultPlan())
    plane.run_engines(steps=120, every_s=0.1)
    plane.sim.run(4.0)
    fetch = plane.sim.carriers[FetchObject]
    paused: list[Process] = []

    def pause_and_remake(process: Process, actor: str, effect: Effect) -> None:
        fetch(process, actor, effect)
        if not paused:
            paused.append(process)
            process.frozen_s = plane.sim.now + 6.0
            # Sequences of another stream cannot be compared: only the fence tells who is later.
            plane.journal.recreate()

    plane.sim.carriers[FetchObject] = pause_and_remake
    plane.sim.run(9.0)
    overtaken = plane.manifest().generations[0]
    plane.sim.run(14.0)

    assert paused
    assert overtaken.created == plane.journal.created
    assert plane.manifest().generations[0].fence >= overtaken.fence
    assert plane.sim.logged["snapshot given up"] == 1
    assert plane.sim.run_until(plane.is_settled, limit_s=10.0), plane.differences()


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_bad_objects_are_passed_over_for_older_ones(bad: int) -> None:
    plane = SnapshotPlane(3, FaultPlan())
    plane.run_engines(steps=60, every_s=0.1)
    plane.sim.run(8.0)
    for one in plane.manifest().generations[:bad]:
        plane.rot(one.name)

    plane.add_router("late")
    settled = plane.sim.run_until(plane.is_settled, limit_s=20.0)

    assert settled, plane.differences()
