"""An engine's KV event publisher, as vLLM 0.26 and later speak it: PUB live, ROUTER replay.

Live messages are `topic | seq u64 big-endian | msgpack payload`. A peer asks the replay socket
with `"" | first seq`; it gets `"" | topic | seq | payload` for each buffered batch from there on
and at the end `"" | "" | 2^64-1 | ""`.
Source: vllm/distributed/kv_events.py `ZmqEventPublisher` (0.32).
"""

from collections import deque
from typing import Final

import msgspec
import zmq

from kvmesh.core.engines.kv_events.event_source import END_OF_REPLAY
from kvmesh.errors import TransportError
from kvmesh.transport.zmq.socket import LoopSocket

SEQ_BYTES: Final = 8
REQUEST_FRAMES: Final = 3
"""Identity of the asker, empty delimiter, first sequence number."""


class ZmqPublisherOptions(msgspec.Struct, frozen=True):
    """Where to publish. The names and defaults are vLLM's `KVEventsConfig`.

    An `endpoint` is bound, as vLLM does for one with a wildcard, unless `connect` is set. A port
    of `*` takes a free one. `replay_hwm` bounds an asker's queue: beyond it replies are dropped
    silently, as vLLM drops them beyond 1,000; 0 drops none.
    """

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    connect: bool = False
    replay_hwm: int = 0


class EventPublisher:
    """Numbers batches from 0, publishes them, and repeats the last `buffer_steps` on request."""

    def __init__(self, options: ZmqPublisherOptions) -> None:
        """Bind the sockets; must be called on the event loop.

        Raises `TransportError` naming the address that cannot be used.
        """
        self._options = options
        self._topic = options.topic.encode()
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=options.buffer_steps)
        self._context = zmq.Context()
        self._sockets: list[LoopSocket] = []
        self.next_seq = 0
        self.replays_served = 0
        try:
            self._live = self._open(options.endpoint, zmq.PUB)
            self.endpoint = self._live.last_endpoint
            self._replay: LoopSocket | None = None
            self.replay_endpoint: str | None = None
            if options.replay_endpoint is not None:
                self._replay = self._open(options.replay_endpoint, zmq.ROUTER)
                self.replay_endpoint = self._replay.last_endpoint
        except TransportError:
            self.close()
            raise

    def publish(self, payload: bytes) -> int:
        """Send a batch to whoever listens and keep it for replay; return its number."""
        seq = self.next_seq
        number = seq.to_bytes(SEQ_BYTES, "big")
        self._buffer.append((number, payload))
        self.next_seq = seq + 1
        self._live.send_nowait((self._topic, number, payload))
        return seq

    def close(self) -> None:
        """Close the sockets; safe to call twice."""
        for socket in self._sockets:
            socket.close()
        self._sockets.clear()
        self._context.term()

    def _open(self, endpoint: str, kind: int) -> LoopSocket:
        live = kind == zmq.PUB
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set_hwm(self._options.hwm if live else self._options.replay_hwm)
        try:
            if live and self._options.connect:
                socket.connect(endpoint)
            else:
                socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise TransportError(f"event publisher at {endpoint}: {error}") from error
        opened = LoopSocket(socket, None if live else self._serve_replay)
        self._sockets.append(opened)
        return opened

    def _serve_replay(self, frames: list[bytes]) -> None:
        """Answer one request; a malformed one is ignored, as in vLLM."""
        if self._replay is None or len(frames) != REQUEST_FRAMES or len(frames[2]) != SEQ_BYTES:
            return
        identity, _, first = frames
        self.replays_served += 1
        for number, payload in self._buffer:
            if number >= first:
                self._replay.send_nowait((identity, b"", self._topic, number, payload))
        end = END_OF_REPLAY.to_bytes(SEQ_BYTES, "big")
        self._replay.send_nowait((identity, b"", b"", end, b""))
