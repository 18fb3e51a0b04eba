"""A connection to a nats-server that ends when it is told to, not when the peer agrees."""

import asyncio
import socket
import ssl
from typing import Final
from urllib.parse import ParseResult

import msgspec
from nats.aio.transport import Transport

from kvmesh.bounds import UNREADABLE
from kvmesh.transport.nats.link.frames import FrameReader, Take

USER_TIMEOUT_MS: Final = 3000
"""The kernel gives up on bytes that nobody acknowledged for so long."""

ENOUGH_BYTES: Final = 65_536
"""Unwritten bytes of a connection from which on it counts as slow."""

INFO: Final = b"INFO "


class AbortingTransport(Transport):
    """A TCP or TLS connection whose close never waits for the peer; nats-py's own waits for ever.

    Once it is closing, what is written is lost in silence: uvloop would raise a RuntimeError that
    nats-py takes for the end of the process. Its read loop sees the end and reconnects.
    """

    def __init__(self, take: Take) -> None:
        """Offer each message that comes to `take` first."""
        self._take = take
        self._reader: asyncio.StreamReader | None = None
        self._writers: list[asyncio.StreamWriter] = []
        """What was opened, and what TLS made of it."""
        self._info = b""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Open a connection; whatever was open before is aborted, not leaked."""
        self.close()
        loop = asyncio.get_running_loop()
        reader = FrameReader(buffer_size, self._take)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        assert uri.hostname is not None, "nats-py refuses such an URL"
        assert uri.port is not None, "nats-py fills in 4222"
        opening = loop.create_connection(lambda: protocol, uri.hostname, uri.port)
        transport, _ = await asyncio.wait_for(opening, connect_timeout)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self._reader, self._writers = reader, [writer]
        sock: socket.socket | None = writer.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        """Upgrade to TLS within `connect_timeout` seconds; `uri` may be the server's name."""
        loop = asyncio.get_running_loop()
        reader = FrameReader(buffer_size, self._take)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        name = uri if isinstance(uri, str) else uri.hostname
        upgrading = loop.start_tls(
            self._writers[-1].transport, protocol, ssl_context, server_hostname=name
        )
        transport = await asyncio.wait_for(upgrading, connect_timeout)
        assert transport is not None
        self._reader = reader
        self._writers.append(asyncio.StreamWriter(transport, protocol, reader, loop))

    def server_info(self) -> dict[str, object]:
        """Return what the server said of itself when it was connected to."""
        try:
            return msgspec.json.decode(self._info or b"{}", type=dict[str, object])
        except UNREADABLE:
            return {}

    def write(self, payload: bytes) -> None:
        """Queue bytes."""
        if not self._is_closing():
            self._writers[-1].write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        """Queue several pieces."""
        # asyncio's `writelines` never pauses its writer in CPython 3.12.1 and 3.13.0, among others
        # (CVE-2024-12254), so `drain` would not wait; its `write` does. To join what is small costs
        # no more than to send it in pieces; to join what is large does.
        if sum(map(len, payload)) < ENOUGH_BYTES:
            self.write(b"".join(payload))
        elif not self._is_closing():
            self._writers[-1].writelines(payload[:-1])
            self._writers[-1].write(payload[-1])

    def takes_more(self) -> bool:
        """Return whether little that was written waits for the socket."""
        if self._is_closing():
            return False
        return self._writers[-1].transport.get_write_buffer_size() < ENOUGH_BYTES

    async def read(self, buffer_size: int) -> bytes:
        """Return the next bytes, at most so many."""
        assert self._reader is not None
        return await self._reader.read(buffer_size)

    async def readline(self) -> bytes:
        """Return the next line. nats-py reads those of the handshake so."""
        assert self._reader is not None
        line = await self._reader.readline()
        if line.startswith(INFO):
            self._info = line.removeprefix(INFO)
        return line

    async def drain(self) -> None:
        """Wait until the socket takes more bytes."""
        if not self._is_closing():
            await self._writers[-1].drain()

    async def wait_closed(self) -> None:
        """Return when the connection is gone; how it went does not matter any more."""
        ends = (writer.wait_closed() for writer in self._writers[-1:])
        await asyncio.gather(*ends, return_exceptions=True)

    def close(self) -> None:
        """Drop the connection at once: unsent bytes are lost, `wait_closed` returns next turn."""
        for writer in self._writers:
            writer.transport.abort()

    def at_eof(self) -> bool:
        """Return whether the server has closed and all it sent was read."""
        return self._reader is None or self._reader.at_eof()

    def __bool__(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]  nats-py's has no type
        """Return True always, or nats-py would replace this transport by its own."""
        return True

    def _is_closing(self) -> bool:
        return not self._writers or self._writers[-1].is_closing()
