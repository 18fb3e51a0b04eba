"""Listening to a ZMQ publisher of which only the newest message matters."""

from collections.abc import Callable
from typing import Final

import zmq

from kvmesh.errors import TransportError
from kvmesh.transport.zmq.socket import LoopSocket

FRAMES: Final = 3
"""Topic, sequence number, payload."""

MAX_MESSAGE_BYTES: Final = 65_536
QUEUE: Final = 64
RECONNECT_MS: Final = 100
RECONNECT_MAX_MS: Final = 2_000


class GaugeSubscription:
    """Hands each payload published at `endpoint` under `topic` to `on_payload`, on the loop."""

    def __init__(self, endpoint: str, topic: str, on_payload: Callable[[bytes], None]) -> None:
        """Connect, on the running loop; it is connected again for ever.

        Raises `TransportError` naming an address that cannot be used.
        """
        self._on_payload = on_payload
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, QUEUE)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            self._context.term()
            raise TransportError(f"engine load at {endpoint}: {error}") from error
        self._socket = LoopSocket(socket, self._on_message)

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        self._socket.close()
        self._context.term()

    def _on_message(self, frames: list[bytes]) -> None:
        if len(frames) == FRAMES:
            self._on_payload(frames[-1])
