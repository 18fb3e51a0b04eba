"""Messages of a sender: short enough for every server, nothing lost or reordered by the cutting."""

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import HASH_BYTES, Cleared, Event, Removed, Stored, decode_batch
from kvmesh.core.engines.kv_events.closure import MAX_RUN
from kvmesh.core.journal.event_sender import EventSender, SenderLimits
from kvmesh.core.journal.outbox import MAX_BATCH_BYTES

LONGEST_MESSAGE = MAX_BATCH_BYTES + MAX_RUN * HASH_BYTES + 2048
STREAM_LIMIT = 512 * 1024

runs = st.one_of(st.integers(1, 8), st.sampled_from([MAX_RUN - 1, MAX_RUN]))


def lengthen(events: list[tuple[bool, int, int]]) -> list[Event]:
    """Return events of so many hashes, none of which joins its neighbour."""
    return [
        Stored(number, bytes(8 * size), tier) if stored else Removed(bytes(8 * size), number % 250)
        for number, (stored, size, tier) in enumerate(events, start=1)
    ]


@given(
    st.lists(st.tuples(st.booleans(), runs, st.integers(0, 2)), max_size=60),
    st.integers(1, 64),
)
def test_every_message_is_short_and_together_they_say_everything(
    sizes: list[tuple[bool, int, int]], flush_events: int
) -> None:
    events = lengthen(sizes)
    sender = EventSender(1, lambda: events, SenderLimits(flush_events=flush_events))

    messages = [data for _, data in sender.send(0.0)]

    batches = [decode_batch(data) for data in messages]
    assert LONGEST_MESSAGE < STREAM_LIMIT
    assert max(map(len, messages)) <= LONGEST_MESSAGE
    assert [event for batch in batches for event in batch.events] == [Cleared(), *events]
    assert all(len(batch.events) <= flush_events for batch in batches)
