import random
from functools import partial

import pytest

from kvmesh.actors.kernel import Effect
from kvmesh.actors.messages import Reload
from kvmesh.actors.storage import FetchObject
from kvmesh.core.journal.lease import RENEW_S, TTL_S
from tests.doubles.sim.driver import Process
from tests.doubles.sim.faults import SimFaults, draw_plan
from tests.simulation.planes.snapshot_plane import KEY, LEASE_KEY, STEPS, SnapshotPlane
from tests.simulation.seeds import EVERY, seeds

STORM_S = 6.0
SETTLE_S = 20.0
SEEDS = 60


@pytest.mark.parametrize("seed", seeds(SEEDS))
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
    plane = SnapshotPlane(1, SimFaults())
    plane.run_engines(steps=60, every_s=0.1)
    plane.sim.run(8.0)

    assert plane.is_settled(), plane.differences()
    assert len(plane.manifest().generations) == 3
    assert plane.purges > 0
    assert len(plane.stores.objects) < 12


GARBAGE = {
    "an acknowledgement": b'{"stream":"KVMESH_EVENTS_code","seq":7}',
    "nothing": b"",
    "bad UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("key", [KEY, LEASE_KEY])
@pytest.mark.parametrize(("seed", "what"), list(enumerate(GARBAGE)))
def test_snapshots_go_on_after_garbage_in_manifest_or_lease(seed: int, what: str, key: str) -> None:
    plane = SnapshotPlane(seed, SimFaults())
    plane.run_engines(steps=200, every_s=0.1)
    plane.sim.run(4.0 + seed / 3)

    plane.put(key, GARBAGE[what])
    last = max(one.sequence for one in plane.manifests[-1].generations)

    def goes_on() -> bool:
        return any(one.sequence > last for one in plane.manifest().generations)

    assert plane.sim.run_until(goes_on, limit_s=TTL_S + RENEW_S + 1.0), "no snapshot any more"
    assert plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S), plane.differences()
    plane.sim.run(plane.sim.now + 3.0)
    assert len(plane.manifest().generations) == 3


def test_a_lease_that_is_overwritten_each_second_stops_no_snapshots() -> None:
    plane = SnapshotPlane(3, SimFaults())
    plane.run_engines(steps=300, every_s=0.1)
    plane.sim.run(2.0)
    before = plane.manifest().generations[0].sequence

    for _ in range(20):
        plane.put(LEASE_KEY, GARBAGE["an acknowledgement"])
        plane.sim.run(plane.sim.now + 1.0)

    assert plane.manifest().generations[0].sequence > before + 60
    assert plane.is_settled(), plane.differences()


def test_the_lease_of_a_replica_that_never_comes_back_does_not_stand_for_ever() -> None:
    plane = SnapshotPlane(4, SimFaults())
    plane.run_engines(steps=200, every_s=0.1)
    plane.sim.run(4.0)
    plane.put(LEASE_KEY, b"gone")
    before = plane.manifest().generations[0].sequence

    plane.sim.run(plane.sim.now + 2 * TTL_S + 3.0)

    assert plane.manifest().generations[0].sequence > before


def test_a_new_replica_starts_from_the_snapshot_of_a_purged_journal() -> None:
    plane = SnapshotPlane(2, SimFaults())
    plane.run_engines(steps=60, every_s=0.1)
    plane.sim.run(8.0)

    plane.add_router("late")
    settled = plane.sim.run_until(plane.is_settled, limit_s=2.0)

    assert settled, plane.differences()
    assert plane.lives("late") == (1,)


def test_a_holder_overtaken_while_paused_supersedes_nothing() -> None:
    plane = SnapshotPlane(4, SimFaults())
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


def test_what_the_former_tail_brings_after_a_snapshot_was_loaded_is_not_applied() -> None:
    plane = SnapshotPlane(6, SimFaults(until_s=20.0, late_tail=1.0, slow_s=(0.5, 0.5)))
    plane.run_engines(steps=200, every_s=0.04)
    plane.sim.run(4.0)
    router = plane.sim.processes["r0"]
    ignored = plane.indexer("r0").replica.statistics().redelivered

    plane.sim.deliver(router, router.incarnation, "loader", Reload("asked for"))
    plane.sim.run(12.0)

    assert plane.lives("r0") == (1,)
    assert plane.indexer("r0").replica.statistics().redelivered > ignored
    assert plane.is_settled(), plane.differences()


@pytest.mark.parametrize(
    ("step", "late"),
    [
        (step, late)
        for n, step in enumerate(STEPS)
        for late in (False, True)
        if EVERY or late == n % 2
    ],
)
def test_a_holder_that_stands_still_at_any_step_does_no_harm(
    step: type[Effect], late: bool
) -> None:
    """It is overtaken meanwhile; `late`: the step itself is carried out after the pause."""
    plane = SnapshotPlane(5, SimFaults())
    plane.run_engines(steps=150, every_s=0.1)
    plane.sim.run(4.0)
    carrier = plane.sim.carriers[step]
    paused: list[Process] = []

    def pause(process: Process, actor: str, effect: Effect) -> None:
        is_step = actor == "snapshotter" and getattr(effect, "key", KEY) == KEY
        if paused or not is_step:
            carrier(process, actor, effect)
            return
        paused.append(process)
        process.frozen_s = plane.sim.now + 4.0
        if late:
            plane.sim.at(4.0, partial(carrier, process, actor, effect))
        else:
            carrier(process, actor, effect)

    plane.sim.carriers[step] = pause
    plane.sim.run(12.0)
    fences = {one.generations[0].fence for one in plane.manifests if one.generations}
    plane.sim.run(16.0)

    assert paused
    assert len(fences) > 1, "nobody took over"
    assert plane.sim.run_until(plane.is_settled, limit_s=10.0), plane.differences()


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_bad_objects_are_passed_over_for_older_ones(bad: int) -> None:
    plane = SnapshotPlane(3, SimFaults())
    plane.run_engines(steps=60, every_s=0.1)
    plane.sim.run(8.0)
    for one in plane.manifest().generations[:bad]:
        plane.rot(one.name)

    plane.add_router("late")
    settled = plane.sim.run_until(plane.is_settled, limit_s=20.0)

    assert settled, plane.differences()
