"""What is stored, and what must be called alike on both sides: hashes, subjects, keys."""

from collections.abc import Iterator
from typing import Final

import msgspec

from kvmesh.actors.lease_keeper import LeaseKeeper
from kvmesh.actors.snapshotter import lease_key, manifest_key
from kvmesh.actors.storage import WriteKey
from kvmesh.actors.wire import Subjects
from kvmesh.actors.wishes import PendingEffects
from kvmesh.core.blocks.events import ROOT, Stored, WorkerId
from kvmesh.core.blocks.hashing import (
    BlockHashes,
    extend_hash,
    namespace_root,
    pack_hashes,
    secret_mark,
    sequence_hashes,
    unpack_hashes,
)
from kvmesh.core.buckets.homes import HomeOptions, Homes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_manifest import (
    Manifest,
    SnapshotGeneration,
    decode_manifest,
    encode_manifest,
)
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import Position, WorkerRecord, encode_snapshot
from kvmesh.core.journal.lease import Lease
from kvmesh.core.routing.sessions import SessionOptions, Sessions, session_key
from kvmesh.transport.nats.layout import (
    home_bucket,
    inbox_prefix,
    meta_bucket,
    session_bucket,
    snapshot_bucket,
)
from tests.contract.wire.case import CREATED, EPOCH, HASHES, WORKER, WireCase

BLOCK_HASHES: Final = (
    0x79C2079C74A8EE4D,
    0x909F26211E4EF238,
    0x1576E452069D4A92,
    0x39BD029C738AF063,
    0xECAE6527A07BB5DE,
    0xB9A4D808FFFF78AF,
    0xE7F38FD6,
)
INDEX_DIGEST: Final = 5370294900322425861
NAMES: Final = {
    "events": "kvmesh.ev.chat.w0",
    "worker heartbeats": "kvmesh.hb.chat.w0",
    "router heartbeats": "kvmesh.rt.chat.r0",
    "bookings": "kvmesh.seq.chat.r0",
    "commands to workers": "kvmesh.ctl.chat.w0",
    "commands to routers": "kvmesh.rctl.chat.r0",
    "stream": "KVMESH_EVENTS_chat",
    "leases and manifests": "kvmesh_meta",
    "manifest": "manifest.chat",
    "lease": "lease.snap.chat",
    "snapshots": "kvmesh_snapshots_chat",
    "homes": "kvmesh_homes",
    "sessions": "kvmesh_sessions_chat",
    "answers": "_INBOX.router.chat.r0",
}


class SnapshotSaid(msgspec.Struct, frozen=True):
    """What a snapshot tells, of its blocks how many each worker holds and their digest."""

    position: Position
    records: tuple[WorkerRecord, ...]
    truncated: tuple[WorkerId, ...]
    blocks: dict[WorkerId, tuple[int, int]]
    found: dict[WorkerId, int]
    digest: int


POSITION: Final = Position(CREATED, 123_456, b"own")
RECORDS: Final = (
    WorkerRecord(WorkerId("w0"), EPOCH, 4712, False, 16, b"own"),
    WorkerRecord(WORKER, EPOCH + 1, 9, True),
)


def snapshot_index() -> KvIndex:
    index = KvIndex()
    index.apply(WorkerId("w0"), Stored(ROOT, pack_hashes(HASHES)))
    index.apply(WorkerId("w0"), Stored(ROOT, pack_hashes([*HASHES, 77]), 1))
    index.apply(WORKER, Stored(ROOT, pack_hashes(HASHES[:2])))
    return index


def write_snapshot() -> bytes:
    return b"".join(encode_snapshot(snapshot_index().freeze(), POSITION, RECORDS))


def read_snapshot(data: bytes) -> SnapshotSaid:
    snapshot = decode_snapshot(data)
    index = KvIndex()
    index.load(snapshot.image, snapshot.truncated)
    return SnapshotSaid(
        snapshot.position,
        snapshot.records,
        snapshot.truncated,
        {one: (index.blocks(one), index.blocks(one, 1)) for one in index.workers()},
        index.find_matches(BlockHashes.of(HASHES, 16)),
        index.digest(),
    )


def of_stores() -> Iterator[tuple[str, WireCase]]:
    said = SnapshotSaid(
        POSITION,
        RECORDS,
        (),
        {WorkerId("w0"): (4, 5), WORKER: (2, 0)},
        {WorkerId("w0"): 4, WORKER: 2},
        INDEX_DIGEST,
    )
    yield "snapshot", WireCase(write_snapshot, read_snapshot, said)
    newest = SnapshotGeneration("idx-a-9-4-2", CREATED, 9, 4096, "0f" * 32, 4, 250)
    manifest = Manifest((newest, SnapshotGeneration("idx-a-5-3-1", CREATED, 5, 64, "ab", 3)))
    yield "manifest", WireCase(lambda: encode_manifest(manifest), decode_manifest, manifest)
    yield "lease", WireCase(written_lease, read_lease, "r0")
    yield "session", WireCase(written_session, read_session, WORKER)
    yield "home", WireCase(written_home, read_home, ("chat", "code"))


def written_lease() -> bytes:
    """Return what a candidate writes into the key of a lease."""
    [write] = LeaseKeeper("lease", "r0", PendingEffects()).renew(0.0, lambda _: ())
    assert isinstance(write, WriteKey)
    return write.value


def read_lease(data: bytes) -> str:
    """Return who holds a lease, as another candidate and the holder itself see it."""
    other, own = Lease("r1"), Lease("r0")
    assert not other.refused(data, 7, 0.0)
    own.found(data, 7)
    assert own.taken == 7
    return data.decode()


def written_session() -> bytes:
    """Return key and value of a session's row, as `SessionStore` writes them."""
    sessions = Sessions(SessionOptions("soft"))
    sessions.bind(session_key("conversation", "tenant"), WORKER, 0.0)
    [(key, value)] = sessions.updates.items()
    return f"{key} {value}".encode()


def read_session(data: bytes) -> WorkerId | None:
    sessions = Sessions(SessionOptions("soft"))
    key, value = data.decode().split(" ")
    sessions.learn(key, WorkerId(value), 0.0)
    return sessions.find(session_key("conversation", "tenant"), 0.0)


def written_home() -> bytes:
    """Return key and value of a home's row, as `HomeStore` writes them."""
    homes = Homes(HomeOptions())
    homes.note(0xBEEF, "chat", 0.0)
    homes.note(0xBEEF, "code", 0.0, ended=True)
    [(key, value)] = homes.updates.items()
    return f"{key} {value}".encode()


def read_home(data: bytes) -> tuple[str, ...]:
    homes = Homes(HomeOptions())
    key, value = data.decode().split(" ")
    homes.learn(key, value, 0.0)
    return homes.find_end(0xBEEF, 0.0)


def names() -> Iterator[tuple[str, WireCase]]:
    """Yield what is not a message, but must be the same on both sides: hashes, subjects, keys."""
    hashed = (
        *sequence_hashes(list(range(40)), 16),
        *sequence_hashes(
            b"\1\0\0\0\2\0\0\0", 1, namespace_root(tenant="t", lora="l", cache_salt="s")
        ),
        namespace_root(secret=b"kept by the deployment"),
        extend_hash(HASHES[0], HASHES[3]),
        secret_mark(b"kept by the deployment"),
    )
    yield "hashes", WireCase(lambda: pack_hashes(hashed), unpack_hashes, BLOCK_HASHES)
    subjects = Subjects("kvmesh", "chat")
    called = {
        "events": subjects.events("w0"),
        "worker heartbeats": subjects.heartbeats("w0"),
        "router heartbeats": subjects.routers("r0"),
        "bookings": subjects.bookings("r0"),
        "commands to workers": subjects.control("w0"),
        "commands to routers": subjects.router_control("r0"),
        "stream": subjects.stream(),
        "leases and manifests": meta_bucket("kvmesh"),
        "manifest": manifest_key("chat"),
        "lease": lease_key("chat"),
        "snapshots": snapshot_bucket(subjects),
        "homes": home_bucket("kvmesh"),
        "sessions": session_bucket(subjects),
        "answers": inbox_prefix("router", "chat", "r0"),
    }
    yield "names", WireCase(lambda: encode_names(called), msgspec.json.decode, NAMES)


def encode_names(called: dict[str, str]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(called), indent=1) + b"\n"
