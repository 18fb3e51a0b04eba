"""Clients that break the rules, or keep them only to the letter: bounded, with the right code."""

import pytest
from hpack import Encoder

from kvmesh.transport.grpc.connection import make_session
from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.session_events import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    MESSAGE,
    PROTOCOL_ERROR,
)
from tests.unit.transport.grpc.client import HEAD, PREFACE, Client, failure, frame

SETTINGS = frame(4)
BLOCK = Encoder().encode(HEAD)
OPEN = frame(1, 0x4, 1, BLOCK)
LIMITS = GrpcLimits(
    max_idle_frames=50, max_early_resets=20, max_header_bytes=4096, stream_window_bytes=1000
)


@pytest.mark.parametrize(
    ("sent", "codes"),
    [
        (frame(0, 0, 0, b"x"), {PROTOCOL_ERROR}),
        (frame(0, 0, 3, b"x"), {PROTOCOL_ERROR}),
        (frame(0, 0x8, 1, b"\x05abc"), {PROTOCOL_ERROR}),
        (frame(0, 0x8, 1, b""), {PROTOCOL_ERROR, FRAME_SIZE_ERROR}),
        (frame(0, 0, 1, b"x" * 1001), {FLOW_CONTROL_ERROR}),
        (frame(1, 0x4, 0, BLOCK), {PROTOCOL_ERROR}),
        (frame(1, 0x4, 2, BLOCK), {PROTOCOL_ERROR}),
        (frame(1, 0x4, 3, b"\xff\xff\xff\xff\xff\xff\xff"), {COMPRESSION_ERROR, PROTOCOL_ERROR}),
        (frame(1, 0x4, 3, b"\0\x85\xff\xff\xff\xff\xff\0"), {COMPRESSION_ERROR, PROTOCOL_ERROR}),
        (frame(1, 0x4, 3, b"\x3f\xff\xff\x7f"), {COMPRESSION_ERROR, PROTOCOL_ERROR}),
        (frame(1, 0x4, 3, b"\xfe"), {COMPRESSION_ERROR, PROTOCOL_ERROR}),
        (frame(1, 0, 3, BLOCK) + frame(6, 0, 0, b"12345678"), {PROTOCOL_ERROR}),
        (frame(9, 0x4, 1, BLOCK), {PROTOCOL_ERROR}),
        (frame(3, 0, 0, b"\0\0\0\1"), {PROTOCOL_ERROR}),
        (frame(3, 0, 1, b"\0\0\0"), {FRAME_SIZE_ERROR}),
        (frame(4, 0, 1), {PROTOCOL_ERROR}),
        (frame(4, 0, 0, b"12345"), {FRAME_SIZE_ERROR}),
        (frame(4, 1, 0, b"123456"), {FRAME_SIZE_ERROR, PROTOCOL_ERROR}),
        (frame(4, 0, 0, b"\0\4\xff\xff\xff\xff"), {FLOW_CONTROL_ERROR}),
        (frame(4, 0, 0, b"\0\5\0\0\0\1"), {PROTOCOL_ERROR}),
        (frame(4, 0, 0, b"\0\2\0\0\0\2"), {PROTOCOL_ERROR}),
        (frame(5, 0x4, 1, b"\0\0\0\2"), {PROTOCOL_ERROR}),
        (frame(6, 0, 0, b"1234567"), {FRAME_SIZE_ERROR}),
        (frame(6, 0, 1, b"12345678"), {PROTOCOL_ERROR}),
        (frame(8, 0, 0, b"\0\0\0\0"), {PROTOCOL_ERROR}),
        (frame(8, 0, 0, b"\x7f\xff\xff\xff"), {FLOW_CONTROL_ERROR}),
        (frame(8, 0, 0, b"\0"), {FRAME_SIZE_ERROR}),
        (b"\xff\xff\xff\0\0\0\0\0\1", {FRAME_SIZE_ERROR}),
        (b"\0\x40\x01\0\0\0\0\0\1", {FRAME_SIZE_ERROR}),
    ],
)  # fmt: skip
def test_what_breaks_the_rules_ends_the_connection(sent: bytes, codes: set[int]) -> None:
    session = make_session(LIMITS)
    session.receive(PREFACE + SETTINGS + OPEN)
    session.take()

    found = failure(session.receive(sent))

    assert found in codes
    goaway = session.take()
    assert b"\x07\0\0\0\0\0" in goaway
    assert session.receive(OPEN) in ([], ())
    assert session.take() == b""


def test_more_data_than_the_connections_window_ends_it() -> None:
    limits = GrpcLimits(connection_window_bytes=65_535, stream_window_bytes=1 << 20)
    session = make_session(limits)
    session.receive(PREFACE + SETTINGS + OPEN)
    message = b"\0" + (80_000).to_bytes(4, "big") + b"x" * 80_000

    parts = [message[at : at + 16_000] for at in range(0, 80_000, 16_000)]
    found = failure(session.receive(b"".join(frame(0, 0, 1, part) for part in parts)))

    assert found == FLOW_CONTROL_ERROR


def test_a_reset_of_a_stream_that_was_never_opened_ends_the_connection() -> None:
    session = make_session(LIMITS)
    session.receive(PREFACE + SETTINGS + OPEN)

    found = failure(session.receive(frame(3, 0, 9, b"\0\0\0\1")))

    assert found == PROTOCOL_ERROR


def test_who_speaks_no_http2_is_told_at_once() -> None:
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0", PREFACE[:-1] + b"x"):
        session = make_session(LIMITS)

        assert failure(session.receive(words)) == PROTOCOL_ERROR
        assert session.greeted is False


def test_settings_come_first() -> None:
    assert failure(make_session(LIMITS).receive(PREFACE + OPEN + frame(0, 0, 1))) in {
        PROTOCOL_ERROR,
        None,
    }


@pytest.mark.parametrize(
    "one",
    [frame(6, 0, 0, b"12345678"), frame(4), frame(0, 0, 1), frame(8, 0, 1, b"\0\0\0\1"),
     frame(2, 0, 5, b"\0\0\0\0\1"), frame(0x42, 0, 0, b"?")],
    ids=["ping", "settings", "empty data", "window", "priority", "unknown"],
)  # fmt: skip
def test_a_flood_of_frames_that_move_nothing_ends(one: bytes) -> None:
    session = make_session(LIMITS)
    session.receive(PREFACE + SETTINGS + OPEN)
    session.take()

    found = failure(session.receive(one * 1000))

    assert found == ENHANCE_YOUR_CALM
    assert len(session.take()) < 20 * LIMITS.max_idle_frames


def test_messages_make_up_for_the_window_that_is_granted() -> None:
    session = make_session(LIMITS)
    session.receive(PREFACE + SETTINGS + OPEN)
    useful = frame(0, 0, 1, b"\0\0\0\0\1x") + frame(8, 0, 1, b"\0\0\0\1") * 3

    for _ in range(100):
        events = session.receive(useful)
        assert [kind for _, kind, _ in events] == [MESSAGE]


def test_rapid_resets_end_the_connection() -> None:
    session = make_session(LIMITS)
    session.receive(PREFACE + SETTINGS)
    attack = b"".join(
        frame(1, 0x4, stream, Encoder().encode(HEAD)) + frame(3, 0, stream, b"\0\0\0\x08")
        for stream in range(1, 201, 2)
    )

    events = session.receive(attack)

    assert failure(events) == ENHANCE_YOUR_CALM
    assert len(events) <= 3 * LIMITS.max_early_resets


def test_headers_without_an_end_are_bounded() -> None:
    for piece in (b"", b"x" * 1000):
        session = make_session(LIMITS)
        session.receive(PREFACE + SETTINGS + frame(1, 0, 1, BLOCK))

        found = failure(session.receive(frame(9, 0, 1, piece) * 1000))

        assert found in {ENHANCE_YOUR_CALM, PROTOCOL_ERROR}


def test_a_small_block_that_means_much_is_refused() -> None:
    session = make_session(LIMITS)
    session.receive(PREFACE + SETTINGS)
    block = Encoder().encode([*HEAD, ("x-bomb", "b" * 3000)]) + b"\xbe" * 5000

    found = failure(session.receive(frame(1, 0x4, 1, block)))

    assert found in {ENHANCE_YOUR_CALM, PROTOCOL_ERROR, COMPRESSION_ERROR}


@pytest.mark.parametrize(
    "head",
    [
        HEAD[1:], [*HEAD, (":path", "/again")], [*HEAD, ("X-Upper", "1")],
        [("te", "trailers"), *HEAD], [*HEAD, ("connection", "close")],
        [*HEAD, (":status", "200")], [*HEAD, ("te", "gzip")], [*HEAD, ("x y", "1")],
        [*HEAD, ("x", "a\nb")],
    ],
)  # fmt: skip
def test_a_malformed_head_opens_nothing(head: list[tuple[str, str]]) -> None:
    session = make_session(LIMITS)
    session.receive(PREFACE + SETTINGS)
    block = b"".join(
        b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode())
        for name, value in head
    )

    events = session.receive(frame(1, 0x4, 1, block))

    assert session.open_streams == 0
    assert all(stream == 0 for stream, _, _ in events)


def test_a_long_message_takes_room_as_its_bytes_arrive() -> None:
    """4,096 streams that announce 4 MB each hold what was sent, not what was announced."""
    import tracemalloc  # noqa: PLC0415  it slows what runs beside it

    session = make_session(GrpcLimits())
    session.receive(PREFACE + SETTINGS)
    encoder = Encoder()
    tracemalloc.start()
    for stream in range(1, 401, 2):
        block = encoder.encode(HEAD)
        session.receive(frame(1, 0x4, stream, block) + frame(0, 0, stream, b"\0\0\x3f\xff\xff"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 200 * 80_000


def test_a_session_is_not_entered_from_within_and_wrong_arguments_are_said() -> None:
    session = make_session(GrpcLimits())
    client = Client(session)
    stream = client.call(b"x")
    client.exchange()

    for wrong in (("x", ()), (stream, 5), (stream, ("text",)), (stream, (b"a", None))):
        with pytest.raises(TypeError):
            session.send(*wrong)
    for status in (-1, 10**25, 1 << 20):
        with pytest.raises((ValueError, OverflowError)):
            session.finish(stream, (), status, b"")
    with pytest.raises((TypeError, ValueError)):
        session.finish(stream, (), 0, "text")  # type: ignore[arg-type]
    with pytest.raises((TypeError, BufferError)):
        session.receive("text")  # type: ignore[arg-type]
    for nobody in (0, -1, 2, 10**25, stream + 2):
        assert session.send(nobody, (b"x",)) == 0
        session.finish(nobody, (), 0, b"")
        session.reset(nobody, 8)
        session.hold(nobody)
        session.grant(nobody)
    assert session.take() == b""
