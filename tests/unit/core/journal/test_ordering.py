from kvmesh.core.blocks.events import VERSION, Batch, Event, Stored, WorkerId
from kvmesh.core.journal.ordering import Admission, Cursor, Ordering

WORKER = WorkerId("w")
EVENTS: list[Event] = [Stored(0, index.to_bytes(8, "little")) for index in range(8)]


def batch(first_seq: int, *events: Event, epoch: int = 1) -> Batch:
    return Batch(VERSION, epoch, first_seq, list(events))


def ordering(next_seq: int = 5, epoch: int = 1, *, gap: bool = False) -> Ordering:
    return Ordering({WORKER: Cursor(epoch, next_seq, gap)})


def test_known_events_at_the_head_of_a_batch_are_skipped() -> None:
    orders = ordering(5)

    assert orders.admit(WORKER, batch(4, *EVENTS[:3])) == Admission("partial", EVENTS[1:3])
    assert orders.cursor(WORKER) == Cursor(1, 7)


def test_a_new_epoch_fences_the_old_one() -> None:
    orders = ordering(5, epoch=1)

    first = orders.admit(WORKER, batch(1, *EVENTS[:1], epoch=2))
    late = orders.admit(WORKER, batch(5, *EVENTS[:1], epoch=1))

    assert (first, late) == (Admission("apply", EVENTS[:1], fence=True), Admission("stale"))
    assert orders.cursor(WORKER) == Cursor(2, 2)


def test_an_empty_batch_of_a_new_epoch_fences_too() -> None:
    orders = ordering(5, epoch=1)

    assert orders.admit(WORKER, batch(1, epoch=2)) == Admission("duplicate", (), fence=True)
    assert orders.cursor(WORKER) == Cursor(2, 1)
