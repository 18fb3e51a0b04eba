"""What goes out on the streams of a `LibrarySession`, as far as flow control lets it."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from h2.connection import H2Connection

from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.session_events import RESUMED, Event
from tests.reference.transport.grpc_messages import FRAME_BYTES, MessageReader, frame_messages

FORGIVEN: Final = 8
"""Idle frames that each message, in or out, makes up for: a client grants window as it reads."""
_HEAD: Final = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_ROOM_SHARE: Final = 4


class LibraryStream:
    """What is kept of one stream."""

    __slots__ = (
        "answered",
        "finished",
        "held",
        "left",
        "local_over",
        "owed",
        "pause_reported",
        "reader",
        "remote_over",
        "status",
        "text",
        "waiting",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self, max_message_bytes: int) -> None:
        self.reader = MessageReader(max_message_bytes)
        self.waiting: deque[memoryview] = deque()
        self.waiting_bytes = 0
        self.owed = 0
        self.held = False
        self.answered = False
        self.finished = False
        self.status = 0
        self.text = b""
        self.pause_reported = False
        self.local_over = False
        self.remote_over = False
        self.left = False


class LibrarySender:
    """Streams by id, and those of them that wait for their turn to send."""

    def __init__(self, connection: H2Connection, limits: GrpcLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._ready: dict[int, None] = {}
        """Streams with something to send, in the order of their turns."""
        self.streams: dict[int, LibraryStream] = {}
        self.idle_frames = 0
        self.silent = False
        """Nothing may be sent: the socket takes no more, or the connection is over."""

    def queue(self, stream_id: int, messages: Sequence[bytes]) -> None:
        """Send messages, and the trailers of a finished stream; what may not go yet waits."""
        stream = self.streams[stream_id]
        data = frame_messages(messages)
        if data:
            stream.waiting.append(memoryview(data))
            stream.waiting_bytes += len(data)
        while self._send_frame(stream_id, stream):
            pass
        self._wait(stream_id, stream)

    def send_waiting(self, events: list[Event]) -> None:
        """Have the streams that wait send one frame each, in turns, while there is window."""
        moved = True
        while moved:
            moved = False
            for stream_id in list(self._ready):
                del self._ready[stream_id]
                stream = self.streams.get(stream_id)
                if stream is not None:
                    moved |= self._send_frame(stream_id, stream)
                    self._wait(stream_id, stream)
                    self._tell_room(stream_id, stream, events)

    def _wait(self, stream_id: int, stream: LibraryStream) -> None:
        if stream.waiting or (stream.finished and not stream.local_over):
            self._ready[stream_id] = None

    def _tell_room(self, stream_id: int, stream: LibraryStream, events: list[Event]) -> None:
        least = self._limits.write_buffer_bytes
        if stream.pause_reported and stream.waiting_bytes * _ROOM_SHARE <= least:
            stream.pause_reported = False
            if not stream.finished:
                events.append((stream_id, RESUMED, None))

    def _send_frame(self, stream_id: int, stream: LibraryStream) -> bool:
        """Send what one frame takes, trailers behind the last; False when no data could go."""
        if self.silent or stream.local_over:
            return False
        connection = self._connection
        if not stream.waiting:
            if stream.finished:
                self._send_trailers(stream_id, stream)
            return False
        if not stream.answered:
            connection.send_headers(stream_id, _HEAD)
            stream.answered = True
        data = stream.waiting[0]
        size = min(connection.local_flow_control_window(stream_id), FRAME_BYTES, len(data))
        if size <= 0:
            return False
        connection.send_data(stream_id, bytes(data[:size]))
        self.idle_frames = max(0, self.idle_frames - FORGIVEN)
        stream.waiting_bytes -= size
        if size < len(data):
            stream.waiting[0] = data[size:]
        else:
            stream.waiting.popleft()
            if not stream.waiting:
                self._send_frame(stream_id, stream)
        return True

    def _send_trailers(self, stream_id: int, stream: LibraryStream) -> None:
        head = [] if stream.answered else _HEAD
        trailers = [*head, (b"grpc-status", b"%d" % stream.status)]
        if stream.text:
            trailers.append((b"grpc-message", stream.text))
        self._connection.send_headers(stream_id, trailers, end_stream=True)
        stream.answered = stream.local_over = True
        if stream.remote_over:
            del self.streams[stream_id]
