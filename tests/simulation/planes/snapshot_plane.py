"""The event plane with snapshots: what may never happen to them, whatever else does."""

import hashlib
from collections.abc import Sequence
from itertools import pairwise

from kvmesh.actors.indexer import Indexer
from kvmesh.actors.kernel import Actor, Effect, Message
from kvmesh.actors.messages import CaughtUp, Tick
from kvmesh.actors.registry import Registry
from kvmesh.actors.snapshot_loader import SnapshotLoader
from kvmesh.actors.snapshotter import (
    Snapshotter,
    SnapshotterOptions,
    lease_key,
    manifest_key,
)
from kvmesh.actors.storage import (
    DeleteObject,
    FetchObject,
    ListObjects,
    PurgeJournal,
    ReadKey,
    StoreObject,
    WriteKey,
)
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_manifest import Manifest, SnapshotGeneration, decode_manifest
from kvmesh.core.index.snapshot_reading import Snapshot, decode_snapshot
from kvmesh.core.index.snapshot_writing import Position
from kvmesh.core.journal.lease import HOLDER
from kvmesh.core.journal.ordering import Cursor
from kvmesh.errors import CodecError
from tests.doubles.sim.driver import Process
from tests.doubles.sim.faults import SimFaults
from tests.doubles.sim.stores import SimStores
from tests.simulation.planes.constants import USUAL, Constants
from tests.simulation.planes.event_plane import EventPlane
from tests.simulation.planes.history import ALL

KEY = manifest_key("code")
LEASE_KEY = lease_key("code")
STEPS = (StoreObject, FetchObject, ReadKey, WriteKey, PurgeJournal, ListObjects, DeleteObject)
"""What a snapshot is made of, seen from outside."""


class SnapshotPlane(EventPlane):
    """Replicas that snapshot each half second, purge behind themselves, and start from the store.

    Checked at each purge: what is purged is in the second newest generation of the manifest or
    older, both newest can be read and are what they say, and no live replica that was heard still
    needs it. Only who holds the lease when it decides so writes the manifest. At each new manifest:
    its newest generation is the model's at its position. At each load: so is the index.
    """

    reload_to = "loader"

    def __init__(
        self,
        seed: int,
        plan: SimFaults,
        *,
        workers: int = 2,
        replicas: int = 2,
        constants: Constants = USUAL,
    ) -> None:
        self.purges = 0
        self.rotten: set[str] = set()
        self.manifests: list[Manifest] = []
        super().__init__(seed, plan, workers=workers, replicas=replicas, constants=constants)

    def prepare(self) -> None:
        self.stores = SimStores(self.sim)
        purge = self.sim.carriers[PurgeJournal]

        def carry(process: Process, actor: str, effect: Effect) -> None:
            assert isinstance(effect, PurgeJournal)
            self._check_purge(process, effect.up_to)
            purge(process, actor, effect)

        self.sim.carriers[PurgeJournal] = carry
        self.sim.on_decided.append(self._check_lease)
        self.sim.on_decided.append(self._stall)
        self.sim.on_step.append(self._check_manifest)
        self.sim.on_step.append(self._check_loaded)

    def further_actors(self, router: str, indexer: Indexer) -> Sequence[Actor]:
        version, formats = self.version_of(router), self.formats_of(router)
        loader = SnapshotLoader(indexer.replica, KEY, formats=formats)
        options = SnapshotterOptions(
            router,
            "code",
            every_messages=self.constants.every_messages,
            every_s=self.constants.every_s,
            keep_s=self.constants.keep_s,
            formats=formats,
            version=version,
            reload_to=self.reload_to,
        )
        snapshotter = Snapshotter(
            indexer.replica, options, lambda: indexer.caught_up and not loader.loading
        )
        guard = snapshotter.guard
        indexer.formats.sources.append(lambda: guard.newer if guard.has_checked else loader.newer)
        return (snapshotter, loader)

    def manifest(self) -> Manifest:
        entry = self.stores.live(KEY)
        try:
            return decode_manifest(None if entry is None else entry.value, ALL)
        except CodecError:
            return Manifest()

    def put(self, key: str, value: bytes) -> None:
        """Write a key behind everybody's back, for good."""
        self.stores.overwrite(key, value)

    def rot(self, name: str) -> None:
        """Damage an object behind everybody's back."""
        data, made_s = self.stores.objects[name]
        self.stores.objects[name] = (data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], made_s)
        self.rotten.add(name)

    def lives(self, router: str) -> tuple[object, ...]:
        """A position may go back when a snapshot is loaded, and at no other time."""
        loader = self.sim.processes[router].actors["loader"]
        assert isinstance(loader, SnapshotLoader)
        return (loader.statistics().loaded,)

    def _check_purge(self, process: Process, up_to: int) -> None:
        self.purges += 1
        kept = self.manifest().generations
        assert len(kept) > 1, "purged with one generation"
        assert up_to <= kept[1].sequence, "purged what the second generation needs"
        for one in kept[:2]:
            self._read(one)
        registry = process.actors["registry"]
        assert isinstance(registry, Registry)
        for name in registry.routers.members():
            beat, peer = registry.replica(name), self.sim.processes.get(name)
            if beat is None or peer is None or beat.created != kept[1].created or not peer.alive:
                continue
            reads = max(beat.applied_sequence, self.indexer(name).replica.applied_sequence)
            assert up_to <= reads, "purged what a live replica has not read"

    def _read(self, one: SnapshotGeneration) -> Snapshot | None:
        """Return what a generation holds; None when it was damaged behind everybody's back."""
        if one.name in self.rotten:
            return None
        data, _ = self.stores.objects[one.name]
        assert hashlib.sha256(data).hexdigest() == one.sha256, "a bad object in the manifest"
        snapshot = decode_snapshot(data, reads=ALL)
        assert snapshot.position == Position(one.created, one.sequence)
        return snapshot

    def _check_snapshot(self, one: SnapshotGeneration) -> None:
        """Loaded into an empty index, the newest generation is what was published up to there."""
        snapshot = self._read(one)
        if snapshot is not None:
            index = KvIndex()
            index.load(snapshot.image, snapshot.truncated)
            for record in snapshot.records:
                self.check_against_model(
                    index, record.worker, Cursor(record.epoch, record.next_seq, record.gap)
                )

    def _check_loaded(self, process: Process, actor: str, message: Message) -> None:
        if actor == "loader" and isinstance(message, Tick):
            replica = self.indexer(process.name).replica
            for worker, cursor in replica.cursors().items():
                self.check_against_model(replica.index, worker, cursor)

    def _stall(self, process: Process, actor: str, effect: Effect) -> None:
        """Where outages linger, one may hit the lease holder between any two of its steps."""
        sim, plan = self.sim, self.sim.faults.plan
        if actor != "snapshotter" or not isinstance(effect, STEPS):
            return
        if sim.strike("stall", plan.linger / 4):
            process.frozen_s = sim.now + sim.faults.between(plan.linger_s)

    def _check_lease(self, process: Process, actor: str, effect: Effect) -> None:
        del actor
        if isinstance(effect, WriteKey) and effect.key == KEY:
            lease = self.stores.live(LEASE_KEY)
            assert lease is not None, "a manifest is written without the lease"
            garbage = HOLDER.fullmatch(lease.value) is None
            assert garbage or lease.value == process.name.encode(), "another holds the lease"

    def _check_manifest(self, process: Process, actor: str, message: Message) -> None:
        del process, actor
        if isinstance(message, CaughtUp):
            return
        manifest = self.manifest()
        if self.manifests and self.manifests[-1] == manifest:
            return
        for one in manifest.generations:
            assert one.name in self.stores.objects, "the manifest names what is not there"
        if manifest.generations:
            self._check_snapshot(manifest.generations[0])
        for one, former in pairwise(manifest.generations[:2]):
            assert one.blocks > 0 or former.blocks == 0, "an empty snapshot displaced another"
        if self.manifests and self.manifests[-1].generations and manifest.generations:
            before, after = self.manifests[-1].generations[0], manifest.generations[0]
            assert after.fence >= before.fence, "a fenced writer got through"
            if after.created == before.created:
                assert after.sequence > before.sequence, "a snapshot went back"
        self.manifests.append(manifest)
