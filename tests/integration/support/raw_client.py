"""A client that does as a test says: sends part of a request, reads part of an answer, resets."""

import asyncio
import contextlib
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

import msgspec

RESET = struct.pack("ii", 1, 0)


def request_bytes(body: bytes, path: str, *headers: str, length: int | None = None) -> bytes:
    """Return a whole POST; `length` announces another length than the body has."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: a",
        "content-type: application/json",
        f"content-length: {len(body) if length is None else length}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, url: str) -> "RawClient":
        """Connect to a router."""
        where = urlsplit(url)
        return cls(*await asyncio.open_connection(where.hostname, where.port))

    async def send(self, data: bytes) -> None:
        """Send as it is; no error where the other side has answered and closed."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def status(self) -> int:
        """Return the status that is answered, 0 when the connection ends before."""
        try:
            line = await asyncio.wait_for(self._reader.readline(), 20)
        except ConnectionError:
            return 0
        return int(line.split()[1]) if line else 0

    async def until(self, text: bytes) -> None:
        """Read on until `text` came."""
        await asyncio.wait_for(self._reader.readuntil(text), 20)

    async def rest(self) -> bytes:
        """Read to the end of the connection."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self._reader.read(), 20)
        return b""

    def reset(self) -> None:
        """Close with a TCP reset."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._writer.transport.abort()

    def close(self) -> None:
        """Close."""
        self._writer.close()


async def exchange(url: str, body: Any, *headers: str, path: str = "/v1/chat/completions") -> int:
    """Return the status of one request, read to its end."""
    client = await RawClient.connect(url)
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    await client.send(request_bytes(data, path, "connection: close", *headers))
    status = await client.status()
    await client.rest()
    client.close()
    return status
