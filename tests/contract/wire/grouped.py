"""What journal and snapshots say of workers with several cache groups: rules and ends."""

from collections.abc import Iterator
from typing import Final

import msgspec

from kvmesh.core.blocks.events import (
    ENDS,
    ROOT,
    VERSION,
    Batch,
    Cleared,
    Event,
    Removed,
    Reuse,
    Stored,
    WorkerId,
    decode_batch,
    encode_batch,
)
from kvmesh.core.blocks.hashing import extend_hash, lookahead_digest, pack_hashes, unpack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import encode_snapshot
from tests.contract.wire.case import EPOCH, HASHES, WORKER, WireCase
from tests.contract.wire.stores import POSITION, RECORDS, snapshot_index

BEHIND: Final = b"\x07\0\0\0\xff\xff\xff\xff"
"""Two token ids."""

KEY: Final = 0x56E56E30D7B56A35
"""Of an end behind the first block that looks ahead at them."""

EVENTS: Final[list[Event]] = [
    Cleared(),
    Reuse(2, 1),
    Stored(ROOT, pack_hashes(HASHES)),
    Stored(ROOT, pack_hashes([KEY]), ENDS),
    Stored(ROOT, pack_hashes([HASHES[1], KEY]), ENDS + 2),
    Removed(pack_hashes([KEY]), ENDS),
    Reuse(),
]
INDEX_DIGEST: Final = 17807377643788630240
DIGESTS: Final = {WorkerId("w0"): 327942116916541531, WORKER: 6583981001892582429}


class GroupedSaid(msgspec.Struct, frozen=True):
    """What a snapshot tells of grouped workers: their rules, and digests of all they hold."""

    rules: dict[WorkerId, Reuse]
    digests: dict[WorkerId, int]
    digest: int
    ends: int


def grouped_index() -> KvIndex:
    index = snapshot_index()
    for event in EVENTS[:-2]:
        index.apply(WORKER, event)
    return index


def write_snapshot() -> bytes:
    return b"".join(encode_snapshot(grouped_index().freeze(), POSITION, RECORDS))


def read_snapshot(data: bytes) -> GroupedSaid:
    snapshot, index = decode_snapshot(data), KvIndex()
    index.load(snapshot.image, snapshot.truncated)
    digests = {worker: index.worker_digest(worker) for worker in index.workers()}
    return GroupedSaid(index.ends.rules(), digests, index.digest(), index.statistics().ends)


def grouped() -> Iterator[tuple[str, WireCase]]:
    batch = Batch(VERSION, EPOCH, 9, EVENTS)
    yield "journal_grouped", WireCase(lambda: encode_batch(batch), decode_batch, batch)
    said = GroupedSaid({WORKER: Reuse(2, 1)}, DIGESTS, INDEX_DIGEST, 3)
    yield "snapshot_grouped", WireCase(write_snapshot, read_snapshot, said)
    key = extend_hash(HASHES[0], lookahead_digest(BEHIND))
    yield "end_key", WireCase(lambda: pack_hashes([key]), unpack_hashes, (KEY,))
