"""ZMQ sockets on the event loop, asyncio's or uvloop's."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import zmq

from kvmesh.tasks import guarded

EVENTS: Final = int(zmq.EVENTS)
READABLE: Final = int(zmq.POLLIN)
"""As plain integers: pyzmq's enumerations take longer than what they ask for."""

READS_PER_TURN: Final = 256
"""Messages taken before other work of the loop gets its turn."""

MOST_FRAMES: Final = 8
"""Frames of one message, twice what any has: more are read and dropped, some each turn."""


class LoopSocket:
    """Owns a ZMQ socket and hands each message to `on_message`, on the loop, one at a time.

    A message of more than `MOST_FRAMES` frames is handed on as one without frames.

    `on_message` is None for a socket that only sends; what it raises is reported. libzmq's
    descriptor is edge-triggered: it fires once for any number of messages, and sending may eat the
    edge. So it is read until empty, and looked at again after each send.
    """

    def __init__(
        self, socket: "zmq.Socket[bytes]", on_message: Callable[[list[bytes]], None] | None
    ) -> None:
        self._socket = socket
        self._on_message = on_message and guarded("zmq reader", on_message)
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._closed = self._read_is_due = self._dropping = False
        if on_message is not None:
            self._loop.add_reader(self._descriptor, self._read)
            self._read_soon()

    @property
    def last_endpoint(self) -> str:
        """Return the address bound or connected last, a free port filled in."""
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return endpoint.rstrip(b"\0").decode()

    def send_nowait(self, frames: Sequence[bytes]) -> bool:
        """Queue a message; False when the peer's queue is full and it was dropped."""
        if self._closed:
            return False
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        finally:
            self._read_soon()
        return True

    def close(self) -> None:
        """Close at once, dropping what is queued; safe to call twice."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disable_monitor()
            self._socket.close(linger=0)

    def _read_soon(self) -> None:
        if self._on_message is not None and not self._read_is_due:
            self._read_is_due = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._read_is_due = False
        for number in range(READS_PER_TURN):
            if self._closed or self._on_message is None:
                return
            try:
                frames = self._receive()
            except zmq.Again:
                return
            if frames is not None:
                self._on_message(frames)
            if not number and not self._is_readable():
                # Most come alone, and asking costs half of what an `Again` does.
                return
        self._read_soon()

    def _receive(self) -> list[bytes] | None:
        """Return the next message; None where no more than some of its frames were dropped."""
        socket = self._socket
        frames: list[bytes] = []
        for _ in range(MOST_FRAMES):
            frames.append(socket.recv(zmq.NOBLOCK))
            if not socket.getsockopt(zmq.RCVMORE):
                dropped, self._dropping = self._dropping, False
                return [] if dropped else frames
        self._dropping = True
        return None

    def _is_readable(self) -> bool:
        return not self._closed and bool(int(self._socket.getsockopt(EVENTS)) & READABLE)
