"""The state machine of one stream, over a picker without a process."""

import asyncio
import gc
from collections.abc import AsyncGenerator

import msgspec
import pytest
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2 as modes
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmesh.app.picker.exchange import PickExchange
from kvmesh.app.picker.pick import Pick
from kvmesh.transport.grpc.session_events import INTERNAL, INVALID_ARGUMENT
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.wire.problem import Problem
from tests.integration.pick.room import CHAT, DESTINATION, Asking, Room

EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
MODE = modes.ProcessingMode


@pytest.fixture
async def room() -> AsyncGenerator[Room]:
    one = Room()
    yield one
    assert one.errors == []
    assert one.door.budget.used == 0
    assert one.counts.open_streams == 0
    assert one.booked() == {}
    await one.close()


def fail(_: object) -> None:
    raise ZeroDivisionError("planted")


def leave(exchange: PickExchange) -> None:
    exchange.scope.end()


def finish(stream: Asking) -> Asking:
    return stream.answered().came(EVENT).came(DONE, end=True)


async def test_nothing_is_answered_before_the_whole_body_was_read(room: Room) -> None:
    stream = room.ask().head().body(CHAT[:20], end=False)
    before = stream.kinds()
    stream.body(CHAT[20:])

    assert before == []
    assert stream.kinds() == ["request_headers", "request_body"]
    assert stream.picked in {"10.0.0.0:8000", "10.0.0.1:8000", "10.0.0.2:8000"}
    assert stream.sent_back() == (CHAT, [True])
    finish(stream)


async def test_the_stream_stays_open_until_the_response_has_ended(room: Room) -> None:
    stream = room.ask().head().body(CHAT)
    open_after_pick = stream.status is None
    stream.answered().came(EVENT)
    booked = room.booked()
    stream.came(DONE, end=True)

    assert open_after_pick
    assert len(booked) == 1
    assert not next(iter(booked.values())).prefilling
    assert stream.sent_back(response=True) == (EVENT + DONE, [False, True])
    assert stream.status == 0


async def test_the_client_is_told_who_serves_it(room: Room) -> None:
    stream = finish(room.ask().head("/v1/chat/completions", ("x-request-id", "mine")).body(CHAT))

    reported = stream.set_in(stream.received[2].response_headers.response.header_mutation)
    assert f"10.0.0.{reported['x-kvmesh-worker'][1:]}:8000" == stream.picked
    assert reported["x-request-id"] == "mine"
    assert reported["x-kvmesh-overlap-blocks"] == "0"


async def test_a_body_that_ends_by_trailers_goes_back_without_an_end(room: Room) -> None:
    stream = room.ask().head().body(CHAT, end=False).trailers()

    assert stream.kinds() == ["request_headers", "request_body", "request_trailers"]
    assert stream.sent_back() == (CHAT, [False])
    stream.answered().came(EVENT).trailers(response=True)
    assert stream.kinds()[3:] == ["response_headers", "response_body", "response_trailers"]
    assert stream.sent_back(response=True) == (EVENT, [False])
    assert stream.status == 0


async def test_a_request_without_a_body_is_answered_by_its_head_alone(room: Room) -> None:
    stream = room.ask().head("/v1/files", method="GET", end=True)

    assert stream.picked
    assert stream.kinds() == ["request_headers"]
    stream.answered(204, end=True)
    assert stream.kinds() == ["request_headers", "response_headers"]
    assert stream.status == 0


async def test_an_end_that_comes_twice_is_not_answered_twice(room: Room) -> None:
    stream = room.ask().head().body(CHAT).body(b"").body(b"", end=True)
    twice = stream.kinds()
    stream.trailers()
    finish(stream)

    assert twice == ["request_headers", "request_body"]
    assert "request_trailers" not in stream.kinds()
    assert room.counts.duplicates == 3


async def test_a_gateway_whose_own_limit_counts_waits_for_nothing(room: Room) -> None:
    """In FULL_DUPLEX_STREAMED Envoy waits without limit for an answer."""
    seen: list[float] = []
    room.door.adapters.append(lambda exchange: seen.append(exchange.silent_s))

    for mode in (MODE.FULL_DUPLEX_STREAMED, MODE.BUFFERED, MODE.STREAMED):
        finish(room.ask().head(request_mode=mode).body(CHAT))

    assert seen == [30.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("mode", "picked_at"),
    [
        (MODE.NONE, "request_headers"),
        (MODE.STREAMED, "request_headers"),
        (MODE.BUFFERED, "request_body"),
        (MODE.BUFFERED_PARTIAL, "request_body"),
    ],
)
async def test_in_each_mode_the_pick_is_where_the_gateway_takes_it(
    room: Room, mode: int, picked_at: str
) -> None:
    stream = room.ask().head(request_mode=mode)
    if mode != MODE.NONE:
        stream.body(CHAT)

    assert stream.picked
    picks = [
        one.WhichOneof("response") for one in stream.received if one.HasField("dynamic_metadata")
    ]
    assert picks == [picked_at]
    expected = {
        MODE.NONE: ["request_headers"],
        MODE.STREAMED: ["request_headers", "request_body"],
    }
    assert stream.kinds() == expected.get(mode, ["request_headers", "request_body"])
    finish(stream)


async def test_a_buffered_body_that_is_not_whole_is_not_read(room: Room) -> None:
    stream = room.ask().head(request_mode=MODE.BUFFERED_PARTIAL).body(CHAT[:30], end=False)

    assert stream.picked
    finish(stream)


async def test_bodies_of_a_streamed_response_go_on_as_they_are(room: Room) -> None:
    stream = room.ask().head(response_mode=MODE.STREAMED).body(CHAT)
    finish(stream)

    bodies = [one for one in stream.received if one.WhichOneof("response") == "response_body"]
    assert len(bodies) == 2
    assert not any(one.response_body.HasField("response") for one in bodies)


async def test_a_long_body_waits_while_the_gateway_takes_nothing(room: Room) -> None:
    body = CHAT + b" " * 2_000_000
    stream = room.ask().head()
    stream.full = True
    stream.body(body)
    while not stream.picked:  # noqa: ASYNC110  long bodies are read in a thread
        await asyncio.sleep(0.001)
    first, _ = stream.sent_back()
    stream.full = False
    stream.on_resume()

    assert 0 < len(first) < 600_000
    assert stream.sent_back()[0] == body
    assert stream.sent_back()[1].count(True) == 1
    finish(stream)


async def test_a_response_that_nobody_takes_is_not_read_on(room: Room) -> None:
    stream = room.ask().head().body(CHAT).answered()
    stream.full = True
    stream.came(EVENT)
    paused = stream.paused
    stream.full = False
    stream.on_resume()

    assert paused
    assert not stream.paused
    stream.came(DONE, end=True)


@pytest.mark.parametrize("gone", ["head", "body", "decided", "answered", "streaming"])
@pytest.mark.parametrize("way", ["reset", "half_close"])
async def test_a_client_that_leaves_leaves_nothing_behind(room: Room, gone: str, way: str) -> None:
    stream = room.ask()
    if gone != "head":
        stream.head().body(CHAT[:9], end=False)
    if gone in {"decided", "answered", "streaming"}:
        stream.body(CHAT[9:])
    if gone in {"answered", "streaming"}:
        stream.answered()
    if gone == "streaming":
        stream.came(EVENT)

    if way == "reset":
        stream.on_reset(8)
    else:
        stream.on_half_close()

    assert stream.status in {None, 0}
    assert room.counts.gone + room.counts.silent == 1


async def test_a_gateway_that_answers_by_itself_ends_the_request(room: Room) -> None:
    stream = room.ask().head().body(CHAT[:9], end=False)
    stream.answered(504, kind="text/plain").came(b"timeout", end=True)

    assert stream.kinds() == ["response_headers", "response_body"]
    assert stream.status == 0


@pytest.mark.parametrize(
    "message", [b"", b"\xff", b"\x12\x05ab", b"\x0a\x00"], ids=["empty", "tag", "short", "unknown"]
)
async def test_garbage_ends_its_stream_with_the_reason(room: Room, message: bytes) -> None:
    stream = room.ask()
    stream.on_message(message)

    assert stream.status == INVALID_ARGUMENT
    assert stream.text
    assert room.counts.malformed == 1


async def test_a_second_request_on_a_stream_is_refused(room: Room) -> None:
    stream = room.ask().head().head()

    assert stream.status == INVALID_ARGUMENT
    assert "second request" in stream.text


async def test_an_error_of_ours_is_told_and_releases_everything(room: Room) -> None:
    stream = room.ask().head()
    room.door.adapters.append(fail)
    stream.body(CHAT)

    status, headers, body = stream.refused
    assert status == 500
    assert msgspec.json.decode(body)["error"]["code"] == "internal_error"
    assert headers["x-request-id"]
    assert [type(error) for error in room.errors] == [ZeroDivisionError]
    room.errors.clear()


async def test_an_error_of_ours_costs_no_client_its_answer(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = room.ask().head().body(CHAT)
    monkeypatch.setattr(Pick, "on_head", lambda *_: 1 // 0)
    stream.answered().came(EVENT).came(DONE, end=True)

    assert stream.sent_back(response=True)[0] == EVENT + DONE
    assert len(room.errors) == 1
    room.errors.clear()


async def test_what_breaks_within_a_stream_ends_it(room: Room) -> None:
    stream = room.ask().head()
    room.door.limits = None  # type: ignore[assignment]
    stream.body(CHAT)
    other = room.ask().head()

    assert other.status == INTERNAL
    assert stream.picked
    stream.on_reset(8)
    room.errors.clear()


async def test_a_request_that_nobody_answers_is_not_left_waiting(room: Room) -> None:
    stream = room.ask().head()
    room.door.adapters.append(leave)
    stream.body(CHAT)

    assert (stream.status, stream.text) == (INTERNAL, "the request ended without a decision")


async def test_bodies_are_bounded_alone_and_together() -> None:
    room = Room(limits=HttpLimits(max_body_bytes=100, max_total_body_bytes=150))
    long = room.ask().head().body(b"x" * 60, end=False).body(b"x" * 60)
    reported = room.ask().head("/v1/chat/completions", ("content-length", "101"))
    first = room.ask().head().body(b"x" * 80, end=False)
    second = room.ask().head().body(b"x" * 80, end=False)
    first.on_reset(8)
    endless = room.ask().head("/v1/chat/completions", ("content-length", "9" * 40))

    assert [one.refused[0] for one in (long, reported, second, endless)] == [413, 413, 503, 413]
    assert second.refused[1]["retry-after"] == "1"
    assert room.door.budget.used == 0
    await room.close()


async def test_a_large_body_of_too_many_values_is_refused_while_it_comes() -> None:
    room = Room(limits=HttpLimits(max_body_items=1000))
    stream = room.ask().head().body(b'{"messages":[' + b"{}," * 20_000, end=False)

    assert stream.refused[0] == 413
    assert b"too_many_items" in stream.refused[2]
    await room.close()


async def test_a_key_is_asked_for_before_the_body_is_read(room: Room) -> None:
    room.door.screen = lambda _: Problem(401, "no key")
    stream = room.ask().head()

    assert stream.refused[0] == 401


async def test_what_a_client_says_of_endpoints_is_taken_off(room: Room) -> None:
    lies = [(f"{DESTINATION}{end}", "10.0.0.9:1") for end in ("", "-subset", "-served")]
    stream = room.ask().head("/v1/chat/completions", *lies, ("accept-encoding", "gzip"))
    finish(stream.body(CHAT))

    mutation = stream.received[0].request_headers.response.header_mutation
    assert stream.picked != "10.0.0.9:1"
    assert sorted(mutation.remove_headers) == [
        "accept-encoding",
        f"{DESTINATION}-served",
        f"{DESTINATION}-subset",
    ]


Step = tuple[str, bytes, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["head", "body", "trailers", "answered", "came", "ended", "reset", "close", "resume"]
        ),
        st.sampled_from([b"", CHAT, EVENT, DONE, b"x" * 70_000]),
        st.booleans(),
    ),
    max_size=12,
)


@given(STEPS, st.sampled_from([0, 1, 2, 3, 4, 5]), st.sampled_from([0, 1, 2, 4]), st.booleans())
@settings(deadline=None)
async def test_no_order_of_messages_breaks_anything_or_leaves_anything_behind(
    steps: list[Step], request_mode: int, response_mode: int, full: bool
) -> None:
    room = Room(1)
    stream = room.ask()
    stream.full = full
    for kind, data, end in steps:
        match kind:
            case "head":
                stream.head(end=end, request_mode=request_mode, response_mode=response_mode)
            case "body":
                stream.body(data, end=end)
            case "answered":
                stream.answered(end=end)
            case "came":
                stream.came(data, end=end)
            case "reset":
                stream.on_reset(8)
            case "close":
                stream.on_half_close()
            case "resume":
                stream.on_resume()
            case _:
                stream.trailers(response=kind == "ended")
    stream.on_reset(8)
    room.unwatched.close()

    kinds = stream.kinds()
    assert room.errors == []
    assert room.booked() == {}
    assert room.door.budget.used == 0
    assert room.counts.open_streams == 0
    assert kinds.count("request_headers") <= 1
    assert kinds.count("response_headers") <= 1
    await room.close()


async def test_a_request_leaves_nothing_to_the_garbage_collector() -> None:
    room = Room(2, parity_sample=0)

    def ask() -> None:
        finish(room.ask().head().body(CHAT))
        room.ask().head().body(CHAT).answered().came(EVENT).on_reset(8)
        room.ask().head().body(b"{}")
        room.ask().head().body(CHAT[:5], end=False).on_reset(8)
        room.ask().on_message(b"\xff")

    for _ in range(5):
        ask()
    gc.collect()
    gc.freeze()  # what other tests left may be let go at any time
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(5):
            ask()
        gc.collect()
        found = [repr(one)[:120] for one in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()
    await room.close()

    assert found == []
