"""An index as the object of a snapshot, and what a manifest says of it."""

import hashlib
from collections.abc import Iterator

import msgspec

from kvmesh.core.index.snapshot_manifest import SnapshotGeneration
from kvmesh.core.index.snapshot_writing import Position, WorkerRecord, encode_snapshot
from kvmesh.core.journal.replica import IndexReplica


class Draft(msgspec.Struct, frozen=True):
    """The bytes of a snapshot, and the generation that they would be."""

    generation: SnapshotGeneration
    data: bytes


def draft_in_slices(
    replica: IndexReplica, fence: int, attempt: int, number: int, version: str
) -> Iterator[Draft | None]:
    """Freeze the index; yield None after each slice of the encoding, and last the draft.

    It has the format `number`, and is written by `version`; `fence` and
    `attempt` make its name one never used before.
    """
    sequence, created = replica.applied_sequence, replica.created
    records = [
        WorkerRecord(worker, cursor.epoch, cursor.next_seq, cursor.gap)
        for worker, cursor in sorted(replica.cursors().items())
    ]
    frozen = replica.index.freeze()
    blocks = sum(sum(one.blocks) for one in frozen.workers)
    digest = hashlib.sha256()
    pieces: list[bytes] = []
    for piece in encode_snapshot(frozen, Position(created, sequence), records, number):
        digest.update(piece)
        pieces.append(piece)
        yield None
    data = b"".join(pieces)
    made = "".join(letter for letter in created if letter.isalnum())
    generation = SnapshotGeneration(
        name=f"idx-{made}-{sequence}-{fence}-{attempt}",
        created=created,
        sequence=sequence,
        size=len(data),
        sha256=digest.hexdigest(),
        fence=fence,
        blocks=blocks,
        encoding=number,
        version=version,
    )
    yield Draft(generation, data)
