import struct

from kvmesh._native import ActiveSequences, BookingOutbox
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.routing.unwatched import expected_blocks

W = WorkerId("w")


def reported(sequences: ActiveSequences) -> tuple[int, ...]:
    """Return the record of the one booking, which follows its worker's name."""
    outbox = BookingOutbox(sequences, 1)
    outbox.republish(sequences.owned())
    [message] = outbox.take(99, 1 << 20)
    return struct.unpack_from("<BBHIIIIIII", message, 24 + 16)


def test_a_booking_is_told_as_it_was_placed_whatever_came_of_it() -> None:
    sequences = new_sequences(4)
    sequences.add("q", W, Demand(10, 9, 20), 0.0)
    booking = sequences.bookings["q"]
    before = reported(sequences)
    sequences.first_token("q", 0.0)
    sequences.foresee(booking, 2)
    assert expected_blocks(booking, 4) == 5
    sequences.grow("q", 7, 0.0)

    assert reported(sequences) == before == (0, 1, 0, 1, 0, 3, 10, 9, 5, 0)
