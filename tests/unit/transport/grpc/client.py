"""The client's side of one HTTP/2 connection, by the `h2` library, and frames made by hand."""

from collections.abc import Iterable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes

from kvmesh._native import GrpcSession
from kvmesh.transport.grpc.session_events import FAILED, Event

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Service/Call"),
    (":authority", "picker"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Return one frame, whatever sense it makes."""
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


def failure(events: Iterable[Event]) -> int | None:
    """Return the HTTP/2 error code with which the connection failed."""
    return next((value[0] for _, kind, value in events if kind == FAILED), None)


def whole_messages(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the messages that are whole, and what is left of bytes."""
    found = []
    while len(data) >= (end := 5 + int.from_bytes(data[1:5], "big")):
        found.append(data[5:end])
        data = data[end:]
    return found, data


class Client:
    """Speaks with a session: what it receives is kept by stream."""

    def __init__(self, session: GrpcSession, *, window: int = 1 << 20) -> None:
        self.session = session
        self.connection = H2Connection(H2Configuration(client_side=True, header_encoding="latin-1"))
        self.connection.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
        self.connection.local_settings.acknowledge()
        self.connection.initiate_connection()
        self.messages: dict[int, list[bytes]] = {}
        self.heads: dict[int, dict[str, str]] = {}
        self.ended: list[int] = []
        self.resets: dict[int, int] = {}
        self.goaways: list[tuple[int, int]] = []
        self._held: dict[int, bytes] = {}

    def call(self, *messages: bytes, head: object = None, end: bool = False) -> int:
        """Open a stream with messages; it goes out with the next `exchange`."""
        stream = self.connection.get_next_available_stream_id()
        self.connection.send_headers(stream, head or HEAD)  # type: ignore[arg-type]
        self.say(stream, *messages, end=end)
        return stream

    def say(self, stream: int, *messages: bytes, end: bool = False) -> None:
        """Send messages, as many as fit into frames and windows."""
        data = b"".join(b"\0%b%b" % (len(one).to_bytes(4, "big"), one) for one in messages)
        for at in range(0, len(data), 16_384):
            self.connection.send_data(stream, data[at : at + 16_384])
        if end:
            self.connection.end_stream(stream)

    def exchange(self, cut: int = 0) -> list[Event]:
        """Carry bytes both ways until both are silent; return what the session said.

        `cut`: bytes of a piece towards the session, 0 for all at once.
        """
        events: list[Event] = []
        while True:
            data = self.connection.data_to_send()
            step = cut or len(data) or 1
            for at in range(0, len(data), step):
                events += self.session.receive(data[at : at + step])
            answer = self.session.take()
            if not data and not answer:
                return events
            self.listen(answer)

    def listen(self, data: bytes) -> None:
        """Take bytes of the session."""
        for event in self.connection.receive_data(data):
            if isinstance(event, DataReceived):
                stream = event.stream_id
                found, rest = whole_messages(self._held.pop(stream, b"") + (event.data or b""))
                self.messages.setdefault(stream, []).extend(found)
                self._held[stream] = rest
                if event.stream_ended is None and event.flow_controlled_length:
                    self.connection.acknowledge_received_data(event.flow_controlled_length, stream)
            elif isinstance(event, ResponseReceived | TrailersReceived):
                fields = {str(name): str(value) for name, value in event.headers or ()}
                self.heads.setdefault(event.stream_id or 0, {}).update(fields)
            elif isinstance(event, StreamEnded):
                self.ended.append(event.stream_id)
            elif isinstance(event, StreamReset):
                self.resets[event.stream_id] = int(event.error_code or 0)
            elif isinstance(event, ConnectionTerminated):
                self.goaways.append((event.last_stream_id or 0, int(event.error_code or 0)))
