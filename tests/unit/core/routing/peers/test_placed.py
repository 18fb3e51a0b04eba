import struct

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.peers.placed import NUMBERS, NUMBERS_AT, expected_blocks, placed_record
from kvmesh.core.workers.loads import Demand
from kvmesh.core.workers.sequences import new_sequences

W = WorkerId("w")


def test_a_booking_is_told_as_it_was_placed_whatever_came_of_it() -> None:
    sequences = new_sequences(4)
    sequences.add("q", W, Demand(10, 9, 20), 0.0)
    booking = sequences.bookings["q"]
    before = placed_record(booking, 4)
    sequences.first_token("q", 0.0)
    sequences.foresee(booking, 2)
    assert expected_blocks(booking, 4) == 5
    sequences.grow("q", 7, 0.0)

    assert placed_record(booking, 4) == before
    assert struct.unpack("<BBHIIIIIII", before) == (0, 1, 0, 0, 0, 3, 10, 9, 5, 0)


def test_its_numbers_are_written_where_readers_expect_them() -> None:
    sequences = new_sequences(4)
    sequences.add("q", W, Demand(10, 9, 20), 0.0)
    record = placed_record(sequences.bookings["q"], 4)

    NUMBERS.pack_into(record, NUMBERS_AT, 77, 88)

    assert struct.unpack("<BBHIIIIIII", record)[3:5] == (77, 88)
