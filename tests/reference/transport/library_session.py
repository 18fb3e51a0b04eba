"""The model of kvmesh/native/http2/h2_session.c and hpack.c: a session by the `h2` library."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame, PingFrame

from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.session_events import (
    BROKEN,
    ENDED,
    ENHANCE_YOUR_CALM,
    FAILED,
    FRAME_SIZE_ERROR,
    INTERNAL,
    MESSAGE,
    NO_ERROR,
    OPENED,
    REFUSED_STREAM,
    RESET,
    Event,
)
from tests.reference.transport.grpc_messages import (
    DRAIN_PING,
    FRAME_BYTES,
    LAST_STREAM,
    Unreadable,
)
from tests.reference.transport.library_sender import FORGIVEN, LibrarySender, LibraryStream

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PREFACE_BYTES: Final = len(_PREFACE)
_HEAD_BYTES: Final = 9
_UNDECODED: Final = "a header block that cannot be decoded"
_DATA: Final = 0
_HEADERS: Final = 1
"""Kinds of frames."""


class LibrarySession:
    """`Session` over `h2.connection.H2Connection`."""

    def __init__(self, limits: GrpcLimits) -> None:
        self._limits = limits
        self._connection = connection = H2Connection(
            H2Configuration(client_side=False, header_encoding=None)
        )
        reported = {
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_streams,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
        }
        connection.local_settings = Settings(client=False, initial_values=reported)
        connection.initiate_connection()
        # A stream too many ends alone: the library would end the connection.
        reported[SettingCodes.MAX_CONCURRENT_STREAMS] = LAST_STREAM
        connection.local_settings = Settings(client=False, initial_values=reported)
        connection.decoder.max_header_list_size = limits.max_header_bytes
        if more := limits.connection_window_bytes - 65_535:
            connection.increment_flow_control_window(more)
        self._sender = LibrarySender(connection, limits)
        self._streams = self._sender.streams
        self._out = bytearray()
        self._held = bytearray()
        self._prefaced = False
        self._owed = 0
        self._early_resets = 0
        self._over = False
        self._highest = 0
        self._draining = False
        self.greeted = False
        self.drained = False
        self._takers: dict[type, Callable[[Any, list[Event]], None]] = {
            RequestReceived: self._opened,
            DataReceived: self._received,
            StreamEnded: self._ended,
            StreamReset: self._was_reset,
            RemoteSettingsChanged: self._greeted,
            PingAckReceived: self._ponged,
        }

    @property
    def open_streams(self) -> int:
        """Return how many streams are not over."""
        return len(self._streams)

    @property
    def held_bytes(self) -> int:
        """Return the bytes that are held, in and out. O(streams)."""
        streams = self._streams.values()
        return sum(stream.reader.held_bytes + stream.waiting_bytes for stream in streams)

    def receive(self, data: bytes, /) -> Sequence[Event]:
        """Take bytes of the peer, return what they say."""
        if self._over:
            return ()
        events: list[Event] = []
        self._held += data
        for frame in self._cut():
            if not self._take_frame(frame, events):
                return events
        if self._owed * 2 >= self._limits.connection_window_bytes:
            self._connection.increment_flow_control_window(self._owed)
            self._owed = 0
        self._sender.send_waiting(events)
        return events

    def send(self, stream_id: int, messages: Sequence[bytes], /) -> int:
        """Queue messages, return the bytes that wait."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.finished:
            return 0
        self._sender.queue(stream_id, messages)
        stream.pause_reported |= stream.waiting_bytes > self._limits.write_buffer_bytes
        return stream.waiting_bytes

    def finish(
        self, stream_id: int, messages: Sequence[bytes], status: int, text: bytes, /
    ) -> None:
        """Queue the last messages and the trailers."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.finished:
            return
        stream.finished = True
        stream.status, stream.text = status, text
        self._sender.queue(stream_id, messages)

    def reset(self, stream_id: int, code: int, /) -> None:
        """Give the stream up."""
        if stream_id in self._streams and not self._over:
            self._connection.reset_stream(stream_id, code)
            self._drop(stream_id)

    def hold(self, stream_id: int, /) -> None:
        """Grant no more window."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.held = True

    def grant(self, stream_id: int, /) -> None:
        """Grant window again."""
        stream = self._streams.get(stream_id)
        if stream is not None and stream.held:
            stream.held = False
            self._credit(stream_id, stream, 0)

    def block(self) -> None:
        """Keep data here."""
        self._sender.silent = True

    def unblock(self) -> Sequence[Event]:
        """Let data go out again."""
        self._sender.silent = self._over
        events: list[Event] = []
        self._sender.send_waiting(events)
        return events

    def drain(self) -> None:
        """Ask for no more streams."""
        if self._over or self._draining:
            return
        self._draining = True
        self._go_away(LAST_STREAM, NO_ERROR, b"draining")
        self._out += PingFrame(0, opaque_data=DRAIN_PING).serialize()

    def reset_idle(self) -> None:
        """Count from 0 again; give up what was left half closed."""
        self._sender.idle_frames = self._early_resets = 0
        for stream_id, stream in list(self._streams.items()):
            if stream.local_over and stream.left:
                self.reset(stream_id, NO_ERROR)
            stream.left = stream.local_over

    def take(self) -> bytes:
        """Return the bytes to send."""
        self._out += self._connection.data_to_send()
        taken = bytes(self._out)
        self._out.clear()
        return taken

    # what the peer says

    def _cut(self) -> Iterator[bytes]:
        """Yield whole frames: the library says nothing of those before one that it refuses, and
        acts on those behind one before it is told what became of that.
        """
        held = self._held
        if not self._prefaced:
            if len(held) < _PREFACE_BYTES and _PREFACE.startswith(held):
                return
            preface = bytes(held[:_PREFACE_BYTES])
            del held[:_PREFACE_BYTES]
            yield preface
            self._prefaced = True
        while len(held) >= _HEAD_BYTES:
            length = int.from_bytes(held[:3], "big")
            end = _HEAD_BYTES + length
            if len(held) < end and length <= FRAME_BYTES:
                return
            frame = bytes(held[:end])
            del held[:end]
            yield frame

    def _take_frame(self, frame: bytes, events: list[Event]) -> bool:
        """Return whether the connection goes on."""
        sender, limits = self._sender, self._limits
        if self._prefaced:
            if int.from_bytes(frame[:3], "big") > FRAME_BYTES:
                return self._stop(FRAME_SIZE_ERROR, "a frame larger than 16,384 bytes", events)
            if frame[3] != _HEADERS:
                sender.idle_frames += frame[3] != _DATA or len(frame) == _HEAD_BYTES
        try:
            for event in self._connection.receive_data(frame):
                take = self._takers.get(type(event))
                if take is not None:
                    take(event, events)
        except ProtocolError as error:
            self._out += self._connection.data_to_send()
            # The library words what a header block lacks with the address of its bytes.
            undecoded = error.__cause__ is not None
            text = _UNDECODED if undecoded else str(error) or type(error).__name__
            return self._fail(int(error.error_code), text, events)
        if sender.idle_frames > limits.max_idle_frames:
            return self._stop(ENHANCE_YOUR_CALM, "too many frames that move nothing", events)
        if self._early_resets > limits.max_early_resets:
            return self._stop(
                ENHANCE_YOUR_CALM, "too many streams reset before they were answered", events
            )
        return True

    def _opened(self, event: RequestReceived, events: list[Event]) -> None:
        stream_id = event.stream_id
        if self.open_streams >= self._limits.max_streams or self.drained:
            self._connection.reset_stream(stream_id, REFUSED_STREAM)
            self._early_resets += 1
            return
        self._highest = stream_id
        self._streams[stream_id] = LibraryStream(self._limits.max_message_bytes)
        events.append((stream_id, OPENED, tuple((bytes(n), bytes(v)) for n, v in event.headers)))

    def _received(self, event: DataReceived, events: list[Event]) -> None:
        stream_id, size = event.stream_id, event.flow_controlled_length or 0
        self._owed += size
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if event.stream_ended is None:
            self._credit(stream_id, stream, size)
        if stream.finished:
            return
        before = len(events)
        try:
            data = event.data or b""
            events.extend((stream_id, MESSAGE, message) for message in stream.reader.feed(data))
        except Unreadable as error:
            self._break(stream_id, error, events)
        sender = self._sender
        sender.idle_frames = max(0, sender.idle_frames - FORGIVEN * (len(events) - before))

    def _ended(self, event: StreamEnded, events: list[Event]) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        stream.remote_over = True
        if stream.local_over:
            self._drop(event.stream_id)
        elif not stream.finished:
            if stream.reader.within:
                error = Unreadable(INTERNAL, "the stream ended within a message")
                self._break(event.stream_id, error, events)
            else:
                events.append((event.stream_id, ENDED, None))

    def _break(self, stream_id: int, error: Unreadable, events: list[Event]) -> None:
        self.finish(stream_id, (), error.status, error.text.encode())
        events.append((stream_id, BROKEN, (error.status, error.text)))

    def _was_reset(self, event: StreamReset, events: list[Event]) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        self._early_resets += not stream.answered
        if not stream.finished:
            events.append((event.stream_id, RESET, int(event.error_code or 0)))
        self._drop(event.stream_id)

    def _greeted(self, event: object, events: list[Event]) -> None:
        del event, events
        self.greeted = True

    def _ponged(self, event: PingAckReceived, events: list[Event]) -> None:
        del events
        if self._draining and event.ping_data == DRAIN_PING and not self.drained:
            self.drained = True
            self._go_away(self._highest, NO_ERROR, b"draining")

    def _credit(self, stream_id: int, stream: LibraryStream, size: int) -> None:
        stream.owed += size
        if stream.held or stream.remote_over or stream.owed * 2 < self._limits.stream_window_bytes:
            return
        self._connection.increment_flow_control_window(stream.owed, stream_id)
        stream.owed = 0

    def _drop(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)

    def _go_away(self, last: int, code: int, text: bytes) -> None:
        # By hand: the library takes its own GOAWAY for the end of the connection.
        self._out += self._connection.data_to_send()
        frame = GoAwayFrame(0, last_stream_id=last, error_code=code, additional_data=text)
        self._out += frame.serialize()

    def _stop(self, code: int, text: str, events: list[Event]) -> bool:
        self._go_away(self._highest, code, text.encode())
        return self._fail(code, text, events)

    def _fail(self, code: int, text: str, events: list[Event]) -> bool:
        self._over = self._sender.silent = True
        events.append((0, FAILED, (code, text)))
        return False
