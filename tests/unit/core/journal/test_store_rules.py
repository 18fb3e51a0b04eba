"""Which index may be stored, and behind which the journal may be cut."""

import pytest

from kvmesh.core.blocks.events import (
    ROOT,
    Batch,
    Cleared,
    Event,
    Stored,
    WorkerId,
    encode_batch,
)
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.core.journal.store_rules import PATIENCE_S, StoreRules
from kvmesh.core.journal.unread import KEEP_S

A, B = WorkerId("a"), WorkerId("b")


class Bench:
    """One replica, fed by hand."""

    def __init__(self) -> None:
        self.replica = IndexReplica(KvIndex())
        self.replica.open("today", 0.0)
        self.rules = StoreRules(self.replica)

    def record(self, worker: WorkerId, first_seq: int, *events: Event, number: int = 1) -> None:
        data = encode_batch(Batch(number, 1, first_seq, list(events)))
        self.replica.fold(self.replica.applied_sequence + 1, worker, data, 0.0)

    def store(self, now: float = 0.0) -> bool:
        """Store a snapshot; return whether the journal may be cut behind it."""
        self.rules.freeze(now)
        return not self.rules.why_not_cut(now)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.record(A, 1, Cleared(), Stored(ROOT, pack_hashes([1, 2])))
    return made


def test_an_index_that_is_known_exactly_is_stored_and_the_journal_cut(bench: Bench) -> None:
    assert bench.rules.why_not_store(0.0) == ""
    assert bench.store()


def test_an_index_that_lacks_what_could_not_be_read_is_never_stored(bench: Bench) -> None:
    bench.record(A, 3, Stored(ROOT, pack_hashes([3])), number=3)
    bench.record(B, 1, Cleared(), number=4)

    assert bench.rules.why_not_store(PATIENCE_S) == (
        "journal records of 'a', 'b' have format 3, 4, which is not read"
    )
    bench.replica.forget(A)
    assert "'a'" in bench.rules.why_not_store(KEEP_S - 1.0)


def test_the_first_snapshot_behind_something_unreadable_cuts_nothing(bench: Bench) -> None:
    bench.record(A, 3, Stored(ROOT, pack_hashes([3])), number=3)
    bench.record(A, 4, Cleared(), Stored(ROOT, pack_hashes([3])))

    assert (bench.rules.why_not_store(0.0), [bench.store(), bench.store()]) == ("", [False, True])


def test_a_live_worker_of_which_nothing_was_read_holds_up_snapshots_for_a_while(
    bench: Bench,
) -> None:
    recovery = bench.replica.recovery
    recovery.receive(B, 1, 7, 0.0)
    waits = bench.rules.why_not_store(1.0)
    recovery.receive(B, 1, 7, PATIENCE_S)

    assert (waits, bench.rules.why_not_store(PATIENCE_S)) == ("nothing was read yet of 'b'", "")
    assert not bench.store(PATIENCE_S)


def test_ever_new_workers_of_which_nothing_was_read_hold_up_no_longer(bench: Bench) -> None:
    whys = list[str]()
    for number in range(4):
        now = number * PATIENCE_S / 2.0
        bench.replica.recovery.receive(WorkerId(f"w{number}"), 1, 7, now)
        whys.append(bench.rules.why_not_store(now))
    later = 10.0 * PATIENCE_S
    none = bench.rules.why_not_store(later)
    bench.replica.recovery.receive(B, 1, 7, later)

    assert ([bool(why) for why in whys], none) == ([True, True, False, False], "")
    assert bench.rules.why_not_store(later) == "nothing was read yet of 'b'"


def test_a_worker_in_doubt_keeps_the_journal_whole(bench: Bench) -> None:
    bench.record(A, 9, Stored(ROOT, pack_hashes([3])))
    suspect = bench.store()
    bench.record(A, 10, Cleared())

    assert bench.rules.why_not_store(0.0) == ""
    assert not suspect
    assert bench.store()


def test_a_doubt_that_comes_while_a_snapshot_is_written_counts(bench: Bench) -> None:
    bench.rules.freeze(0.0)
    bench.record(A, 9, Stored(ROOT, pack_hashes([3])))

    assert bench.rules.why_not_cut(0.0) == "events are missing of 'a'"


def test_a_worker_that_sends_events_no_more_keeps_no_journal(bench: Bench) -> None:
    replica = bench.replica
    replica.skip(replica.applied_sequence, 0.0)
    is_distrusted = bench.store()

    replica.recovery.describe(A, events=False, complete=True)
    replica.recovery.receive(A, 2, 0, 0.0)

    assert not is_distrusted
    assert replica.recovery.is_distrusted(A)
    assert bench.store()
