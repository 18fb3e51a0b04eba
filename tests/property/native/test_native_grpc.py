"""The compiled gRPC session: what a client of the `h2` library says to it arrives, what it answers
does too, and no bytes at all harm it.
"""

from h2.errors import ErrorCodes
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.transport.grpc.connection import make_session
from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.session_events import (
    CANCEL,
    ENDED,
    FAILED,
    MESSAGE,
    OPENED,
    RESET,
    Event,
)
from tests.unit.transport.grpc.client import HEAD, PREFACE, Client, frame

LIMITS = GrpcLimits(
    max_streams=5,
    max_message_bytes=200_000,
    max_header_bytes=2048,
    stream_window_bytes=60_000,
    connection_window_bytes=100_000,
    write_buffer_bytes=5_000,
    max_idle_frames=200,
    max_early_resets=50,
)
texts = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)
names = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)
sizes = st.one_of(st.integers(0, 40), st.integers(0, 20_000))
steps = st.one_of(
    st.tuples(st.just("call"), st.lists(st.tuples(names, texts), max_size=3)),
    st.tuples(st.just("say"), st.tuples(st.integers(0, 9), sizes)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("reset"), st.integers(0, 9)),
    st.tuples(st.just("answer"), st.tuples(st.integers(0, 9), st.lists(sizes, max_size=3))),
    st.tuples(st.just("finish"), st.tuples(st.integers(0, 9), sizes)),
    st.tuples(st.just("give up"), st.integers(0, 9)),
    st.tuples(st.just("hold"), st.integers(0, 9)),
    st.tuples(st.just("grant"), st.integers(0, 9)),
    st.tuples(st.just("window"), st.integers(0, 100_000)),
    st.tuples(st.just("ping"), st.none()),
    st.tuples(st.just("block"), st.booleans()),
    st.tuples(st.just("calm"), st.none()),
    st.tuples(st.just("exchange"), st.integers(0, 50)),
)  # fmt: skip


class Conversation:
    """A client and a session that do what they are told, as far as HTTP/2 lets the client."""

    def __init__(self) -> None:
        self.session = make_session(LIMITS)
        self.client = Client(self.session, window=10_000)
        self.events: list[Event] = []
        self.said: dict[int, list[bytes]] = {}
        self.answered: dict[int, list[bytes]] = {}
        self.streams: list[int] = []
        self.closed: set[int] = set()
        """Of the client's side."""
        self.over: set[int] = set()
        """That the session was told to finish or to give up, or heard reset."""
        self.exchange(0)

    def exchange(self, cut: int) -> None:
        found = self.client.exchange(cut)
        self.events += found
        self.over |= {stream for stream, kind, _ in found if kind == RESET}

    def take(self, step: tuple[str, object]) -> None:
        kind, value = step
        if kind == "call":
            if len(self.streams) - len(self.over & self.closed) < LIMITS.max_streams:
                self.open(value)  # type: ignore[arg-type]
        elif kind == "exchange":
            self.exchange(value)  # type: ignore[arg-type]
        elif kind == "ping":
            self.client.connection.ping(b"12345678")
        elif kind == "window":
            self.client.connection.update_settings({4: value})  # type: ignore[dict-item]
        elif kind == "block":
            if value:
                self.session.block()
            else:
                self.events += self.session.unblock()
        elif kind == "calm":
            self.session.reset_idle()
        elif self.streams:
            number = value[0] if isinstance(value, tuple) else value
            stream = self.streams[number % len(self.streams)]  # type: ignore[operator]
            self.take_stream(kind, stream, value[1] if isinstance(value, tuple) else None)

    def open(self, fields: list[tuple[str, str]]) -> None:
        if self.client.connection.open_outbound_streams >= LIMITS.max_streams:
            return
        extra = [(f"x-{name}", value) for name, value in fields]
        stream = self.client.call(head=[*HEAD, *extra])
        self.streams.append(stream)
        self.said[stream], self.answered[stream] = [], []

    def take_stream(self, kind: str, stream: int, value: object) -> None:
        if kind in {"say", "end", "reset"}:
            if stream not in self.closed and stream not in self.client.resets:
                self.speak(kind, stream, value)
        elif stream not in self.over and stream in {one for one, _, _ in self.events}:
            self.answer(kind, stream, value)

    def speak(self, kind: str, stream: int, value: object) -> None:
        connection = self.client.connection
        if kind == "say":
            size = int(str(value))
            least = min(connection.local_flow_control_window(stream), 40_000)
            if size + 5 <= least:
                message = bytes([len(self.said[stream]) % 256]) * size
                self.client.say(stream, message)
                self.said[stream].append(message)
        elif kind == "end":
            self.closed.add(stream)
            connection.end_stream(stream)
        else:
            self.closed.add(stream)
            connection.reset_stream(stream, ErrorCodes.CANCEL)

    def answer(self, kind: str, stream: int, value: object) -> None:
        session = self.session
        if kind == "answer":
            messages = [b"a" * size for size in value]  # type: ignore[attr-defined]
            session.send(stream, messages)
            self.answered[stream] += messages
        elif kind == "finish":
            self.over.add(stream)
            message = b"f" * int(str(value))
            session.finish(stream, (message,), 0, b"")
            self.answered[stream].append(message)
        elif kind == "give up":
            self.over.add(stream)
            session.reset(stream, CANCEL)
        elif kind == "hold":
            session.hold(stream)
        else:
            session.grant(stream)


@given(plan=st.lists(steps, max_size=40))
def test_what_either_side_says_arrives_at_the_other(plan: list[tuple[str, object]]) -> None:
    talk = Conversation()

    for step in plan:
        talk.take(step)
    talk.client.connection.update_settings({4: 1 << 20})
    talk.events += talk.session.unblock()
    talk.exchange(0)

    assert not any(kind == FAILED for _, kind, _ in talk.events)
    for stream in talk.streams:
        kinds = [kind for one, kind, _ in talk.events if one == stream]
        received = [value for one, kind, value in talk.events if one == stream and kind == MESSAGE]
        said, answers = talk.said[stream], talk.client.messages.get(stream, [])
        assert kinds[:1] == [OPENED]
        assert kinds.count(ENDED) + kinds.count(RESET) <= 1
        assert received == said[: len(received)]
        assert answers == talk.answered[stream][: len(answers)]
        if stream not in talk.over:
            assert received == said
            assert answers == talk.answered[stream]
        if stream in talk.client.ended:
            assert answers == talk.answered[stream]
    if set(talk.streams) <= talk.over:
        assert talk.session.held_bytes == 0


hostile = st.one_of(
    st.builds(
        frame,
        st.integers(0, 12),
        st.integers(0, 255),
        st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1)),
        st.one_of(
            st.binary(max_size=60),
            st.just(Encoder().encode(HEAD)),
            st.binary(max_size=30).map(lambda tail: Encoder().encode(HEAD) + tail),
            st.integers(0, 2**32 - 1).map(lambda number: number.to_bytes(4, "big")),
            st.integers(1, 300).map(lambda size: b"\0" + size.to_bytes(4, "big") + b"m" * 200),
        ),
    ),
    st.sampled_from([1, 3, 5, 7]).map(lambda one: frame(1, 4, one, Encoder().encode(HEAD))),
    st.binary(max_size=40),
)  # fmt: skip


@given(
    pieces=st.lists(hostile, max_size=25),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    greet=st.booleans(),
)
def test_no_bytes_harm_a_session_and_cuts_change_nothing(
    pieces: list[bytes], cuts: list[int], greet: bool
) -> None:
    data = (PREFACE + frame(4) if greet else b"") + b"".join(pieces)
    whole, cut = make_session(LIMITS), make_session(LIMITS)

    said = list(whole.receive(data))
    at, number, received = 0, 0, list[Event]()
    while at < len(data):
        size = cuts[number % len(cuts)]
        received += cut.receive(data[at : at + size])
        at, number = at + size, number + 1
    for stream in range(1, 14):
        whole.send(stream, (b"x" * 100,))
        whole.finish(stream, (b"y",), 13, b"text")
    whole.reset_idle()

    assert received == said
    assert whole.held_bytes >= 0
    assert sum(kind == FAILED for _, kind, _ in said) <= 1
    assert whole.open_streams <= LIMITS.max_streams
    assert len(whole.take()) < 100_000


@given(fields=st.lists(st.lists(st.tuples(names, st.text(max_size=40)), max_size=6), max_size=8))
def test_headers_are_decoded_as_the_library_decodes_them(
    fields: list[list[tuple[str, str]]],
) -> None:
    session, encoder, oracle = make_session(GrpcLimits()), Encoder(), Decoder()
    session.receive(PREFACE + frame(4))

    for number, extra in enumerate(fields):
        head = [*HEAD, *((f"x-{name}", value.encode().hex()[:50]) for name, value in extra)]
        block = encoder.encode(head, huffman=number % 3 != 0)
        expected = tuple((name, value) for name, value in oracle.decode(block, raw=True))
        events = session.receive(frame(1, 0x4, 2 * number + 1, block))
        assert events == [(2 * number + 1, OPENED, expected)]
