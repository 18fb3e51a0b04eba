"""What could not be read is kept in mind until it does not matter any more."""

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.unread import KEEP_S, UnreadRecords

A, B = WorkerId("a"), WorkerId("b")


def test_a_worker_that_does_not_come_back_is_not_minded_for_ever() -> None:
    unread = UnreadRecords(most=8)
    unread.meet(A, 2, 10.0)

    assert unread.formats(10.0 + KEEP_S - 1.0) == {A: 2}
    assert unread.formats(10.0 + KEEP_S) == {}


def test_names_of_subjects_cannot_fill_the_memory() -> None:
    unread = UnreadRecords(most=1)

    met = unread.meet(A, 2, 0.0), unread.meet(B, 2, 0.0), unread.meet(A, 2, 0.0)
    unread.clear()

    assert met == (True, False, True)
    assert unread.formats(0.0) == {}
