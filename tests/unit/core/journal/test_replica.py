from collections.abc import Iterable

from kvmesh.core.blocks.events import (
    ROOT,
    VERSION,
    Batch,
    Cleared,
    Event,
    Removed,
    Stored,
    WorkerId,
)
from kvmesh.core.blocks.events import encode_batch as encode
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.digest import Claim
from kvmesh.core.journal.ordering import Cursor
from kvmesh.core.journal.replica import Folded, IndexReplica

A, B = WorkerId("a"), WorkerId("b")


def batch(first_seq: int, *events: Event, epoch: int = 1) -> bytes:
    return encode(Batch(VERSION, epoch, first_seq, list(events)))


def stored(parent: int, *hashes: int) -> Stored:
    return Stored(parent, pack_hashes(hashes))


def replica(*records: tuple[WorkerId, bytes]) -> IndexReplica:
    made = IndexReplica(KvIndex())
    made.open("today", 0.0)
    for sequence, (worker, data) in enumerate(records, start=1):
        made.fold(sequence, worker, data, 0.0)
    return made


def held(made: IndexReplica, workers: Iterable[WorkerId] = (A, B)) -> dict[WorkerId, int]:
    return {worker: made.index.blocks(worker) for worker in workers}


def test_a_new_epoch_takes_the_old_ones_blocks_away() -> None:
    made = replica((A, batch(1, stored(ROOT, 1, 2))))

    assert made.fold(2, A, batch(1, stored(ROOT, 3), epoch=2), 0.0) == Folded(cleared=True)
    assert held(made)[A] == 1


def test_a_store_that_does_not_fit_is_a_gap_until_the_worker_starts_over() -> None:
    made = replica((A, batch(1, stored(77, 78))), (A, batch(2, stored(ROOT, 1))))

    assert made.statistics().orphans == 1
    assert made.cursors()[A].gap
    made.fold(3, A, batch(9, Cleared(), stored(ROOT, 1)), 0.0)
    assert made.cursors()[A] == Cursor(1, 11)


def test_replicas_that_read_the_same_claim_the_same() -> None:
    records = [
        (A, batch(1, Cleared(), stored(ROOT, 1, 2))),
        (B, batch(1, stored(ROOT, 1))),
        (A, batch(3, Removed(pack_hashes([2])))),
    ]

    assert replica(*records).claim() == replica(*records).claim()


def test_a_peer_that_claims_otherwise_is_found_out() -> None:
    made = replica((A, batch(1, stored(ROOT, 1))))
    claim = made.claim()
    wrong = Claim(claim.sequence, claim.digest ^ 1, claim.scope)

    assert made.compare("peer", "today", claim) is None
    assert made.compare("peer", "yesterday", wrong) is None
    assert made.compare("peer", "today", wrong) == wrong
    made.forget_peer("peer")


def test_workers_that_lost_blocks_for_lack_of_room_are_not_compared() -> None:
    made = IndexReplica(KvIndex(max_blocks=1024))
    made.open("today", 0.0)
    made.fold(1, A, batch(1, stored(ROOT, *range(1, 60))), 0.0)
    sequence = 1
    while not made.index.truncated(A):
        sequence += 1
        run = range(1000 * sequence, 1000 * sequence + 30)
        made.fold(sequence, B, batch(sequence - 1, stored(ROOT, *run)), 0.0)
    before_a_was_missed = made._digest.claim(sequence)

    wrong = Claim(sequence, before_a_was_missed.digest ^ 1, before_a_was_missed.scope)

    assert made.compare("peer", "today", wrong) is None
    assert made.claim() == Claim(sequence, 0, 0)
    assert not made.recovery.is_distrusted(A)


def test_all_can_be_distrusted_until_they_start_over() -> None:
    made = replica((A, batch(1, stored(ROOT, 1))), (B, batch(1, stored(ROOT, 1))))

    made.distrust_all(1.0)
    made.settle_all()

    assert all(cursor.gap for cursor in made.cursors().values())
    assert made.claim().scope == 0


def test_skipped_records_leave_everybody_in_doubt() -> None:
    made = replica((A, batch(1, stored(ROOT, 1))))

    made.skip(40, 1.0)

    assert made.applied_sequence == 40
    assert made.recovery.is_distrusted(A)


def test_a_restored_replica_goes_on_behind_its_snapshot() -> None:
    records = [(A, batch(1, stored(ROOT, 1))), (B, batch(1, stored(ROOT, 1)))]
    source, made = replica(*records), replica((B, batch(1, stored(ROOT, 7))))
    made.index.clear(B)
    made.index.apply(A, stored(ROOT, 1))

    made.restore(2, "today", {A: source.cursors()[A]}, 1.0)
    made.fold(9, A, batch(9, stored(ROOT, 9)), 1.0)
    assert made.applied_sequence == 2
    made.open("today", 1.0)
    made.fold(3, A, batch(2, stored(1, 2)), 1.0)

    assert (made.applied_sequence, made.cursors()) == (3, {A: Cursor(1, 3)})
    assert held(made) == {A: 2, B: 0}


def test_a_tail_on_another_stream_begins_again() -> None:
    made = replica((A, batch(1, stored(ROOT, 1))))

    made.open("tomorrow", 1.0)

    assert (made.applied_sequence, made.created) == (0, "tomorrow")
    assert made.recovery.is_distrusted(A)
    assert held(made)[A] == 1


def test_a_record_with_impossible_numbers_makes_no_worker() -> None:
    made = replica((A, batch(0, stored(ROOT, 1))))

    assert (list(made.workers()), made.statistics().verdicts) == ([], {"stale": 1})


def newer(first_seq: int, *events: Event) -> bytes:
    return encode(Batch(VERSION + 1, 1, first_seq, list(events)))


def test_a_newer_record_is_no_garbage_and_puts_its_worker_in_doubt() -> None:
    made = replica((A, batch(1, Cleared(), stored(ROOT, 1))))

    folded = made.fold(2, A, newer(3, stored(ROOT, 2)), 0.0)
    unknown = made.fold(3, B, newer(1, Cleared()), 0.0)

    assert (folded, unknown) == (Folded(turned=True), Folded(turned=True))
    assert (made.statistics().garbage, made.statistics().unread) == (0, 2)
    assert made.unread.formats(0.0) == {A: VERSION + 1, B: VERSION + 1}
    assert made.recovery.is_distrusted(A)
    assert made.applied_sequence == 3


def test_a_restored_snapshot_has_what_could_not_be_read() -> None:
    made = replica((A, newer(1, Cleared())))

    made.restore(5, "today", {A: Cursor(1, 3)}, 0.0)

    assert made.unread.formats(0.0) == {}
    assert not made.recovery.is_distrusted(A)


def test_newer_records_of_more_workers_than_there_is_room_for_are_refused() -> None:
    made = IndexReplica(KvIndex(), max_workers=1)
    made.open("today", 0.0)
    made.fold(1, A, newer(1, Cleared()), 0.0)

    folded = made.fold(2, B, newer(1, Cleared()), 0.0)

    assert f"has format {VERSION + 1}" in folded.refused
    assert made.statistics().crowded == 1
