"""Absurd messages of every kind into the real actors, between honest requests: none of them ends.

What decodes is in range by its type; here it goes on into loads, costs, digests, heartbeats of
our own and snapshots, and all of that must still encode.
"""

import random
from typing import Final

import msgspec
import pytest

from kvmesh.actors.indexer import Indexer, IndexerOptions
from kvmesh.actors.kernel import Actor, Append, Message, Publish, Send
from kvmesh.actors.messages import (
    Appended,
    BookingsWait,
    BusMessage,
    CaughtUp,
    JournalOpened,
    JournalRecord,
    RouterHeartbeat,
    Started,
    Tick,
)
from kvmesh.actors.meta_router import MetaRouter
from kvmesh.actors.publisher import Publisher
from kvmesh.actors.publisher_options import PublisherOptions
from kvmesh.actors.registry import Registry, RegistryOptions
from kvmesh.actors.replica_sync import ReplicaSync, ReplicaSyncOptions
from kvmesh.actors.router import Router
from kvmesh.actors.wire import decode, encode
from kvmesh.bounds import MAX_ORDINAL
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import Position, WorkerRecord, encode_snapshot
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import KvMeshError

U64: Final = 2**64 - 1
NUMBERS: Final = (
    *(0, 1, 2, 16, -1, 2**31 - 1, 2**31, 2**40, 2**53, MAX_ORDINAL, -MAX_ORDINAL, 2**63, U64),
)
REALS: Final = (0.0, 1.0, -1.0, 1e12, 1e308, 5e-324, float("nan"), float("inf"))
NAMES: Final = ("w1", "w2", "w3", "r1", "r2", "", "m", "prefill", "x" * 300)
URLS: Final = ("http://127.0.0.1:8000", "http://a:1", "x", "http://[::1]:80", "http://\u0130:80")
TICKS: Final = ("check", "sweep", "heartbeat", "flush", "beat", "retry", "format", "state")
STEPS: Final = 250


class Bucket:
    """One router process, its sidecar and a meta-router, without anything in between."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        index = KvIndex()
        self.scheduler = scheduler = Scheduler(
            RouterOptions(),
            random.Random(1),
            membership=Membership(),
            sequences=new_sequences(16),
            index=index,
            routed=new_approx(),
        )
        self.replica = IndexReplica(index)
        self.router = Router(scheduler, 16)
        self.meta = MetaRouter("kvmesh", policy="prefix-spill")
        registry = RegistryOptions(
            "r0", "b", workers_to=("indexer", "router"), routers_to=("indexer", "replica_sync")
        )
        actors: tuple[Actor, ...] = (
            Indexer(self.replica, IndexerOptions("r0", "b", listeners=("registry",))),
            self.router,
            Registry(registry, scheduler.workers, Membership(), status=self.heartbeat),
            ReplicaSync(scheduler, ReplicaSyncOptions("r0", "b", 1)),
            Publisher(PublisherOptions(WorkerId("w1"), "b", 5, "http://x:1")),
            self.meta,
        )
        self.actors = {actor.name: actor for actor in actors}
        for name in self.actors:
            self.give(name, Started())
        for message in (JournalOpened("c"), CaughtUp(0)):
            self.give("indexer", message)

    def heartbeat(self) -> RouterHeartbeat:
        claim = self.replica.claim()
        return RouterHeartbeat(
            *("r0", "b", "http://x:1"),
            ready=True,
            epoch=1,
            applied_sequence=claim.sequence,
            digest=claim.digest,
            scope=claim.scope,
            heat=self.router.heat(self.now),
            models=self.router.models(),
        )

    def give(self, name: str, message: Message, depth: int = 0) -> None:
        for effect in self.actors[name].receive(message, self.now):
            if isinstance(effect, Send) and effect.to in self.actors and depth < 5:
                self.give(effect.to, effect.message, depth + 1)
            if isinstance(effect, Append) and depth < 5:
                self.give(name, Appended(effect.token, self.rng.randrange(1, 50)), depth + 1)
            if isinstance(effect, Publish) and effect.subject == "kvmesh.rt.b.r0":
                assert decode(effect.data, RouterHeartbeat).router == "r0", "siblings can read it"

    def number(self) -> int:
        return self.rng.choice(NUMBERS) if self.rng.random() < 0.4 else self.rng.randrange(8)

    def value(self) -> object:
        kind = self.rng.randrange(4)
        if kind == 0:
            return self.rng.choice(REALS)
        if kind == 1:
            return self.rng.choice(NAMES)
        return self.number() if kind == 2 else [self.rng.choice(NAMES)]

    def worker_beat(self) -> None:
        rng = self.rng
        name = rng.choice(NAMES)
        beat: dict[str, object] = {
            "worker": name, "bucket": "b", "epoch": self.number(), "last_seq": self.number(),
            "url": rng.choice(URLS), "models": rng.choice([(), ("m",), ("",)]),
            "block_size": self.number(), "events": rng.random() < 0.8,
            "load": {
                "running_requests": self.number(), "waiting_requests": self.number(),
                "used_blocks": self.number(), "total_blocks": self.number(),
                "waiting_tokens": rng.choice([None, self.number()]),
                "prefilled_tokens": self.number(), "prefill_busy_us": self.number(),
                "total_slots": self.number(), "cache_queried_tokens": self.number(),
                "cache_hit_tokens": self.number(),
            },
            "dp_rank": rng.choice([None, self.number()]), "labels": rng.choice([(), ("prefill",)]),
            "secret_mark": self.number(), "reading": self.number(),
        }  # fmt: skip
        if rng.random() < 0.3:
            beat[rng.choice(sorted(beat))] = self.value()
        self.give("registry", BusMessage(f"kvmesh.hb.b.{name}", msgspec.msgpack.encode(beat)))

    def router_beat(self) -> None:
        rng = self.rng
        name = rng.choice(NAMES)
        heat = {"backlog_ms": rng.choice(REALS), "ms_per_token": rng.choice(REALS)}
        limits = {"max_queued": self.value(), rng.choice(NAMES): self.value()}
        beat: dict[str, object] = {
            "router": name, "bucket": "b", "url": rng.choice(URLS), "ready": True,
            "epoch": self.number(), "applied_sequence": self.number(), "created": "c",
            "digest": self.number(), "scope": self.number(), "active_requests": self.number(),
            "models": rng.choice([(), ("m",)]), "workers": rng.choice([(), ("w1",)]),
            "heat": {**heat, "workers": self.number()},
            "admission": {"at": rng.choice(REALS), "by": name, "limits": limits},
        }  # fmt: skip
        for field in rng.sample(sorted(beat), rng.randrange(3)):
            if rng.random() < 0.5:
                del beat[field]
        message = BusMessage(f"kvmesh.rt.b.{name}", msgspec.msgpack.encode(beat))
        self.give("registry", message)
        self.give("meta-router", message)

    def record(self) -> None:
        rng, events = self.rng, list[object]()
        for _ in range(rng.randrange(4)):
            run = b"".join(
                rng.choice([1, 2, 3, U64]).to_bytes(8, "little") for _ in range(rng.randrange(4))
            )
            tier = rng.choice([0, 0, 0, 1, 3, 4, 255, 256, -1, 2**40])
            parent = rng.choice([0, 0, 1, 2, U64, -1])
            events.append(rng.choice([[0, parent, run, tier], [1, run, tier], [2]]))
        data = msgspec.msgpack.encode([1, self.number(), self.number(), events])
        sequence = self.replica.applied_sequence + rng.choice([0, 1, 1, 1, 5])
        self.give("indexer", JournalRecord(sequence, WorkerId(rng.choice(NAMES)), data))

    def bookings(self) -> None:
        rng, events = self.rng, list[object]()
        for _ in range(rng.randrange(4)):
            name = rng.choice(["q1", "q2", "q3"])
            packed = b"".join(
                rng.randrange(5).to_bytes(8, "little") for _ in range(rng.randrange(4))
            )
            placed = [0, name, rng.choice(NAMES), self.number(), self.number(), self.number()]
            ended = [3, name, self.number(), "x" * 99, rng.choice(REALS), rng.choice(REALS)]
            events.append(
                rng.choice(
                    (
                        *([*placed, packed, True, packed], [1, name], [2, name, self.number()]),
                        *(ended, [4], [5]),
                    )
                )
            )
        data = msgspec.msgpack.encode([1, rng.choice([1, 1, self.number()]), self.number(), events])
        self.give("replica_sync", BusMessage(f"kvmesh.seq.b.{rng.choice(NAMES)}", data))

    def command(self) -> None:
        asked = {"type": "resync", "worker": "w1", "epoch": self.number()}
        asked |= {"next_seq": self.number()}
        self.give("publisher", BusMessage("kvmesh.ctl.b.w1", msgspec.msgpack.encode(asked)))
        for publisher in (self.actors["publisher"],):
            assert isinstance(publisher, Publisher)
            assert 0 <= publisher.heartbeat().epoch <= MAX_ORDINAL
            encode(publisher.heartbeat())

    def tick(self) -> None:
        name = self.rng.choice(sorted(self.actors))
        if name != "router":
            self.give(name, Tick(self.rng.choice(TICKS)))

    def request(self) -> None:
        self.steps += 1
        hashes = BlockHashes.of([1, 2, 3, 4][: self.rng.randrange(5)], 16)
        request = RouteRequest(f"x{self.steps}", hashes, self.rng.choice([0, 16, 100]))
        try:
            self.rng.choice([self.scheduler.schedule, self.scheduler.explain])(request, self.now)
            sync = self.actors["replica_sync"]
            assert isinstance(sync, ReplicaSync)
            if (booking := self.scheduler.sequences.bookings.get(request.request_id)) is not None:
                sync.outbox.placed(booking)
            self.give("replica_sync", BookingsWait())
            if self.rng.random() < 0.7:
                self.scheduler.first_token(request.request_id, self.now)
                self.scheduler.finish(request.request_id, self.now)
                sync.outbox.ended(request.request_id)
                self.give("replica_sync", BookingsWait())
        except KvMeshError:
            return

    def snapshot(self) -> None:
        records = [
            WorkerRecord(worker, one.epoch, one.next_seq, one.gap)
            for worker, one in self.replica.cursors().items()
        ]
        position = Position("c", self.replica.applied_sequence)
        data = b"".join(encode_snapshot(self.replica.index.freeze(), position, records))
        assert decode_snapshot(data).position == position

    def meta_route(self) -> None:
        try:
            self.meta.table.route(BucketRequest(prompt_start="x", prompt_chars=5), self.now)
        except KvMeshError:
            return

    def step(self) -> None:
        rng = self.rng
        self.now += rng.choice([0.0, 0.001, 0.3, 1.0, 6.0])
        rng.choice(
            (
                *(self.worker_beat, self.router_beat, self.record, self.bookings, self.command),
                *(self.tick, self.request, self.snapshot, self.meta_route),
            )
        )()


@pytest.mark.parametrize("seed", range(12))
def test_no_message_ends_an_actor_or_makes_what_cannot_be_told(seed: int) -> None:
    bucket = Bucket(seed)

    for _ in range(STEPS):
        bucket.step()

    assert decode(encode(bucket.heartbeat()), RouterHeartbeat) == bucket.heartbeat()
