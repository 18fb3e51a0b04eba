"""Batches lost, repeated and reordered against what may be applied of them."""

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import VERSION, Batch, Cleared, Event, Stored, WorkerId
from kvmesh.core.journal.ordering import Ordering

WORKER = WorkerId("w")

logs = st.lists(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=8),
    min_size=1,
    max_size=3,
)


def publish(log: list[list[list[bool]]]) -> list[Batch]:
    """Number the events of each epoch; an event is Cleared or names its epoch and number."""
    batches: list[Batch] = []
    for epoch, lengths in enumerate(log):
        seq = 1
        for clears in lengths:
            events: list[Event] = [
                Cleared() if clear else Stored(epoch, (seq + index).to_bytes(8, "little"))
                for index, clear in enumerate(clears)
            ]
            batches.append(Batch(VERSION, epoch, seq, events))
            seq += len(events)
    return batches


@given(logs, st.data())
def test_what_is_applied_is_always_a_contiguous_run_of_the_newest_epoch(
    log: list[list[list[bool]]], data: st.DataObject
) -> None:
    batches = publish(log)
    journal = data.draw(st.lists(st.sampled_from(batches), max_size=30))
    ordering = Ordering()
    epoch, applied, whole = -1, 0, False

    for batch in journal:
        admission = ordering.admit(WORKER, batch)
        if admission.fence:
            assert batch.epoch > epoch
            epoch, applied, whole = batch.epoch, 0, True
        first_applied = batch.first_seq + len(batch.events) - len(admission.events)
        if admission.events:
            assert batch.epoch == epoch
            starts_over = isinstance(admission.events[0], Cleared)
            assert (whole and first_applied == applied + 1) or starts_over
            assert (
                list(admission.events) == batch.events[len(batch.events) - len(admission.events) :]
            )
            applied, whole = batch.first_seq + len(batch.events) - 1, True
        cursor = ordering.cursor(WORKER)
        assert cursor is not None
        assert cursor.epoch == epoch
        assert cursor.next_seq == applied + 1


@given(logs, st.data())
def test_sending_everything_again_in_order_always_ends_complete(
    log: list[list[list[bool]]], data: st.DataObject
) -> None:
    batches = publish(log)
    ordering = Ordering()
    for batch in data.draw(st.lists(st.sampled_from(batches), max_size=20)):
        ordering.admit(WORKER, batch)

    last = [batch for batch in batches if batch.epoch == batches[-1].epoch]
    for batch in last:
        ordering.admit(WORKER, batch)

    cursor = ordering.cursor(WORKER)
    assert cursor is not None
    assert (cursor.epoch, cursor.gap) == (last[-1].epoch, False)
    assert cursor.next_seq == last[-1].first_seq + len(last[-1].events)
