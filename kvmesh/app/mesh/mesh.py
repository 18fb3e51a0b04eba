"""A router replica's part in the mesh: the journal into the index, heartbeats in and out."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec

from kvmesh.actors.engine_messages import CacheEmptied, PromptServed
from kvmesh.actors.indexer import Indexer, IndexerOptions
from kvmesh.actors.kernel import Message
from kvmesh.actors.member_messages import Mispredicted
from kvmesh.actors.messages import (
    Reload,
    RouterHeartbeat,
    TakeSnapshot,
)
from kvmesh.actors.router import Router
from kvmesh.actors.snapshot_loader import SnapshotLoader
from kvmesh.actors.snapshotter import Snapshotter, SnapshotterOptions, manifest_key
from kvmesh.actors.wire import encode
from kvmesh.app.members.warning_lines import NO_USABLE_WORKER, by_reason
from kvmesh.app.mesh.checkpoint_keeper import CheckpointKeeper
from kvmesh.app.mesh.peer_link import LinkOptions, PeerLink, Role
from kvmesh.app.process.actor_storage import StorageCarrier
from kvmesh.app.process.build import own_version
from kvmesh.app.process.journal_feed import JournalFeed
from kvmesh.app.views.figure import Source
from kvmesh.app.views.mesh_figures import INDEX, JOURNAL, SNAPSHOTS, UNREAD, JournalFacts
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.engines.kv_events.regaining import CacheHit
from kvmesh.core.index.index import KvIndex
from kvmesh.core.insight.predictions import Distrust
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.core.journal.unread import Newer
from kvmesh.core.members.membership import STARTING
from kvmesh.core.members.worker_info import Trust
from kvmesh.formats import OWN, Formats
from kvmesh.ports import Handler, ObjectStore
from kvmesh.settings.roles import RouterSettings
from kvmesh.tasks import end_tasks, supervise

MOST_UNREAD: Final = 16
"""Things that a status names which this version does not read; the metric counts all."""


class RouterMesh:
    """Runs the actors of one replica over its event plane.

    A "follower" reads and books as replicas do, and leaves snapshots and streams to them. Without
    an URL it never says that it is ready: no requests come to it. A "picker" is a replica to which
    no HTTP requests are forwarded, so meta-routers hear that it is a follower.
    Requests that come before all is read and heard wait: they would be placed blindly.
    """

    def __init__(
        self,
        settings: RouterSettings,
        router_id: str,
        router: Router,
        index: KvIndex,
        *,
        role: Role = "router",
    ) -> None:
        self.router_id = router_id
        self.advertise_url = ""
        self.draining = False
        self._follower = role == "follower"
        self._settings = settings
        self._router = router
        self._known = router.scheduler.workers
        self._begun = self._follower
        self._known.membership.screens.append(lambda _: "" if self._begun else STARTING)
        self.indexer = Indexer(
            IndexReplica(index),
            IndexerOptions(
                router=router_id,
                bucket=settings.bucket,
                namespace=settings.nats.namespace,
                listeners=("registry",),
                reload_to="loader",
                version=own_version(),
            ),
        )
        self.loader = SnapshotLoader(self.indexer.replica, manifest_key(settings.bucket))
        self.snapshotter = Snapshotter(
            self.indexer.replica,
            SnapshotterOptions(
                router=router_id,
                bucket=settings.bucket,
                every_messages=settings.snapshot.snapshot_messages,
                every_s=settings.snapshot.snapshot_interval_s,
                version=own_version(),
                reload_to="loader",
            ),
            lambda: self.indexer.caught_up and not self.loader.loading,
        )
        listeners = ("indexer",) if self._follower else ("indexer", "snapshotter")
        link = LinkOptions(router_id, listeners=listeners, role=role)
        self.link = PeerLink(settings, router, self.heartbeat, link)
        self.indexer.formats.sources.append(self._newer_stored)
        self._keeper = CheckpointKeeper(router.workers, self._fence, self.link.subjects)
        self.outbox = self.link.replica_sync.outbox
        self.post = self.link.post
        self.share_streams = self.link.share_streams
        self.stop = self.link.stop
        self.drain = self.link.drain_worker

    def why_not(self) -> str:
        """Return why no request should come; "" when all is read, heard, and a worker usable."""
        if self.draining:
            return "draining"
        if waiting := self.link.plane.waiting():
            return waiting
        if not self.indexer.caught_up:
            return "catching up with the journal"
        now = time.monotonic()
        if waiting := self.indexer.awaits(now) or self.indexer.formats.why_not(now, self._ready()):
            return waiting
        usable = self._known.membership.usable(now)
        return "" if usable else NO_USABLE_WORKER

    def warnings(self) -> tuple[str, ...]:
        """Return whether the plane is silent, and which workers' events do not count in full."""
        info = self._known.info
        trusts = ((beat.worker, info(beat.worker).trust) for beat in self._router.workers())
        doubted = ((worker, one.value) for worker, one in trusts if one is not Trust.EXACT)
        lines = by_reason(doubted, "KV events do not count in full")
        never = by_reason(self._router.unmatched(), "no prefix can match")
        formats = self.indexer.formats.warnings(time.monotonic())
        stored = self.snapshotter.warnings()
        return (*self.link.warnings(), *formats, *stored, *never, *lines)

    def heartbeat(self) -> RouterHeartbeat:
        """Return this replica's present sign of life."""
        claim = self.indexer.replica.claim()
        follower = self._follower and not self.advertise_url
        beat = self.link.sign_of_life(
            self.advertise_url,
            ready=not (follower or self.why_not()),
            draining=self.draining,
            follower=follower,
        )
        return msgspec.structs.replace(
            beat,
            applied_sequence=claim.sequence,
            created=self.indexer.replica.created,
            digest=claim.digest,
            scope=claim.scope,
            heat=self._router.heat(time.monotonic()),
        )

    def _unread(self) -> list[Newer]:
        return self.indexer.formats.met(time.monotonic())

    def _ready(self) -> Iterator[Formats]:
        """Yield what the replicas read that take requests now."""
        return (peer.formats for peer in self.link.replicas() if peer.ready and not peer.draining)

    def _newer_stored(self) -> Newer | None:
        """Return what of the stored snapshots a newer version wrote, as was read last."""
        guard = self.snapshotter.guard
        return guard.newer if guard.has_checked else self.loader.newer

    released: None = None
    """Nobody: workers publish for themselves."""

    def distrust(self, worker: WorkerId, distrust: Distrust) -> None:
        """Have the worker send all it holds: its answers show that the index is wrong about it."""
        self._post(
            "indexer", Mispredicted(worker, distrust.misses, distrust.answers, distrust.again)
        )

    def _post(self, actor: str, message: Message) -> bool:
        """Have an actor of this replica take a message; False: it does not run yet, or is full."""
        driver = self.link.driver
        return driver is not None and driver.post(actor, message)

    def served(self, worker: WorkerId, answer: CacheHit) -> None:
        """Tell the worker's sidecar what an answer says of its engine's cache."""
        packed = pack_hashes(answer.hashes)
        served = PromptServed(worker, packed, answer.cached, answer.lasted_s)
        self.link.plane.bus.publish(self.link.subjects.control(worker), encode(served))

    def emptied(self, worker: WorkerId) -> None:
        """Tell the worker's sidecar that its engine forgot its cache."""
        subject = self.link.subjects.control(worker)
        self.link.plane.bus.publish(subject, encode(CacheEmptied(worker)))

    async def start(self, advertise_url: str) -> None:
        """Connect, load the newest snapshot, read the journal behind it, tell and listen.

        Waits for a server that is away, `why_not` says so; one that cannot be used raises
        `TransportError` or `ConfigError`.
        """
        self.advertise_url = advertise_url
        link, bucket = self.link, self._settings.bucket
        await link.connect()
        journal = await link.plane.journal(bucket)
        driver = link.make_driver(journal)
        for actor in (self.indexer, self._router, self.loader):
            driver.add(actor)
        if not self._follower:
            driver.add(self.snapshotter)
        keys, objects = await link.plane.stores(bucket)
        storage = StorageCarrier(driver, keys, objects, journal)
        link.stack.push_async_callback(storage.close)
        if not self._follower:
            await self._keep_checkpoints(objects)
        await link.share_tables()
        feed = JournalFeed(driver)
        feed.attach(journal)
        link.stack.push_async_callback(feed.close)
        handlers: dict[type[Message], Handler] = {
            Reload: self._on_reload,
            TakeSnapshot: self._on_take,
        }
        await link.run(self, self._is_warm, handlers, self._begin)

    def _is_warm(self) -> bool:
        return self.indexer.caught_up and not self.indexer.awaits(time.monotonic())

    def _begin(self) -> None:
        """Give workers requests from now on."""
        self._begun = True
        self._known.membership.screen_anew()

    async def _keep_checkpoints(self, objects: ObjectStore) -> None:
        """Keep what sidecars know of their engines, from now on."""
        control = await self.link.plane.control()
        self.link.stack.push_async_callback(control.close)
        running = supervise("keep checkpoints", partial(self._keeper.run, control, objects))
        self.link.stack.push_async_callback(end_tasks, running)

    def _fence(self) -> int | None:
        """Return the fencing token of the snapshots' lease while this replica holds it."""
        snapshots = self.snapshotter.statistics(time.monotonic())
        return snapshots.fence if snapshots.holder else None

    def describe(self) -> dict[str, object]:
        """Return how far the journal is read, the index, the peers."""
        replica = self.indexer.replica
        claim = replica.claim()
        return {
            "kv_events": True,
            "stream": self.link.subjects.stream(),
            "signatures": self.link.signatures(),
            "versions": self.link.versions().by_role(),
            "unread": [one.words(OWN, own_version()) for one in self._unread()[:MOST_UNREAD]],
            "created": replica.created,
            "applied_sequence": claim.sequence,
            "digest": f"{claim.digest:016x}",
            "caught_up": self.indexer.caught_up,
            "indexer": self.indexer.statistics(),
            "registry": self.link.registry.statistics(),
            "replica_sync": self.link.replica_sync.statistics(),
            "loader": self.loader.statistics(),
            "snapshotter": self.snapshotter.statistics(time.monotonic()),
            "checkpoints": self._keeper.statistics(),
            "peers": self.link.peers.view(time.monotonic()),
            "blocks": {worker: replica.index.blocks(worker) for worker in replica.index.workers()},
            "worker_digests": {
                worker: f"{replica.index.worker_digest(worker):016x}"
                for worker in replica.index.workers()
            },
        }

    def figures(self) -> Iterator[Source]:
        """Yield what is counted in this part."""
        yield INDEX.of(self.indexer.replica.index.statistics)
        yield JOURNAL.of(lambda: JournalFacts(self.indexer, self.replicas()))
        yield SNAPSHOTS.of(lambda: self.snapshotter.statistics(time.monotonic()))
        yield UNREAD.of(self._unread)
        yield from self.link.figures()

    def replicas(self) -> tuple[RouterHeartbeat, ...]:
        """Return the last signs of life of this replica and its peers, own first."""
        return (self.heartbeat(), *self.link.replicas())

    def digests(self) -> tuple[int, int]:
        """Return how many digests of peers were compared, and how many differed."""
        statistics = self.indexer.statistics()
        return statistics.replica.digests_compared, statistics.mismatches

    async def _on_reload(self, command: Reload) -> bool:
        return self._post("loader", command)

    async def _on_take(self, command: TakeSnapshot) -> bool:
        return not self._follower and self._post("snapshotter", command)

    async def failed(self) -> None:
        """Look after the streams until an actor or the answering of commands fails; raise that."""
        await self.link.failed(*([] if self._follower else [self.link.keep_streams()]))
