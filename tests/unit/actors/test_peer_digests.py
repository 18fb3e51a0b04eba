"""A peer's claim about its index, beside one's own."""

from kvmesh.actors.kernel import Log
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.peer_digests import PeerDigests
from kvmesh.core.blocks.events import ROOT, Batch, Stored, WorkerId, encode_batch
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.replica import IndexReplica
from tests.unit.actors.effects import of

W = WorkerId("w")


def replica() -> IndexReplica:
    made = IndexReplica(KvIndex())
    made.open("today", 0.0)
    event = Stored(ROOT, pack_hashes([1, 2]))
    made.fold(1, W, encode_batch(Batch(1, 1, 1, [event])), 0.0)
    return made


def beat(made: IndexReplica, wrong: int = 0) -> RouterHeartbeat:
    claim = made.claim()
    return RouterHeartbeat(
        *("r2", "code", ""),
        ready=True,
        epoch=1,
        applied_sequence=claim.sequence,
        created=made.created,
        digest=claim.digest ^ wrong,
        scope=claim.scope,
    )


def test_a_contradiction_is_counted_and_acted_on_once_in_a_while() -> None:
    made = replica()
    digests = PeerDigests(made, 10.0)
    wrong = beat(made, wrong=1)

    found = [list(digests.compare(wrong, now)) for now in (0.0, 5.0, 10.0)]

    assert [[one.event for one in of(Log, effects)] for effects in found] == [
        ["replicas disagree about the index"],
        [],
        ["replicas disagree about the index"],
    ]
    assert digests.mismatches == 3
