"""Two versions in one bucket: upgraded process by process, and back, under load and faults."""

import random
from collections.abc import Sequence
from functools import partial

import pytest

from kvmesh.actors.version_guard import LOOK_AGAIN_S
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.worker_info import Trust
from kvmesh.formats import FormatRange, Formats
from tests.doubles.sim.faults import SimFaults, draw_plan
from tests.simulation.planes.skew_plane import BOTH, NEW, OLD, SkewPlane
from tests.simulation.planes.snapshot_plane import LEASE_KEY
from tests.simulation.seeds import EVERY, seeds

ROUTERS, WORKERS = ["r0", "r1"], ["w0", "w1", "w2"]
ORDERS = {
    "routers first": [*ROUTERS, *WORKERS],
    "workers first": [*WORKERS, *ROUTERS],
    "mixed": ["w0", "r0", "w1", "r1", "w2"],
}
JOURNAL_ONLY = Formats(journal=BOTH)
NEXT = Formats(journal=FormatRange(2, 3))
END_S = 40.0
SETTLE_S = 30.0
STORM_S = 12.0
SEEDS = 16
REWRITE_S = 6.0
"""A lease runs out, its next holder rewrites the snapshot for older readers."""
MOST_MESSAGES = 1.2


def up_and_back(seed: int, order: Sequence[str], newer: Formats) -> SkewPlane:
    """Roll a bucket to `newer` and back while requests come; then let it rest until `END_S`."""
    plane = SkewPlane(seed, SimFaults(), workers=len(WORKERS))
    plane.run_engines(steps=int(END_S * 6), every_s=1 / 6)
    plane.sim.run(4.0)
    plane.ask_for(END_S - 4.0)
    plane.roll(order, newer)
    plane.sim.run(plane.sim.now + 5.0)
    assert plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S), plane.differences()
    number = newer.journal.newest
    assert plane.formats_written() == ({number}, number, number)
    plane.roll(order, OLD)
    assert plane.sim.now < END_S
    plane.sim.run(END_S)
    return plane


@pytest.mark.parametrize("order", ORDERS if EVERY else ["mixed"])
def test_a_bucket_is_upgraded_and_rolled_back_without_loss(order: str) -> None:
    plain = up_and_back(1, ORDERS[order], OLD)
    skewed = up_and_back(1, ORDERS[order], NEW)

    assert (plain.unanswered, skewed.unanswered) == (0, 0)
    assert skewed.formats_written() == ({1}, 1, 1)
    assert skewed.journal.last_sequence <= MOST_MESSAGES * plain.journal.last_sequence
    assert sum(skewed.resyncs.values()) <= len(ROUTERS) * len(WORKERS)
    assert skewed.purges > 0
    assert skewed.sim.run_until(skewed.is_settled, limit_s=SETTLE_S), skewed.differences()


@pytest.mark.parametrize("seed", sorted({*seeds(SEEDS), 5}))
def test_nothing_is_lost_while_versions_change_in_a_storm(seed: int) -> None:
    """No snapshot without a worker, no index that is not the journal: checked at each step.

    The last newer replica may be killed right after it wrote, while the older one hung for longer
    than a reader is waited for (seed 5). Then older ones leave it alone and say so, until a newer
    one runs beside them and stores what they read (docs/operate/upgrade.md).
    """
    unfair = frozenset(("purge", "recreate", "truncate"))
    rng = random.Random(seed)
    plane = SkewPlane(seed, draw_plan(rng, STORM_S, unfair))
    plane.run_engines(steps=120, every_s=STORM_S / 130)
    for _ in range(10):
        name, formats = rng.choice(["r0", "r1", "w0", "w1"]), rng.choice([OLD, NEW])
        plane.sim.at(rng.uniform(0.5, STORM_S), partial(plane.update, name, formats))
    plane.sim.run(STORM_S)
    last = rng.choice([OLD, NEW])
    plane.roll(["r0", "r1", "w0", "w1"], last)
    if plane.manifest().schema > last.manifest.newest:
        plane.sim.run(plane.sim.now + LOOK_AGAIN_S)
        assert all(map(plane.warns, ["r0", "r1"]))
        plane.roll(["r0"], NEW)
        plane.sim.run(plane.sim.now + REWRITE_S)
        plane.roll(["r0"], last)

    settled = plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)

    assert settled, plane.differences()
    newest = plane.manifest().generations[:1]
    plane.run_engines(steps=5, every_s=0.1)
    goes_on = plane.sim.run_until(
        lambda: plane.manifest().generations[:1] != newest, limit_s=SETTLE_S
    )
    assert goes_on, "no snapshot after the storm"


@pytest.mark.parametrize("versions", [(OLD, OLD), (OLD, NEW), (NEW, NEW), (NEW, OLD)])
def test_a_replica_of_either_version_is_warm_while_all_workers_are_down(
    versions: tuple[Formats, Formats],
) -> None:
    plane = SkewPlane(3, SimFaults())
    plane.run_engines(steps=200, every_s=0.1)
    plane.sim.run(3.0)
    for router, formats in zip(ROUTERS, versions, strict=True):
        plane.roll([router], formats)
    plane.sim.run(plane.sim.now + 6.0)
    held = {one: plane.indexer("r0").replica.index.blocks(one) for one in plane.engines}
    for worker in plane.engines:
        plane.sim.kill(plane.sim.processes[worker])

    for router in ROUTERS:
        plane.update(router, plane.formats_of(router))
        plane.sim.run(plane.sim.now + 3.0)

    for router in ROUTERS:
        index = plane.indexer(router).replica.index
        assert {one: index.blocks(one) for one in plane.engines} == held
    assert min(held.values()) > 0


def test_an_older_fleet_behind_newer_history_destroys_none_of_it() -> None:
    """All is newer, workers die, then only older replicas run: they serve what they can."""
    plane = SkewPlane(5, SimFaults(), workers=3)
    plane.roll([*ROUTERS, *WORKERS], NEW)
    plane.run_engines(steps=150, every_s=0.1)
    plane.sim.run(18.0)
    assert plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S), plane.differences()
    before, records = plane.manifest(), dict(plane.journal.records)
    held = plane.indexer("r0").replica.claim().digest
    for worker in WORKERS:
        plane.sim.kill(plane.sim.processes[worker])

    for router in ROUTERS:
        plane.update(router, OLD)
    plane.ask_for(20.0)
    plane.sim.run(plane.sim.now + 20.0)

    assert plane.manifest() == before
    assert plane.journal.records == records
    assert sum(plane.resyncs.values()) == 0
    assert plane.unanswered < 5.0 / 0.05, "nobody serves though nobody reads more"
    assert plane.serves("r0")
    assert plane.sim.logged["newer format met"] == len(ROUTERS)

    plane.roll(ROUTERS, NEW)
    assert plane.indexer("r0").replica.claim().digest == held


def test_an_older_replica_beside_a_newer_one_leaves_requests_to_it_until_it_can_read() -> None:
    plane = SkewPlane(6, SimFaults(), workers=3)
    plane.roll([*ROUTERS, *WORKERS], NEW)
    plane.run_engines(steps=300, every_s=0.1)
    plane.sim.run(14.0)
    assert plane.formats_written()[1:] == (2, 2)

    plane.update("r1", OLD)
    plane.sim.run(plane.sim.now + 0.5)
    early = plane.serves("r1"), plane.serves("r0")
    back = plane.sim.run_until(lambda: plane.serves("r1"), limit_s=12.0)

    assert early == (False, True)
    assert back, plane.differences()
    assert plane.formats_written() == ({1}, 1, 1)


def test_a_replica_two_versions_behind_destroys_nothing_and_asks_for_nothing() -> None:
    """Its workers write nothing that it reads, and the snapshots are of a format that it does."""
    plane = SkewPlane(7, SimFaults(), workers=3)
    plane.roll(ROUTERS, JOURNAL_ONLY)
    plane.roll(WORKERS, NEXT)
    plane.run_engines(steps=300, every_s=0.1)
    plane.sim.run(18.0)
    assert plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S), plane.differences()
    assert plane.formats_written() == ({2}, 1, 1)
    before, first = plane.manifest(), plane.journal.first_sequence

    for router in ROUTERS:
        plane.update(router, OLD)
    plane.sim.run(plane.sim.now + 12.0)

    assert plane.manifest() == before
    assert plane.journal.first_sequence == first
    assert sum(plane.resyncs.values()) == 0
    assert plane.stores.live(LEASE_KEY) is None
    for router in ROUTERS:
        assert plane.serves(router)
        assert plane.indexer(router).trust(WorkerId("w0"), plane.sim.now) is Trust.DEGRADED

    plane.roll(ROUTERS, JOURNAL_ONLY)
    assert plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S), plane.differences()
    assert plane.sim.run_until(lambda: plane.manifest() != before, limit_s=SETTLE_S)
