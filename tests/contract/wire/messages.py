"""What travels: journal records, heartbeats, commands and their answers, seals."""

from collections.abc import Iterator
from typing import Final

import msgspec
from nacl.signing import SigningKey

from kvmesh.actors.kernel import Message
from kvmesh.actors.member_messages import Reread
from kvmesh.actors.messages import (
    Drain,
    Dump,
    Reload,
    Resync,
    RouterHeartbeat,
    StateWanted,
    Status,
    TakeSnapshot,
    WorkerHeartbeat,
    WorkerLoad,
    WriteFormat,
)
from kvmesh.actors.wire import decode, encode
from kvmesh.core.admission.sibling_counters import SharedLimits
from kvmesh.core.blocks.events import (
    ROOT,
    Batch,
    Cleared,
    Event,
    Removed,
    Stored,
    WorkerId,
    decode_batch,
    encode_batch,
)
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.buckets.spill import BucketHeat
from kvmesh.core.cost.arm_tally import Tally, Times
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout_state import NO_NEWS, PolicyUpdate, RolloutState, Step, TrialReport
from kvmesh.formats import FormatRange, Formats
from kvmesh.transport.commands import CommandReply
from kvmesh.transport.nats.trust.seal import Sealer, parse_seal
from tests.contract.wire.case import CREATED, EPOCH, HASHES, LAST, WORKER, WireCase

FORMATS: Final = Formats(FormatRange(1, 2), FormatRange(1, 2), FormatRange(2, 3), FormatRange(4, 4))


def of_batch(*events: Event, first_seq: int = 1) -> WireCase:
    batch = Batch(1, EPOCH, first_seq, list(events))
    return WireCase(lambda: encode_batch(batch), decode_batch, batch)


def of_message(value: Message) -> WireCase:
    return WireCase(lambda: encode(value), lambda data: decode(data, type(value)), value)


def journal() -> Iterator[tuple[str, WireCase]]:
    yield "journal_stored", of_batch(Stored(ROOT, pack_hashes(HASHES)), first_seq=200)
    yield "journal_tier", of_batch(Stored(LAST, pack_hashes([7]), 2), first_seq=2**40)
    yield "journal_removed", of_batch(Removed(pack_hashes(HASHES[:2])), Removed(b"", 1))
    yield "journal_cleared", of_batch(Cleared(), Stored(ROOT, pack_hashes([5])), Cleared())
    yield "journal_empty", of_batch()


def worker_heartbeat() -> WorkerHeartbeat:
    return WorkerHeartbeat(
        worker=WORKER,
        bucket="chat",
        epoch=EPOCH,
        last_seq=4711,
        url="http://10.0.0.7:8000",
        models=("qwen", "qwen-lora"),
        block_size=16,
        load=WorkerLoad(3, 2, 700, 1000, 512, 90_000, 1_500_000, 256, 0.5, 10_000, 5_000),
        events=True,
        dp_rank=1,
        draining=True,
        complete=False,
        secret_mark=2**64 - 1,
        labels=("zone=a",),
        taints=("night",),
        adapters=("qwen-lora",),
        bootstrap_port=9000,
        reading=12,
        health_path="/healthz",
        answering=False,
        engine="sglang",
        unsalted=("/v1/embeddings",),
        version="1.4.0",
        formats=FORMATS,
        journal_format=2,
    )


def policy_news() -> PolicyUpdate:
    change = PolicyChange(PolicySpec("dynamo", {"overlap": 2.0}), at_once=False, min_requests=50)
    steps = (Step(1.5e9, "r0", 0.1, "begun"),)
    state = RolloutState(1.5e9, "r0", change, PolicySpec("kvmesh"), "running", 0, steps)
    seen = Tally(2, 1, Times(2, 1.25, 0.5, (1, 0, 1)), Times())
    return PolicyUpdate(state, TrialReport(1.5e9, "r0", (seen, Tally())), True, ("mine",))


def router_heartbeat() -> RouterHeartbeat:
    return RouterHeartbeat(
        router="r0",
        bucket="chat",
        url="http://10.0.0.1:8000",
        ready=True,
        epoch=EPOCH,
        applied_sequence=123_456,
        created=CREATED,
        digest=2**64 - 1,
        active_requests=17,
        models=("qwen",),
        draining=False,
        scope=99,
        heat=BucketHeat(12.5, 0.25, 4),
        admission=SharedLimits(1.5e9, "r0", {"max_queue": 5, "share": 0.5, "by": "locality"}),
        workers=("w0", WORKER),
        left_out=("w1",),
        follower=False,
        policy=policy_news(),
        version="1.4.0",
        formats=FORMATS,
    )


def heartbeats() -> Iterator[tuple[str, WireCase]]:
    yield "worker_heartbeat", of_message(worker_heartbeat())
    least = WorkerHeartbeat(WorkerId("w0"), "chat", 1, 0, "http://w:1", (), 16)
    yield "worker_heartbeat_least", of_message(least)
    yield (
        "router_heartbeat",
        of_message(msgspec.structs.replace(router_heartbeat(), policy=NO_NEWS)),
    )
    yield "router_heartbeat_least", of_message(RouterHeartbeat("r0", "chat", "", False, 1))


def trials() -> Iterator[tuple[str, WireCase]]:
    """Heartbeats that tell how a policy on trial does: in the first version another field did."""
    yield "router_heartbeat", of_message(router_heartbeat())


def commands() -> Iterator[tuple[str, WireCase]]:
    yield "command_resync", of_message(Resync(WORKER, EPOCH, 17, "r0"))
    yield "command_reread", of_message(Reread(WORKER))
    yield "command_state_wanted", of_message(StateWanted("r0"))
    yield "command_drain", of_message(Drain())
    yield "command_undrain", of_message(Drain(draining=False))
    yield "command_dump", of_message(Dump("asked by an operator"))
    yield "command_reload", of_message(Reload("journal gap", 99))
    yield "command_status", of_message(Status())
    yield "command_take_snapshot", of_message(TakeSnapshot())
    yield "command_write_format", of_message(WriteFormat(WORKER, 2, "r0"))
    yield (
        "reply_done",
        of_reply(CommandReply(result=msgspec.Raw(msgspec.msgpack.encode({"taken": True})))),
    )
    yield "reply_refused", of_reply(CommandReply("Drain: not now"))


def of_reply(value: CommandReply) -> WireCase:
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(CommandReply)
    return WireCase(lambda: encoder.encode(value), decoder.decode, value)


def seals() -> Iterator[tuple[str, WireCase]]:
    """Yield the one envelope: the header that goes with a signed message."""
    subject, now_ms = "kvmesh.hb.chat.w0", 1_700_000_000_000

    def write() -> bytes:
        sealer = Sealer(SigningKey(bytes(range(32))), "0a1b2c3d4e5f")
        return sealer.seal(subject, b"payload", now_ms).encode()

    def read(data: bytes) -> tuple[object, ...]:
        seal = parse_seal(data.decode())
        return seal.key, seal.session, seal.time_ms, seal.counter

    key = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"
    yield "seal", WireCase(write, read, (key, "0a1b2c3d4e5f", now_ms, 1))
