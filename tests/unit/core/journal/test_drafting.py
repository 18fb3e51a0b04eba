"""The index as a snapshot's object."""

import hashlib

from kvmesh.core.blocks.events import ROOT, Batch, Stored, WorkerId, encode_batch
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import Position
from kvmesh.core.journal.drafting import Draft, draft_in_slices
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.formats import FormatRange

W = WorkerId("w")


def fold(replica: IndexReplica, *hashes: int) -> None:
    sequence = replica.applied_sequence + 1
    event = Stored(ROOT, pack_hashes(hashes))
    replica.fold(sequence, W, encode_batch(Batch(1, 1, sequence, [event])), 0.0)


def test_a_draft_is_the_index_of_the_moment_it_was_begun() -> None:
    replica = IndexReplica(KvIndex())
    replica.open("2026-01", 0.0)
    fold(replica, 1, 2)

    slices = draft_in_slices(replica, 7, 3, 3, "0.2.0")
    first = next(slices)
    fold(replica, 9)
    *_, draft = slices

    assert first is None
    assert isinstance(draft, Draft)
    reported = draft.generation
    assert (reported.name, reported.blocks, reported.encoding, reported.version) == (
        "idx-202601-1-7-3",
        2,
        3,
        "0.2.0",
    )
    assert (reported.size, reported.sha256) == (
        len(draft.data),
        hashlib.sha256(draft.data).hexdigest(),
    )
    snapshot = decode_snapshot(draft.data, reads=FormatRange(3, 3))
    assert snapshot.position == Position("2026-01", 1)
    assert [(one.worker, one.next_seq) for one in snapshot.records] == [(W, 2)]
