"""The event plane with snapshots: what may never happen to them, whatever else does."""

import hashlib
from collections.abc import Sequence

from kvmesh.actors.indexer import Indexer
from kvmesh.actors.kernel import Actor, Effect, Message
from kvmesh.actors.messages import CaughtUp
from kvmesh.actors.snapshot_loader import SnapshotLoader
from kvmesh.actors.snapshotter import Snapshotter, SnapshotterOptions, manifest_key
from kvmesh.actors.storage import PurgeJournal
from kvmesh.core.manifest import Manifest, decode_manifest
from kvmesh.core.snapshot_reader import decode_snapshot
from kvmesh.runtime.faults import FaultPlan
from kvmesh.runtime.sim import Process
from kvmesh.runtime.sim_stores import SimStores
from tests.simulation.event_plane import EventPlane

KEY = manifest_key("code")


class SnapshotPlane(EventPlane):
    """Replicas that snapshot each half second, purge behind themselves, and start from the store.

    Checked at each purge: what is purged is in the second newest generation of the manifest or
    older, and that one can be read and is what it says.
    """

    reload_to = "loader"

    def __init__(self, seed: int, plan: FaultPlan, *, workers: int = 2, replicas: int = 2) -> None:
        self.purges = 0
        self.rotten: set[str] = set()
        self.manifests: list[Manifest] = []
        super().__init__(seed, plan, workers=workers, replicas=replicas)

    def prepare(self) -> None:
        self.stores = SimStores(self.sim)
        purge = self.sim.carriers[PurgeJournal]

        def carry(process: Process, actor: str, effect: Effect) -> None:
            assert isinstance(effect, PurgeJournal)
            self._check_purge(effect.up_to)
            purge(process, actor, effect)

        self.sim.carriers[PurgeJournal] = carry
        self.sim.on_step.append(self._check_manifest)

    def further_actors(self, router: str, indexer: Indexer) -> Sequence[Actor]:
        loader = SnapshotLoader(indexer.replica, KEY)
        options = SnapshotterOptions(router, "code", every_messages=20, every_s=0.5, keep_s=2.0)
        snapshotter = Snapshotter(
            indexer.replica, options, lambda: indexer.caught_up and not loader.loading
        )
        return (snapshotter, loader)

    def manifest(self) -> Manifest:
        entry = self.stores.live(KEY)
        return decode_manifest(None if entry is None else entry.value)

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

    def _check_purge(self, up_to: int) -> None:
        self.purges += 1
        kept = self.manifest().generations
        assert len(kept) > 1, "purged with one generation"
        assert up_to <= kept[1].sequence, "purged what the second generation needs"
        if kept[1].name in self.rotten:
            return
        data, _ = self.stores.objects[kept[1].name]
        assert hashlib.sha256(data).hexdigest() == kept[1].sha256, "purged behind a bad object"
        assert decode_snapshot(data).position.sequence == kept[1].sequence

    def _check_manifest(self, process: Process, actor: str, message: Message) -> None:
        del process, actor
        if isinstance(message, CaughtUp):
            return
        manifest = self.manifest()
        if self.manifests and self.manifests[-1] == manifest:
            return
        for one in manifest.generations:
            assert one.name in self.stores.objects, "the manifest names what is not there"
        if self.manifests and self.manifests[-1].generations and manifest.generations:
            before, after = self.manifests[-1].generations[0], manifest.generations[0]
            assert after.fence >= before.fence, "a fenced writer got through"
            if after.created == before.created:
                assert after.sequence > before.sequence, "a snapshot went back"
        self.manifests.append(manifest)
