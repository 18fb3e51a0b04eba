from math import inf, nan

import msgspec
import pytest

from kvmesh.core.health.outcomes import SERVED, Attempt, Verdict
from kvmesh.core.routing.booking_events import (
    MAX_KIND,
    MOST_SECONDS,
    MOST_STATES,
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
    Ended("q", Verdict.WORKER, "cut", 1.5),
    Ended("q", Verdict.OVERLOAD, "429", 0.0, 4.0),
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


def test_a_replica_that_tells_no_outcome_tells_of_a_served_request() -> None:
    data = msgspec.msgpack.encode([1, 5, 9, [[3, "q"]]])

    [event] = decode_bookings(data).events

    assert isinstance(event, Ended)
    assert event.attempt() == SERVED


def test_an_outcome_is_what_was_told() -> None:
    event = Ended("q", Verdict.OVERLOAD, "429", 0.5, 4.0)

    assert event.attempt() == Attempt(Verdict.OVERLOAD, "429", 0.5, 4.0)


@pytest.mark.parametrize("number", [-1, len(Verdict), 1 << 40])
def test_a_verdict_of_a_newer_version_is_none(number: int) -> None:
    assert Ended("q", number, "odd").attempt().verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("told", "counts"),
    [(nan, 0.0), (inf, 0.0), (-inf, 0.0), (-3.0, 0.0), (1e300, MOST_SECONDS), (7.5, 7.5)],
)
def test_figures_that_no_clock_shows_are_bounded(told: float, counts: float) -> None:
    attempt = Ended("q", Verdict.WORKER, "x" * 1000, told, told).attempt()

    assert (attempt.lost_s, attempt.retry_after_s) == (counts, counts)
    assert attempt.kind == "x" * MAX_KIND


def test_a_message_in_which_state_after_state_begins_is_refused() -> None:
    few = BookingBatch(1, 1, 1, [StateBegins()] * MOST_STATES)
    many = BookingBatch(1, 1, 1, [StateBegins()] * (MOST_STATES + 1))

    assert decode_bookings(encode_bookings(few)) == few
    with pytest.raises(CodecError, match="begin 5 states in one message, at most 4"):
        decode_bookings(encode_bookings(many))
