import msgspec
import pytest

from kvmesh.core.booking_events import (
    BookingBatch,
    BookingEvent,
    Ended,
    Grew,
    Placed,
    Prefilled,
    StateBegins,
    StateEnds,
    decode_bookings,
    encode_bookings,
)
from kvmesh.errors import CodecError

EVENTS: list[BookingEvent] = [
    StateBegins(),
    Placed("q", "w", 100, 60, 3, b"\x01" * 16, streams=False, hashes=b"\x02" * 24),
    Prefilled("q"),
    Grew("q", 7),
    Ended("q"),
    StateEnds(),
]


def test_bookings_survive_the_wire() -> None:
    batch = BookingBatch(1, 5, 9, EVENTS)

    assert decode_bookings(encode_bookings(batch)) == batch


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([2, 1, 1, []]),
        msgspec.msgpack.encode([1, 1, 1, [[9, "q"]]]),
        encode_bookings(BookingBatch(1, 1, 1, [Placed("q", "w", 1, 1, 0, b"odd")])),
        b"\x94" * 2000,
    ],
)
def test_what_is_no_booking_is_a_codec_error(data: bytes) -> None:
    with pytest.raises(CodecError, match=r"booking"):
        decode_bookings(data)
