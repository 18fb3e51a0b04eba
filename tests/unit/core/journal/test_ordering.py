from kvmesh.core.blocks.events import VERSION, Batch, Cleared, Event, Stored, WorkerId
from kvmesh.core.journal.ordering import NOTHING_FITS, Admission, Cursor, Ordering

WORKER = WorkerId("w")
EVENTS: list[Event] = [Stored(0, index.to_bytes(8, "little")) for index in range(8)]


def batch(first_seq: int, *events: Event, epoch: int = 1) -> Batch:
    return Batch(VERSION, epoch, first_seq, list(events))


def ordering(next_seq: int = 5, epoch: int = 1, *, gap: bool = False) -> Ordering:
    return Ordering({WORKER: Cursor(epoch, next_seq, gap)})


def test_the_next_events_are_applied() -> None:
    orders = ordering(5)

    assert orders.admit(WORKER, batch(5, *EVENTS[:2])) == Admission("apply", EVENTS[:2])
    assert orders.cursor(WORKER) == Cursor(1, 7)


def test_known_events_at_the_head_of_a_batch_are_skipped() -> None:
    orders = ordering(5)

    assert orders.admit(WORKER, batch(4, *EVENTS[:3])) == Admission("partial", EVENTS[1:3])
    assert orders.cursor(WORKER) == Cursor(1, 7)


def test_a_batch_of_known_events_changes_nothing() -> None:
    orders = ordering(5)

    assert orders.admit(WORKER, batch(3, *EVENTS[:2])).verdict == "duplicate"
    assert orders.cursor(WORKER) == Cursor(1, 5)


def test_events_behind_a_gap_are_not_applied() -> None:
    orders = ordering(5)

    assert orders.admit(WORKER, batch(7, *EVENTS[:2])) == Admission("gap")
    assert orders.cursor(WORKER) == Cursor(1, 5, gap=True)


def test_the_missing_events_end_a_gap() -> None:
    orders = ordering(5, gap=True)

    assert orders.admit(WORKER, batch(5, *EVENTS[:2])).verdict == "apply"
    assert orders.cursor(WORKER) == Cursor(1, 7)


def test_a_worker_that_starts_over_ends_a_gap() -> None:
    orders = ordering(5, gap=True)

    admission = orders.admit(WORKER, batch(40, Cleared(), EVENTS[0]))

    assert admission == Admission("resync", [Cleared(), EVENTS[0]])
    assert orders.cursor(WORKER) == Cursor(1, 42)


def test_what_comes_before_starting_over_in_a_batch_is_not_applied() -> None:
    admission = ordering(5).admit(WORKER, batch(40, EVENTS[0], Cleared(), EVENTS[1]))

    assert admission.events == [Cleared(), EVENTS[1]]


def test_a_new_epoch_fences_the_old_one() -> None:
    orders = ordering(5, epoch=1)

    first = orders.admit(WORKER, batch(1, *EVENTS[:1], epoch=2))
    late = orders.admit(WORKER, batch(5, *EVENTS[:1], epoch=1))

    assert first == Admission("apply", EVENTS[:1], fence=True)
    assert late == Admission("stale")
    assert orders.cursor(WORKER) == Cursor(2, 2)


def test_a_new_epoch_that_begins_in_the_middle_fences_and_is_a_gap() -> None:
    orders = ordering(5, epoch=1)

    assert orders.admit(WORKER, batch(9, *EVENTS[:1], epoch=2)) == Admission("gap", (), fence=True)
    assert orders.cursor(WORKER) == Cursor(2, 1, gap=True)


def test_an_empty_batch_of_a_new_epoch_fences_too() -> None:
    orders = ordering(5, epoch=1)

    assert orders.admit(WORKER, batch(1, epoch=2)) == Admission("duplicate", (), fence=True)
    assert orders.cursor(WORKER) == Cursor(2, 1)


def test_an_unknown_worker_begins_at_the_first_event() -> None:
    orders = Ordering()

    assert orders.admit(WORKER, batch(1, *EVENTS[:2])).verdict == "apply"
    assert list(orders.workers()) == [WORKER]


def test_an_unknown_worker_seen_in_the_middle_is_a_gap() -> None:
    assert Ordering().admit(WORKER, batch(2, *EVENTS[:2])).verdict == "gap"


def test_numbers_before_the_first_are_refused() -> None:
    assert Ordering().admit(WORKER, batch(0, Cleared())).verdict == "stale"


def test_after_a_marked_gap_only_starting_over_helps() -> None:
    orders = ordering(5)
    orders.mark_gap(WORKER)

    assert orders.cursor(WORKER) == Cursor(1, NOTHING_FITS, gap=True)
    assert orders.admit(WORKER, batch(1, *EVENTS)).verdict == "gap"
    assert orders.cursor(WORKER) == Cursor(1, NOTHING_FITS, gap=True)
    assert orders.admit(WORKER, batch(9, Cleared())).verdict == "resync"


def test_a_forgotten_worker_is_an_unknown_one() -> None:
    orders = ordering(5)
    orders.forget(WORKER)

    assert orders.cursor(WORKER) is None
    assert orders.cursors() == {}


def test_forgetting_an_unknown_worker_changes_nothing() -> None:
    orders = ordering(5)
    orders.forget(WorkerId("never seen"))

    assert orders.cursors() == {WORKER: Cursor(1, 5)}


def test_verdicts_are_counted() -> None:
    orders = ordering(5)
    for first_seq in (5, 5, 6, 9):
        orders.admit(WORKER, batch(first_seq, EVENTS[0]))

    assert orders.verdicts() == {"apply": 2, "duplicate": 1, "gap": 1}
