"""A client of the gateway that sees each byte, and can be slow or leave."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import httptools
import msgspec

READ: Final = 65_536


class Sent(msgspec.Struct, frozen=True):
    """A request. `expects`: send the body only after `100 Continue`.

    `leaves_after`: close the connection once so many bytes of the answer's body came.
    `pause`: awaited once, after the answer's first bytes; nothing is read meanwhile.
    """

    path: str
    body: bytes = b""
    method: str = "POST"
    headers: Sequence[tuple[str, str]] = ()
    trailers: Sequence[tuple[str, str]] = ()
    expects: bool = False
    leaves_after: int | None = None
    pause: Callable[[], Awaitable[None]] | None = None


class Got:
    """An answer. `complete`: it ended as HTTP says, so that a client takes it for whole."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False
        self.continued = False
        self.broken = ""

    def on_message_begin(self) -> None:
        """Begin: a final answer after `100 Continue` begins anew."""
        self.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self.body += body

    def on_message_complete(self) -> None:
        """Take note of the end."""
        self.complete = True

    def __str__(self) -> str:
        """Say what it is, in words."""
        end = "complete" if self.complete else f"cut off ({self.broken or 'connection closed'})"
        return f"status {self.status}, {len(self.body)} bytes, {end}"


async def send(address: str, sent: Sent, within_s: float) -> Got:
    """Return the answer to a request on a new connection, or what there is of it `within_s`."""
    got = Got()
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError as error:
        got.broken = str(error)
        return got
    try:
        await asyncio.wait_for(_talk(reader, writer, sent, got), within_s)
    except TimeoutError:
        got.broken = f"not over after {within_s:g} s"
    except (OSError, httptools.HttpParserError) as error:
        got.broken = str(error) or type(error).__name__
    finally:
        writer.transport.abort()
    return got


async def _talk(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: Sent, got: Got
) -> None:
    lines = [f"{sent.method} {sent.path} HTTP/1.1", "host: conformance.test"]
    if sent.method != "GET":
        length = f"content-length: {len(sent.body)}"
        lines.append("content-type: application/json")
        lines.append("transfer-encoding: chunked" if sent.trailers else length)
    if sent.expects:
        lines.append("expect: 100-continue")
    lines += [f"{name}: {value}" for name, value in sent.headers]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    body = chunked(sent) if sent.trailers else sent.body
    if sent.expects:
        head = await reader.readuntil(b"\r\n\r\n")
        got.continued = b" 100" in head.splitlines()[0]
        if not got.continued:
            await _read(reader, sent, got, head)
            return
    writing = asyncio.create_task(_write(writer, body))
    try:
        await _read(reader, sent, got, b"")
    finally:
        writing.cancel()


def chunked(sent: Sent) -> bytes:
    """Return the body in one chunk, and the trailers behind it."""
    trailers = "".join(f"{name}: {value}\r\n" for name, value in sent.trailers)
    return b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(sent.body), sent.body, trailers.encode())


async def _write(writer: asyncio.StreamWriter, body: bytes) -> None:
    try:
        writer.write(body)
        await writer.drain()
    except ConnectionError:
        return  # what is read says why


async def _read(reader: asyncio.StreamReader, sent: Sent, got: Got, already: bytes) -> None:
    parser = httptools.HttpResponseParser(got)
    pause = sent.pause
    data = already or await reader.read(READ)
    while data:
        parser.feed_data(data)
        got.status = parser.get_status_code()
        if got.complete:
            return
        if pause is not None and got.body:
            await pause()
            pause = None
        if sent.leaves_after is not None and len(got.body) >= sent.leaves_after:
            got.broken = "the client left"
            return
        data = await reader.read(READ)
    got.broken = got.broken or "connection closed"
