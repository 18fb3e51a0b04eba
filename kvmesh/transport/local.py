"""Messages between two processes of one machine, over a Unix socket.

What is sent within one turn of the event loop leaves as one frame, so that many calls in flight
share a system call: u32 length (little-endian), then whatever the codec makes of the list.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar, cast

from kvmesh.errors import CodecError, TransportError
from kvmesh.observe import get_logger
from kvmesh.tasks import report

MAX_FRAME_BYTES: Final = 64 * 1024**2
"""No frame is longer: one announced ends the link, for the other side is not one of us; a message
that needs one is not sent.
"""

MAX_BACKLOG_BYTES: Final = 2 * MAX_FRAME_BYTES
"""So much unsent ends the link: the other side is stuck."""

_HEADER: Final = 4

Incoming_co = TypeVar("Incoming_co", covariant=True)
Incoming_contra = TypeVar("Incoming_contra", contravariant=True)
Outgoing_contra = TypeVar("Outgoing_contra", contravariant=True)
Incoming = TypeVar("Incoming")
Outgoing = TypeVar("Outgoing")


class LocalCodec(Protocol[Incoming_co, Outgoing_contra]):
    """How a list of messages becomes bytes, and back."""

    def encode(self, messages: Sequence[Outgoing_contra], /) -> bytes:
        """Return one frame's content."""
        ...

    def decode(self, data: memoryview, /) -> Iterable[Incoming_co]:
        """Return the messages in a frame. Raises `CodecError`."""
        ...


class LocalReceiver(Protocol[Incoming_contra, Outgoing_contra]):
    """Who is at one end of a link."""

    def on_message(self, message: Incoming_contra, /) -> None:
        """Take the next message."""
        ...

    def on_unsent(self, message: Outgoing_contra, error: Exception, /) -> None:
        """Learn that a message of one's own could not be encoded; those beside it were sent."""
        ...

    def on_lost(self) -> None:
        """Learn, once, that nothing more comes and nothing sent since arrives."""
        ...


class LocalLink(asyncio.Protocol, Generic[Incoming, Outgoing]):
    """One end of a link. `send` never waits; an unsent backlog beyond two frames ends the link.

    A message that cannot be encoded is not sent, and its sender is told (`on_unsent`): those beside
    it are.
    """

    def __init__(self, codec: LocalCodec[Incoming, Outgoing]) -> None:
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._receiver: LocalReceiver[Incoming, Outgoing] | None = None
        self._transport: asyncio.Transport | None = None
        self._outbox: list[Outgoing] = []
        self._lost = False
        self._rest = b""

    def attach(self, receiver: LocalReceiver[Incoming, Outgoing]) -> None:
        """Deliver to `receiver` from now on."""
        self._receiver = receiver

    def send(self, message: Outgoing) -> None:
        """Send `message` at the end of this turn; nothing happens on a lost link."""
        if self._lost:
            return
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(message)

    def close(self) -> None:
        """Send what is waiting, then end the link."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; send what was sent before."""
        self._transport = cast("asyncio.Transport", transport)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take whole frames apart, keep the rest."""
        rest = self._rest + data if self._rest else data
        view, at = memoryview(rest), 0
        while len(rest) - at >= _HEADER:
            begin = at + _HEADER
            size = int.from_bytes(view[at:begin], "little")
            if size > MAX_FRAME_BYTES:
                self._break(f"frame of {size} bytes, more than {MAX_FRAME_BYTES}")
                return
            if len(rest) < begin + size:
                break
            at = begin + size
            try:
                self._deliver(view[begin:at])
            except CodecError as error:
                self._break(str(error))
                return
        self._rest = rest[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the receiver, once."""
        del exc
        self._lost = True
        self._transport = None
        self._outbox.clear()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.on_lost()

    # inside

    def _deliver(self, frame: memoryview) -> None:
        for message in self._codec.decode(frame):
            if self._receiver is None:
                return
            try:
                self._receiver.on_message(message)
            except Exception as error:  # noqa: BLE001  one message's bug must not cut all others off
                report("link message", error)

    def _flush(self) -> None:
        outbox, transport = self._outbox, self._transport
        if not outbox or transport is None:
            return
        self._outbox = []
        try:
            data = self._codec.encode(outbox)
        except Exception:  # noqa: BLE001  one of many messages: found and told below
            data = b""
        if 0 < len(data) <= MAX_FRAME_BYTES:
            self._write(transport, data)
        else:
            for message in outbox:
                self._send_alone(transport, message)
        if transport.get_write_buffer_size() > MAX_BACKLOG_BYTES:
            self._break("the other side does not read")

    def _send_alone(self, transport: asyncio.Transport, message: Outgoing) -> None:
        """Send one message in a frame of its own, or tell its sender why not."""
        try:
            data = self._encode_alone(message)
        except Exception as error:  # noqa: BLE001  this message fails alone: the others go on
            self._tell_unsent(message, error)
        else:
            self._write(transport, data)

    def _encode_alone(self, message: Outgoing) -> bytes:
        data = self._codec.encode([message])
        if len(data) > MAX_FRAME_BYTES:
            name = type(message).__name__
            raise CodecError(f"{name} of {len(data)} bytes, a frame has at most {MAX_FRAME_BYTES}")
        return data

    def _tell_unsent(self, message: Outgoing, error: Exception) -> None:
        report("link message", error, detail=f"{type(message).__name__} cannot be sent")
        if self._receiver is not None:
            try:
                self._receiver.on_unsent(message, error)
            except Exception as another:  # noqa: BLE001  one message's bug, as in `_deliver`
                report("link message", another)

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        try:
            transport.write(len(data).to_bytes(_HEADER, "little") + data)
        except Exception as error:  # noqa: BLE001  what is lost would be waited for: end the link
            report("link message", error)
            self._break("a frame cannot be written")

    def _break(self, why: str) -> None:
        get_logger().error("link between processes broken", why=why)
        if self._transport is not None:
            self._transport.abort()


async def connect_local(
    path: Path, codec: LocalCodec[Incoming, Outgoing]
) -> LocalLink[Incoming, Outgoing]:
    """Return a link to the listener at `path`. Raises `TransportError`."""
    loop = asyncio.get_running_loop()
    try:
        _, link = await loop.create_unix_connection(lambda: LocalLink(codec), str(path))
    except OSError as error:
        raise TransportError(f"cannot connect to {path}: {error}") from error
    return link


async def listen_local(
    path: Path,
    codec: LocalCodec[Incoming, Outgoing],
    accepted: Callable[[LocalLink[Incoming, Outgoing]], None],
) -> asyncio.Server:
    """Listen at `path`, in place of whoever listened before; each new link goes to `accepted`.

    Raises `TransportError`.
    """

    def accept() -> LocalLink[Incoming, Outgoing]:
        link = LocalLink(codec)
        accepted(link)
        return link

    loop = asyncio.get_running_loop()
    try:
        path.unlink(missing_ok=True)  # noqa: ASYNC240  one system call, at the start
        return await loop.create_unix_server(accept, str(path))
    except OSError as error:
        raise TransportError(f"cannot listen on {path}: {error}") from error
