"""Single misfortunes, one at a time, on an otherwise calm day."""

from collections.abc import Sequence

import msgspec
import pytest

from kvmesh.actors.kernel import Actor
from kvmesh.core.blocks.events import ROOT, Stored, WorkerId
from kvmesh.core.members.worker_info import Trust
from tests.doubles.sim.driver import Birth
from tests.doubles.sim.faults import SimFaults
from tests.simulation.planes.event_plane import EventPlane

W0 = WorkerId("w0")


def reset_idle(*, seed: int = 1, busy_s: float = 3.0, replicas: int = 2) -> EventPlane:
    """Return a plane whose engines worked for `busy_s` and whose replicas know all of it."""
    plane = EventPlane(seed, SimFaults(), replicas=replicas)
    plane.run_engines(steps=int(busy_s * 20), every_s=0.05)
    plane.sim.run(busy_s + 2.0)
    assert plane.is_settled(), plane.differences()
    return plane


def settles_within(plane: EventPlane, limit_s: float) -> bool:
    assert plane.sim.run_until(plane.is_settled, limit_s), plane.differences()
    return True


def device_runs(plane: EventPlane) -> list[Stored]:
    events = plane.publisher(W0).dump()
    return [event for event in events if isinstance(event, Stored) and event.tier == 0]


def test_a_corrupted_index_is_noticed_by_its_peer_and_healed() -> None:
    plane = reset_idle()
    plane.sim.on_step.clear()
    index = plane.indexer("r0").replica.index
    index.apply(W0, Stored(ROOT, b"not held"))  # What no event of the engine takes away again.
    plane.run_engines(steps=3, every_s=0.2)

    plane.sim.run(plane.sim.now + 3.0)

    mismatches = [plane.indexer(one).statistics().mismatches for one in plane.routers]
    assert any(mismatches)
    assert plane.sim.logged["replicas disagree about the index"]
    assert settles_within(plane, 10.0)


def test_a_worker_whose_clock_went_back_outruns_its_own_past() -> None:
    plane = reset_idle()
    process = plane.sim.processes[W0]
    build = process.plan.build

    def earlier(birth: Birth) -> Sequence[Actor]:
        return build(Birth(0, birth.now, birth.seed))

    process.plan = msgspec.structs.replace(process.plan, build=earlier)
    plane.sim.kill(process)
    plane.sim.start(process)
    plane.run_engines(steps=20, every_s=0.05)

    assert settles_within(plane, 15.0)
    assert plane.publisher(W0).heartbeat().epoch > 10


def started_again_with(plane: EventPlane, incarnation: int) -> None:
    """Start a worker's sidecar again at once, as if it were its so-many-th life."""
    process = plane.sim.processes[W0]
    build = process.plan.build

    def again(birth: Birth) -> Sequence[Actor]:
        return build(Birth(incarnation, birth.now, birth.seed))

    process.plan = msgspec.structs.replace(process.plan, build=again)
    plane.sim.kill(process)
    plane.sim.start(process)


@pytest.mark.parametrize("incarnation", [0, 1])
def test_a_sidecar_with_a_low_epoch_or_its_predecessors_is_exact_at_once(incarnation: int) -> None:
    plane = reset_idle()

    started_again_with(plane, incarnation)
    plane.run_engines(steps=20, every_s=0.05)

    assert settles_within(plane, 2.0)
    assert plane.publisher(W0).heartbeat().epoch == 11 + (incarnation == 1)


def test_a_former_sidecar_that_still_speaks_does_not_outbid_its_successor() -> None:
    plane = reset_idle()
    former = plane.publisher(W0).heartbeat()
    started_again_with(plane, 0)
    plane.sim.run(plane.sim.now + 1.0)
    epoch = plane.publisher(W0).heartbeat().epoch
    dumps = plane.publisher(W0).statistics().sender.dumps

    for _ in range(10):
        for router in plane.routers:
            process = plane.sim.processes[router]
            plane.sim.deliver(process, process.incarnation, "registry", former)
        plane.sim.run(plane.sim.now + 0.5)

    assert plane.publisher(W0).heartbeat().epoch == epoch
    assert plane.publisher(W0).statistics().sender.dumps == dumps
    assert settles_within(plane, 1.0)


def test_a_router_restarted_with_every_worker_down_knows_all_they_held() -> None:
    plane = reset_idle()
    before = plane.indexer("r1").replica.claim()
    for worker in plane.engines:
        plane.sim.kill(plane.sim.processes[worker])
    router = plane.sim.processes["r0"]
    plane.sim.kill(router)
    plane.sim.start(router)

    plane.sim.run(plane.sim.now + 1.0)

    assert plane.indexer("r0").caught_up
    assert plane.indexer("r0").replica.claim() == before
    trusts = {plane.indexer("r0").trust(worker, plane.sim.now) for worker in plane.engines}
    assert trusts == {Trust.EXACT}


def test_a_long_outage_of_the_journal_costs_bounded_memory_and_one_dump() -> None:
    plane = reset_idle()
    dumps = plane.publisher(W0).statistics().sender.dumps
    plane.sim.processes[W0].cut_off_s = plane.sim.now + 20.0
    plane.run_engines(steps=400, every_s=0.05)
    most = 0
    while plane.sim.now < plane.sim.processes[W0].cut_off_s:
        plane.sim.run(plane.sim.now + 0.5)
        sender = plane.publisher(W0).statistics().sender
        most = max(most, sender.pending + sender.window.in_flight)

    assert most <= 64 + 16
    assert settles_within(plane, 10.0)
    assert plane.publisher(W0).statistics().sender.dumps == dumps + 1


def test_a_replica_that_joins_after_a_purge_gets_what_it_missed_from_the_workers() -> None:
    plane = reset_idle(replicas=1)
    plane.journal.purge(plane.journal.last_sequence)
    plane.add_router("r9")

    assert settles_within(plane, 5.0)
    assert plane.indexer("r9").statistics().resyncs_asked > 0


def test_several_replicas_that_miss_the_same_cause_one_dump() -> None:
    plane = reset_idle(replicas=1)
    dumps = plane.publisher(W0).statistics().sender.dumps
    plane.sim.run(plane.sim.now + 15.0)
    plane.journal.purge(plane.journal.last_sequence)
    for router in ("r7", "r8", "r9"):
        plane.add_router(router)

    assert settles_within(plane, 5.0)
    assert plane.publisher(W0).statistics().sender.dumps == dumps + 1


def test_a_worker_gone_for_long_is_dropped_and_known_again_when_it_returns() -> None:
    plane = reset_idle()
    plane.sim.processes[W0].cut_off_s = plane.sim.now + 90.0
    plane.sim.run(plane.sim.now + 80.0)
    replica = plane.indexer("r0").replica
    assert replica.index.blocks(W0) == 0
    assert W0 not in replica.cursors()

    plane.sim.run(plane.sim.now + 10.0)

    assert settles_within(plane, 6.0)


def test_a_worker_unreachable_for_a_minute_keeps_its_blocks() -> None:
    plane = reset_idle()
    replica = plane.indexer("r0").replica
    blocks = replica.index.blocks(W0)
    plane.sim.processes[W0].cut_off_s = plane.sim.now + 50.0

    plane.sim.run(plane.sim.now + 49.0)

    assert replica.index.blocks(W0) == blocks > 0


def test_an_engine_whose_history_is_lost_is_degraded_until_it_starts_over() -> None:
    plane = reset_idle()
    engine = plane.engines[W0]
    engine.first_batch = len(engine.batches)
    sidecar = plane.sim.processes[W0]
    plane.sim.kill(sidecar)
    plane.sim.start(sidecar)
    plane.sim.run(plane.sim.now + 3.0)
    trusts = {plane.indexer(one).trust(W0, plane.sim.now) for one in plane.routers}
    assert trusts == {Trust.DEGRADED}

    engine.restart()

    assert settles_within(plane, 5.0)


def test_a_server_that_forgets_what_it_acknowledged_is_found_out_by_heartbeats() -> None:
    plane = reset_idle()
    late = plane.sim.processes["r1"]
    late.frozen_s = plane.sim.now + 2.0
    plane.run_engines(steps=4, every_s=0.1)
    plane.sim.run(plane.sim.now + 1.0)
    plane.journal.truncate(plane.journal.last_sequence - 3)

    assert settles_within(plane, 8.0)


def test_dumps_hold_what_was_published() -> None:
    plane = reset_idle()

    dumped = sum(len(run.hashes) // 8 for run in device_runs(plane))

    assert dumped == plane.indexer("r0").replica.index.blocks(W0) > 0
