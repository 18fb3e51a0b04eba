"""What a session makes of a client."""

import pytest

from kvmesh.transport.grpc.connection import make_session
from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.session_events import (
    BROKEN,
    CANCEL,
    ENDED,
    MESSAGE,
    OPENED,
    REFUSED_STREAM,
    RESET,
    RESUMED,
    UNIMPLEMENTED,
)
from tests.unit.transport.grpc.client import HEAD, Client, frame

LIMITS = GrpcLimits(max_streams=3, max_message_bytes=100_000)

RESOURCE_EXHAUSTED = 8


def test_an_answer_and_its_end_leave_at_once() -> None:
    client = Client(make_session(LIMITS))
    stream = client.call(b"hello")
    client.exchange()

    client.session.finish(stream, (b"one", b"two" * 9_000), 0, b"")
    written = client.session.take()
    client.listen(written)

    assert client.messages[stream] == [b"one", b"two" * 9_000]
    assert client.heads[stream] == {
        ":status": "200", "content-type": "application/grpc", "grpc-status": "0"
    }  # fmt: skip
    assert client.ended == [stream]
    assert client.session.take() == b""


def test_an_error_without_messages_has_one_head() -> None:
    client = Client(make_session(LIMITS))
    stream = client.call(end=True)
    client.exchange()

    client.session.finish(stream, (), UNIMPLEMENTED, b"no %25")
    client.exchange()

    assert client.heads[stream] == {
        ":status": "200", "content-type": "application/grpc", "grpc-status": "12",
        "grpc-message": "no %25",
    }  # fmt: skip
    assert client.session.open_streams == 0


def test_what_a_client_leaves_half_closed_is_given_up() -> None:
    client = Client(make_session(LIMITS))
    stream = client.call(b"x")
    client.exchange()
    client.session.finish(stream, (b"y",), 0, b"")

    for _ in range(2):
        client.session.reset_idle()
        client.exchange()

    assert client.session.open_streams == 0
    assert (client.messages[stream], client.ended) == ([b"y"], [stream])


def test_a_reset_is_told_once_and_nothing_is_sent_after_it() -> None:
    client = Client(make_session(LIMITS))
    stream = client.call(b"x")
    client.exchange()

    client.connection.reset_stream(stream, CANCEL)
    events = client.exchange()
    client.session.send(stream, (b"late",))
    client.session.finish(stream, (), 0, b"")
    client.session.reset(stream, CANCEL)

    assert events == [(stream, RESET, CANCEL)]
    assert (client.session.take(), client.session.open_streams) == (b"", 0)


def test_nothing_is_told_of_a_stream_that_was_finished() -> None:
    client = Client(make_session(LIMITS))
    first, second = client.call(b"x"), client.call(b"x")
    client.exchange()
    for stream in (first, second):
        client.session.finish(stream, (), 0, b"")
    client.session.take()

    client.say(first, b"more", end=True)
    client.connection.reset_stream(second, CANCEL)

    assert client.exchange() == []
    assert client.session.open_streams == 0


def test_one_stream_too_many_is_refused_alone() -> None:
    client = Client(make_session(LIMITS))
    client.exchange()
    client.connection.remote_settings[3] = 100
    client.connection.remote_settings.acknowledge()

    streams = [client.call(b"x") for _ in range(4)]
    client.exchange()

    assert client.resets == {streams[3]: REFUSED_STREAM}
    assert client.session.open_streams == 3


@pytest.mark.parametrize(
    ("bytes_sent", "status"),
    [(b"\0\0\x01\x86\xa1", RESOURCE_EXHAUSTED), (b"\1\0\0\0\1x", UNIMPLEMENTED),
     (b"\0\xff\xff\xff\xff", RESOURCE_EXHAUSTED)],
)  # fmt: skip
def test_a_stream_of_no_messages_ends_alone(bytes_sent: bytes, status: int) -> None:
    client = Client(make_session(LIMITS))
    good, bad = client.call(b"x"), client.call()
    client.exchange()

    client.connection.send_data(bad, bytes_sent)
    events = client.exchange()
    client.say(good, b"y")
    client.connection.send_data(bad, b"more" * 4000)
    after = client.exchange()

    assert [(stream, kind, value[0]) for stream, kind, value in events] == [(bad, BROKEN, status)]
    assert client.heads[bad]["grpc-status"] == str(status)
    assert after == [(good, MESSAGE, b"y")]


def test_an_end_within_a_message_is_told() -> None:
    client = Client(make_session(LIMITS))
    stream = client.call()
    client.connection.send_data(stream, b"\0\0\0\0\5abc", end_stream=True)

    events = client.exchange()

    assert [(kind, value) for _, kind, value in events[1:]] == [
        (BROKEN, (13, "the stream ended within a message"))
    ]
    assert client.session.open_streams == 0


def test_trailers_of_a_client_end_its_side() -> None:
    client = Client(make_session(LIMITS))
    stream = client.call(b"x")
    client.connection.send_headers(stream, [("x-trailer", "1")], end_stream=True)

    events = client.exchange()

    assert [kind for _, kind, _ in events] == [OPENED, MESSAGE, ENDED]


# Flow control.


def test_what_may_not_be_sent_waits_and_its_room_is_told() -> None:
    limits = GrpcLimits(write_buffer_bytes=40_000)
    client = Client(make_session(limits), window=30_000)
    stream = client.call(b"x")
    client.exchange()

    waiting = [client.session.send(stream, (b"y" * 49_995,)) for _ in range(2)]
    events = client.exchange()

    assert waiting == [20_000, 70_000]
    assert events == [(stream, RESUMED, None)]
    assert client.messages[stream] == [b"y" * 49_995] * 2


def test_what_is_held_in_and_out_is_counted_until_it_is_gone() -> None:
    client = Client(make_session(LIMITS), window=10_000)
    answered, cut, begun = client.call(b"x"), client.call(b"x"), client.call()
    client.exchange()

    client.connection.send_data(begun, b"\0\0\0\0\x0aabc")
    client.session.receive(client.connection.data_to_send())
    client.session.send(answered, (b"a" * 29_995,))
    client.session.send(cut, (b"b" * 14_995,))
    held = client.session.held_bytes
    client.session.reset(cut, CANCEL)
    without_one = client.session.held_bytes
    client.exchange()
    client.connection.reset_stream(begun, CANCEL)
    client.exchange()

    assert (held, without_one) == (20_000 + 5_000 + 3, 20_000 + 3)
    assert client.messages[answered] == [b"a" * 29_995]
    assert client.session.held_bytes == 0


def test_a_stalled_stream_does_not_stall_the_others() -> None:
    client = Client(make_session(GrpcLimits()), window=10_000)
    stalled, lively = client.call(b"x"), client.call(b"x")
    client.exchange()

    client.session.finish(stalled, (b"s" * 200_000,), 0, b"")
    client.listen(client.session.take())  # what it grants for that never reaches the session
    client.session.finish(lively, (b"l" * 5_000,), 0, b"")
    client.listen(client.session.take())

    assert client.messages[lively] == [b"l" * 5_000]
    assert client.ended == [lively]


def test_streams_share_a_window_in_turns() -> None:
    client = Client(make_session(GrpcLimits()), window=1 << 24)
    streams = [client.call(b"x") for _ in range(3)]
    client.exchange()
    blocker = client.call(b"x")
    client.exchange()
    client.session.send(blocker, (b"b" * 65_530,))  # all of the connection's window

    for stream in streams:
        client.session.finish(stream, (b"s" * 40_000,), 0, b"")
    client.connection.increment_flow_control_window(49_152)
    client.session.receive(client.connection.data_to_send())
    client.listen(client.session.take())

    # One frame of each, none two: all have the head, none the end.
    assert {stream for stream in streams if stream in client.heads} == set(streams)
    assert client.ended == []


def test_a_smaller_initial_window_holds_what_is_sent_later() -> None:
    client = Client(make_session(GrpcLimits()), window=20_000)
    stream = client.call(b"x")
    client.exchange()
    client.session.send(stream, (b"a" * 10_000,))
    client.session.take()

    client.connection.update_settings({4: 100})
    client.session.receive(client.connection.data_to_send())
    held = client.session.send(stream, (b"b" * 95,))
    client.connection.update_settings({4: 30_000})
    client.session.receive(client.connection.data_to_send())

    assert held == 100
    assert client.session.send(stream, ()) == 0


def test_a_held_stream_gets_one_window_and_the_others_theirs() -> None:
    limits = GrpcLimits(stream_window_bytes=10_000, connection_window_bytes=70_000)
    client = Client(make_session(limits))
    held, free = client.call(), client.call()
    client.exchange()
    client.session.hold(held)

    client.connection.send_data(held, b"\0\0\0\x27\x0b" + b"h" * 9_995)
    client.exchange()
    for _ in range(20):
        client.say(free, b"f" * 9_000)
        client.exchange()
    stuck = client.connection.local_flow_control_window(held)
    client.session.grant(held)
    client.exchange()

    assert (stuck, client.connection.local_flow_control_window(held)) == (0, 10_000)


def test_a_blocked_session_keeps_data_and_answers_pings() -> None:
    client = Client(make_session(GrpcLimits()))
    stream = client.call(b"x")
    client.exchange()

    client.session.block()
    client.session.finish(stream, (b"y",), 0, b"")
    while_blocked = client.session.take()
    client.connection.ping(b"12345678")
    client.exchange()
    events = client.session.unblock()
    client.exchange()

    assert (while_blocked, list(events)) == (b"", [])
    assert (client.messages[stream], client.ended) == ([b"y"], [stream])


def test_padding_counts_and_is_dropped() -> None:
    limits = GrpcLimits(stream_window_bytes=2_000)
    client = Client(make_session(limits))
    stream = client.call()
    client.exchange()

    for _ in range(30):
        client.connection.send_data(stream, b"\0\0\0\0\1p", pad_length=200)
        assert client.exchange() == [(stream, MESSAGE, b"p")]


# Ends of connections.


def test_a_drain_takes_what_is_on_its_way_and_then_nothing() -> None:
    client = Client(make_session(LIMITS))
    first = client.call(b"x")
    client.exchange()

    client.session.drain()
    late = client.call(b"late")
    on_its_way = client.session.receive(client.connection.data_to_send())
    drained = client.session.drained
    written = client.session.take()

    assert [kind for _, kind, _ in on_its_way] == [OPENED, MESSAGE]
    assert drained is False
    assert (2**31 - 1).to_bytes(4, "big") in written
    client.session.receive(b"\0\0\x08\x06\x01\0\0\0\0kvmesh\0\1")
    assert client.session.drained is True
    assert late.to_bytes(4, "big") + b"\0\0\0\0draining" in client.session.take()
    client.session.finish(first, (b"y",), 0, b"")
    assert client.session.open_streams == 2


def test_a_head_in_pieces_is_one_head() -> None:
    session = make_session(LIMITS)
    client = Client(session)
    session.receive(client.connection.data_to_send())
    block = client.connection.encoder.encode([*HEAD, ("x-long", "v" * 3000)])

    at = len(block) // 3
    events = [
        *session.receive(frame(1, 0, 1, block[:at])),
        *session.receive(frame(9, 0, 1)),
        *session.receive(frame(9, 0x4, 1, block[at:])),
    ]

    assert [kind for _, kind, _ in events] == [OPENED]
    assert (b"x-long", b"v" * 3000) in events[0][2]


def test_header_tables_of_a_client_shrink_and_grow() -> None:
    client = Client(make_session(LIMITS))
    for size in (4096, 0, 100, 4096):
        client.connection.encoder.header_table_size = size
        for number in range(2):
            head = [*HEAD, ("x-kept", f"value {size}"), ("x-number", str(number))]
            stream = client.call(head=head, end=True)
            events = client.exchange()
            assert (b"x-kept", f"value {size}".encode()) in events[0][2]
            client.session.finish(stream, (), 0, b"")
            client.exchange()


def test_a_client_without_a_header_table_is_told_so_first() -> None:
    client = Client(make_session(LIMITS))
    client.connection.update_settings({1: 0})
    client.exchange()
    for _ in range(2):
        stream = client.call(end=True)
        client.exchange()
        client.session.finish(stream, (b"m",), 0, b"")
        client.exchange()

        assert client.messages[stream] == [b"m"]
