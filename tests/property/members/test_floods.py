"""Every table keyed by somebody else's text, filled with ten times what it has room for."""

import random

import msgspec
import pytest

from kvmesh.actors import meta_router
from kvmesh.actors.indexer import Indexer, IndexerOptions
from kvmesh.actors.kernel import Effect, Log
from kvmesh.actors.messages import (
    BusMessage,
    CaughtUp,
    JournalOpened,
    JournalRecord,
    RouterHeartbeat,
    RouterSeen,
    Tick,
    WorkerGone,
    WorkerHeartbeat,
    WorkerSeen,
)
from kvmesh.actors.meta_router import MetaRouter
from kvmesh.actors.registry import Registry, RegistryOptions
from kvmesh.actors.replica_sync import ReplicaSync, ReplicaSyncOptions
from kvmesh.actors.wire import encode
from kvmesh.core.blocks.events import VERSION, Batch, Cleared, Stored, WorkerId, encode_batch
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.core.members import silent_members
from kvmesh.core.members.known_names import KnownNames
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.silent_members import MOST_LOST, SilentMembers
from kvmesh.core.routing import event_fold, peer_bookings
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.core.routing.scheduler import Scheduler
from tests.property.support import records
from tests.property.support.records import bare, message, named, state_begins

MOST = 64
FLOOD = 10 * MOST
HONEST = WorkerId("honest")


def worker(name: str, last_seq: int = 0) -> WorkerHeartbeat:
    return WorkerHeartbeat(WorkerId(name), "b", 1, last_seq, f"http://{name}:1", ("m",), 16)


def router(name: str) -> RouterHeartbeat:
    return RouterHeartbeat(name, "b", f"http://{name}:1", ready=True, epoch=1)


def logs(effects: list[Effect]) -> list[str]:
    return [one.event for one in effects if isinstance(one, Log)]


class Flooded:
    """A registry with room for `MOST` workers and `MOST` routers."""

    def __init__(self) -> None:
        self.workers = WorkerRegistry(Membership(), new_sequences(16))
        self.routers = Membership()
        options = RegistryOptions("r", "b", max_workers=MOST, max_routers=MOST)
        self.registry = Registry(options, self.workers, self.routers)

    def receive(self, beat: WorkerHeartbeat | RouterHeartbeat, now: float = 0.0) -> list[Effect]:
        kind, name = (
            ("hb", beat.worker) if isinstance(beat, WorkerHeartbeat) else ("rt", beat.router)
        )
        message = BusMessage(f"kvmesh.{kind}.b.{name}", encode(beat))
        return list(self.registry.receive(message, now))


def test_invented_workers_do_not_displace_one_that_lives() -> None:
    flooded = Flooded()
    flooded.receive(worker(HONEST))

    said = [flooded.receive(worker(f"stranger-{number}")) for number in range(FLOOD)]

    assert len(flooded.workers.membership) == MOST
    assert len(flooded.workers.known) == MOST
    assert HONEST in flooded.workers.membership
    assert flooded.registry.statistics().crowded == FLOOD - MOST + 1
    assert sum("message refused" in logs(one) for one in said) == 1, "said once in a while"
    assert flooded.registry.warnings(1.0) == (
        f"workers beyond {MOST} are refused: make more buckets",
    )


def test_there_is_room_again_when_the_invented_ones_fall_silent() -> None:
    flooded = Flooded()
    for number in range(FLOOD):
        flooded.receive(worker(f"stranger-{number}"))
    before = HONEST in flooded.workers.membership

    for quarter in range(40):
        flooded.receive(router("sibling"), quarter / 4)
        list(flooded.registry.receive(Tick("check"), quarter / 4))
    flooded.receive(worker(HONEST), 10.0)

    assert not before
    assert flooded.workers.membership.members() == (HONEST,)


def test_invented_routers_are_refused_likewise() -> None:
    flooded = Flooded()
    flooded.receive(router("sibling"))

    for number in range(FLOOD):
        flooded.receive(router(f"stranger-{number}"))

    assert len(flooded.routers) == MOST
    assert "sibling" in flooded.routers
    assert flooded.registry.warnings(0.0)


def test_a_meta_router_has_room_for_so_many_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_router, "MOST_REPLICAS", MOST)
    meta = MetaRouter("kvmesh")
    meta.receive(BusMessage("kvmesh.rt.b.sibling", encode(router("sibling"))), 0.0)

    for number in range(FLOOD):
        beat = msgspec.structs.replace(router("r"), bucket=f"b{number}")
        meta.receive(BusMessage(f"kvmesh.rt.b{number}.r", encode(beat)), 0.0)
        if number < MOST - 1:
            meta.table.route(BucketRequest(bucket=f"b{number}"), 0.0)

    assert meta.statistics().replicas == MOST
    assert meta.statistics().crowded == FLOOD - MOST + 1
    assert meta.table.route(BucketRequest(bucket="b"), 0.0).replica.name == "b/sibling"
    assert meta.warnings(0.0)
    for quarter in range(40):
        meta.receive(BusMessage("kvmesh.rt.b.sibling", encode(router("sibling"))), quarter / 4)
        meta.receive(Tick("check"), quarter / 4)
    assert meta.statistics().replicas == 1
    assert list(meta.table._last_replica) == ["b"]


def test_what_a_listening_meta_router_keeps_is_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meta_router, "MOST_EARLY_BYTES", 10_000)
    meta = MetaRouter("kvmesh")
    meta.listening = True

    for number in range(100):
        meta.receive(BusMessage(f"kvmesh.rt.b.r{number % 20}", bytes(1_000)), 0.0)

    assert sum(map(len, meta._early.values())) <= 10_000
    assert len(meta._early) == 10


class Followed:
    """An indexer of a replica with room for `MOST` workers."""

    def __init__(self) -> None:
        self.replica = IndexReplica(KvIndex(), max_workers=MOST)
        self.indexer = Indexer(self.replica, IndexerOptions("r", "b"))
        for reported in (JournalOpened("c"), CaughtUp(0)):
            list(self.indexer.receive(reported, 0.0))

    def read(self, name: str, now: float = 0.0, *, epoch: int = 1) -> list[Effect]:
        data = encode_batch(Batch(VERSION, epoch, 1, [Cleared(), Stored(0, b"\1" * 8)]))
        sequence = self.replica.applied_sequence + 1
        return list(self.indexer.receive(JournalRecord(sequence, WorkerId(name), data), now))


def test_invented_publishers_are_refused_and_said_and_none_stops_the_reading() -> None:
    followed = Followed()

    said = [followed.read(f"stranger-{number}") for number in range(FLOOD)]

    assert followed.replica.applied_sequence == FLOOD
    assert len(followed.replica.cursors()) == MOST
    assert len(followed.replica.index.workers()) == MOST
    assert followed.replica.statistics().crowded == FLOOD - MOST
    assert sum("message refused" in logs(one) for one in said) == 1
    assert len(followed.indexer._unheard) == MOST


def test_a_worker_that_is_heard_takes_the_place_of_one_that_is_not() -> None:
    followed = Followed()
    for number in range(FLOOD):
        followed.read(f"stranger-{number}")
    list(followed.indexer.receive(WorkerSeen(worker(HONEST), joined=True), 0.0))

    followed.read(HONEST)

    assert HONEST in followed.replica.cursors()
    assert "stranger-0" not in followed.replica.cursors()
    assert len(followed.replica.cursors()) == MOST


def test_a_worker_that_is_heard_is_never_given_up_for_another() -> None:
    followed = Followed()
    names = [f"w{number}" for number in range(MOST)]
    for name in names:
        list(followed.indexer.receive(WorkerSeen(worker(name), joined=True), 0.0))
        followed.read(name)
    list(followed.indexer.receive(WorkerSeen(worker("late"), joined=True), 0.0))

    followed.read("late")
    followed.read("stranger")

    assert sorted(followed.replica.cursors()) == sorted(names)


def test_nothing_is_left_of_publishers_that_nobody_heard() -> None:
    followed = Followed()
    for number in range(FLOOD):
        followed.read(f"stranger-{number}", float(number))
        list(followed.indexer.receive(Tick("check"), float(number)))
    list(followed.indexer.receive(Tick("check"), FLOOD + 61.0))

    assert followed.replica.cursors() == {}
    assert followed.replica._digest._keys == {}
    assert followed.indexer._reported == {}


def test_a_name_too_long_to_be_stored_is_refused() -> None:
    followed = Followed()

    followed.read("w" * 10_000)
    followed.read("")

    assert followed.replica.statistics().garbage == 2
    assert followed.replica.cursors() == {}


class Booked:
    """A replica that hears of bookings."""

    def __init__(self) -> None:
        self.sequences = new_sequences(16, lease_s=10.0)
        self.scheduler = Scheduler(
            RouterOptions(block_size=16),
            random.Random(1),
            membership=Membership(),
            sequences=self.sequences,
            routed=new_approx(),
        )
        self.scheduler.workers.membership.observe(HONEST, 1, 0.0)
        self.sync = ReplicaSync(self.scheduler, ReplicaSyncOptions("r", "b", 1))
        self._numbers: dict[str, int] = {}

    def receive(self, peer: str, *events: bytes, now: float = 0.0) -> list[Effect]:
        number = self._numbers.get(peer, 1)
        if number == 1:
            events = named(0, HONEST), *events
        self._numbers[peer] = number + len(events)
        data = message(*events, first_seq=number)
        return list(self.sync.receive(BusMessage(f"kvmesh.seq.b.{peer}", data), now))

    def refused(self) -> int:
        return self.sync.statistics().refused


@pytest.fixture
def booked(monkeypatch: pytest.MonkeyPatch) -> Booked:
    monkeypatch.setattr(peer_bookings, "MOST_PEERS", MOST)
    monkeypatch.setattr(event_fold, "MOST_BOOKINGS", MOST)
    monkeypatch.setattr(event_fold, "MOST_IN_ALL", 4 * MOST)
    monkeypatch.setattr(event_fold, "MOST_STRANGERS", MOST)
    return Booked()


def placed(number: int, worker: int = 0) -> bytes:
    return records.placed(number, worker, (2, 32, 32, 0))


def test_one_peer_books_so_much_and_may_book_again_when_some_is_over(booked: Booked) -> None:
    for number in range(FLOOD):
        booked.receive("peer", placed(number))
    full = len(booked.sequences.bookings), booked.refused()

    booked.receive("peer", bare(3, 0), now=2.0)
    booked.receive("peer", placed(FLOOD), now=2.0)

    assert full == (MOST, FLOOD - MOST)
    assert "peer#0" not in booked.sequences.bookings
    assert f"peer#{FLOOD}" in booked.sequences.bookings


def test_all_peers_together_book_so_much(booked: Booked) -> None:
    for number in range(FLOOD):
        booked.receive(f"peer-{number % 20}", placed(number))

    assert len(booked.sequences.bookings) == 4 * MOST


def test_bookings_at_invented_workers_are_bounded_and_forgotten(booked: Booked) -> None:
    for number in range(FLOOD):
        name = f"peer-{number % 20}"
        stranger = named(1, f"stranger-{number}")
        booked.receive(name, stranger, placed(number, 1), bare(3, number))
    most = booked.sequences.statistics().workers
    booked.receive("peer", placed(FLOOD), now=2.0)

    list(booked.sync.receive(Tick("beat"), 30.0))
    young = booked.sequences.statistics().workers
    list(booked.sync.receive(Tick("beat"), 61.0))

    assert (most, young) == (MOST, MOST + 1)
    assert booked.refused() == FLOOD - MOST
    assert booked.sequences.statistics().workers == 1


def test_a_stranger_that_joins_is_one_no_more(booked: Booked) -> None:
    booked.receive("peer", named(1, "late"), placed(1, 1))
    booked.scheduler.workers.membership.observe("late", 1, 0.0)

    list(booked.sync.receive(Tick("beat"), 1.0))
    list(booked.sync.receive(Tick("beat"), 9.0))

    assert booked.sync.peers._events.strangers == {}
    assert booked.sequences.loads(WorkerId("late")).active_requests == 1


def test_so_many_peers_are_followed_and_one_that_is_heard_before_others(booked: Booked) -> None:
    for number in range(FLOOD):
        booked.receive(f"stranger-{number}", placed(number))
    unheard = booked.receive("sibling", placed(FLOOD))
    refused = booked.refused()
    list(booked.sync.receive(RouterSeen(router("sibling"), joined=True), 1.0))

    booked.receive("sibling", named(0, HONEST), placed(FLOOD + 1), now=1.0)

    assert unheard == []
    assert refused == FLOOD - MOST + 1
    assert [one.owner for one in booked.sequences.owned("sibling")] == ["sibling"]
    assert booked.sequences.owned("stranger-0") == []
    list(booked.sync.receive(Tick("beat"), 5.0))
    assert len(booked.sync._asked) <= MOST


def test_what_is_retold_and_never_ends_is_not_kept_for_ever(booked: Booked) -> None:
    booked.receive("peer", state_begins())
    for number in range(FLOOD):
        now = float(number)
        booked.receive("peer", placed(number), now=now)
        booked.sequences.finish(f"peer#{number}")

    known = booked.sync.peers._peers["peer"]
    assert len(known.republished) <= MOST + 1


class Beat(msgspec.Struct, frozen=True):
    url: str
    leaving: bool = False


def test_of_members_given_up_so_many_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent_members, "MOST_LOST", MOST)
    members = Membership()
    members.signs.asked = True
    silent = SilentMembers[Beat](members, lambda _: None)

    for number in range(FLOOD):
        silent.lose(f"w{number}", Beat(f"http://w{number}"), 0.0)
    asked = silent.due(5.0)
    silent.lose("later", Beat("http://later"), 1000.0)

    assert len(asked) == MOST < MOST_LOST
    assert [name for name, _ in silent.due(1005.0)] == ["later"]


def test_of_names_so_many_are_remembered_however_many_come_at_once() -> None:
    names = KnownNames(MOST)

    names.add(str(number) for number in range(FLOOD))
    names.add(["again", "again"])

    assert len(names) == MOST
    assert "again" in names
    assert str(FLOOD - 1) in names


def test_a_worker_whose_epochs_are_used_up_in_its_name_is_followed_again() -> None:
    """Who stole its key wrote a record with the last epoch; its own come behind none."""
    followed = Followed()
    last = 2**62
    followed.read(HONEST, epoch=last)
    said: list[str] = []

    for tenth in range(100):
        now = tenth / 10
        list(followed.indexer.receive(WorkerSeen(worker(HONEST, 2)), now))
        said += logs(list(followed.indexer.receive(Tick("check"), now)))
    followed.read(HONEST, 10.0, epoch=1)

    assert "worker used its last epoch, starting again" in said
    assert followed.replica.cursors()[HONEST].epoch == 1
    list(followed.indexer.receive(WorkerGone(HONEST), 10.0))
