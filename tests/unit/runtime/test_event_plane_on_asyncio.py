"""The actors of worker and router on the real driver, over transports in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import msgspec
import pytest

from kvmesh.actors.engine_messages import EnginePayload
from kvmesh.actors.journal.indexer import Indexer, IndexerOptions
from kvmesh.actors.journal.publisher import Publisher
from kvmesh.actors.journal.publisher_options import PublisherOptions
from kvmesh.actors.members.registry import Registry, RegistryOptions
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.wire import Subjects
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.event_sender import SenderLimits
from kvmesh.core.journal.recovery import RecoveryOptions
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import Trust
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.runtime.aio import AioDriver
from kvmesh.runtime.journal_feed import JournalFeed
from tests.doubles.memory.bus import MemoryBus
from tests.doubles.memory.journal import MemoryJournal
from tests.doubles.memory.server import MemoryServer

W = WorkerId("w")
SUBJECTS = Subjects("kvmesh", "code")
QUICK = RecoveryOptions(grace_s=0.02, behind_s=0.05, repeat_s=0.1)


class Eventually(Protocol):
    def __call__(self, condition: Callable[[], object], *, what: str = "") -> Awaitable[None]: ...


class Mesh:
    """One worker's sidecar and one router replica, each with a driver of its own."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.journal = MemoryJournal(self.server, SUBJECTS.stream())
        self.bus = MemoryBus(self.server)
        limits = SenderLimits(deadline_s=0.05, resync_pause_s=0.05)
        self.publisher = Publisher(
            PublisherOptions(
                W, "code", 1, "http://w", block_size=4, heartbeat_s=0.02, limits=limits
            )
        )
        self.replica = IndexReplica(KvIndex(), QUICK)
        self.indexer = Indexer(
            self.replica, IndexerOptions("r", "code", listeners=("registry",), check_s=0.01)
        )
        self.workers = WorkerRegistry(Membership(), new_sequences(4))
        self.registry = Registry(
            RegistryOptions("r", "code", workers_to=("indexer",)),
            self.workers,
            Membership(),
            status=lambda: RouterHeartbeat("r", "code", "", ready=True, epoch=1),
        )
        self.sidecar = AioDriver(journal=self.journal, bus=self.bus)
        self.router = AioDriver(journal=self.journal, bus=self.bus)
        self.feed = JournalFeed(self.router)
        self._stored = 0

    async def start(self) -> None:
        await self.journal.open()
        self.sidecar.add(self.publisher)
        self.router.add(self.indexer, capacity=4)
        self.router.add(self.registry)
        await self.bus.subscribe(SUBJECTS.control(W), self.sidecar.deliver_to("publisher"))
        await self.bus.subscribe(SUBJECTS.heartbeats(), self.router.deliver_to("registry"))
        self.router.start()
        await self.feed.open(self.journal)
        self.sidecar.start()

    async def stop(self) -> None:
        await self.feed.close()
        self.router.stop()
        self.sidecar.stop()

    def store(self, blocks: int = 3) -> None:
        """Let the engine store one more run of blocks."""
        first = 1 + self._stored
        self._stored += blocks
        event = {
            "type": "BlockStored",
            "block_hashes": list(range(first, first + blocks)),
            "parent_block_hash": None,
            "token_ids": [first] * 4 * blocks,
            "block_size": 4,
        }
        payload = EnginePayload(msgspec.msgpack.encode([0.0, [event], 0]))
        self.sidecar.press("publisher", payload)

    def knows_all(self) -> bool:
        return (
            self.workers.info(W).trust is Trust.EXACT
            and self.workers.membership.members() == (W,)
            and self.replica.index.blocks(W) == self._stored
            and self.publisher.heartbeat().last_seq == self.replica.cursors()[W].next_seq - 1
        )


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    made = Mesh()
    await made.start()
    yield made
    await made.stop()


async def test_what_an_engine_stores_reaches_the_index(mesh: Mesh, eventually: Eventually) -> None:
    for _ in range(200):
        mesh.store()

    await eventually(mesh.knows_all)


async def test_what_was_stored_during_an_outage_arrives_after_it(
    mesh: Mesh, eventually: Eventually
) -> None:
    mesh.store()
    await eventually(mesh.knows_all)
    mesh.server.set_up(up=False)
    for _ in range(20):
        mesh.store()
    await eventually(lambda: mesh.publisher.statistics().sender.window.resends > 1)

    mesh.server.set_up(up=True)

    await eventually(mesh.knows_all)


@pytest.mark.parametrize("quiet", [False, True])
async def test_a_journal_made_anew_is_filled_again(
    mesh: Mesh, eventually: Eventually, quiet: bool
) -> None:
    mesh.store()
    await eventually(mesh.knows_all)

    mesh.server.make_stream(SUBJECTS.stream())
    if not quiet:
        mesh.store()

    await eventually(lambda: mesh.indexer.statistics().recreations == 1)
    await eventually(mesh.knows_all)


async def test_a_replica_whose_history_was_purged_asks_the_worker(
    mesh: Mesh, eventually: Eventually
) -> None:
    mesh.store()
    await eventually(mesh.knows_all)
    await mesh.journal.purge(2)
    mesh.replica.forget(W)

    await eventually(mesh.knows_all)

    assert mesh.indexer.statistics().resyncs_asked > 0
