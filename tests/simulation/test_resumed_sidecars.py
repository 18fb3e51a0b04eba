"""Sidecars that die beside engines which repeat only their last batches."""

import random

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.worker_info import Trust
from tests.doubles.sim.faults import SimFaults, draw_plan
from tests.simulation.planes.event_plane import EventPlane
from tests.simulation.seeds import seeds

W0 = WorkerId("w0")
STORM_S = 6.0
SETTLE_S = 10.0


class ShortBuffers(EventPlane):
    """Engines that repeat 12 batches, a fifth of what they publish."""

    buffer_steps = 12

    def is_right(self, worker: WorkerId) -> bool:
        """Whether every replica knows a worker exactly; or says that it does not, where a sidecar
        was away for longer than its engine repeats.
        """
        engine, kept = self.engines[worker], self.kept.get(worker)
        is_lost = kept is None or kept.seq < engine.first_batch
        trusts: set[Trust] = set()
        for router in self.routers:
            indexer = self.indexer(router)
            trusts.add(indexer.trust(worker, self.sim.now))
            holds = indexer.replica.index.worker_digest(worker)
            if Trust.EXACT in trusts and holds != engine.truth():
                return False
        return trusts == {Trust.EXACT} or (is_lost and trusts == {Trust.DEGRADED})

    def are_right(self) -> bool:
        alive = all(process.alive for process in self.sim.processes.values())
        return alive and all(map(self.is_right, self.engines))


def reset_idle(*, keeps: bool) -> ShortBuffers:
    plane = ShortBuffers(1, SimFaults())
    if keeps:
        plane.keep_checkpoints(every_s=0.2)
    plane.run_engines(steps=60, every_s=0.05)
    plane.sim.run(4.0)
    assert plane.is_settled(), plane.differences()
    return plane


def restart(plane: ShortBuffers) -> None:
    process = plane.sim.processes[W0]
    plane.sim.kill(process)
    plane.sim.start(process)


def test_a_sidecar_goes_on_from_what_was_kept_of_the_one_before() -> None:
    plane = reset_idle(keeps=True)

    for _ in range(3):
        restart(plane)
        plane.run_engines(steps=5, every_s=0.02)
        assert plane.sim.run_until(plane.is_settled, 2.0), plane.differences()

    assert plane.publisher(W0).statistics().resumed == 1


def test_without_that_nobody_calls_it_exact_by_mistake() -> None:
    plane = reset_idle(keeps=False)

    restart(plane)
    plane.sim.run(plane.sim.now + 2.0)

    trusts = {plane.indexer(one).trust(W0, plane.sim.now) for one in plane.routers}
    assert trusts == {Trust.DEGRADED}


@pytest.mark.parametrize("seed", seeds(60))
def test_sidecars_that_die_in_a_storm_are_exact_again_without_their_engines(seed: int) -> None:
    plane = ShortBuffers(seed, draw_plan(random.Random(seed), STORM_S), workers=2)
    plane.keep_checkpoints(every_s=0.1)
    plane.run_engines(steps=20, every_s=STORM_S / 20)
    plane.sim.run(STORM_S)

    assert plane.sim.run_until(plane.are_right, SETTLE_S), plane.differences()
