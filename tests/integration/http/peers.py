"""Clients and upstreams that speak bytes, so that they may speak them wrongly."""

import asyncio
import contextlib
import gc
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.server import HttpServer

DEADLINE_S = 60.0
RESET = struct.pack("ii", 1, 0)


class Answer(NamedTuple):
    """A response as a client sees it; `whole` is False when it was cut."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    whole: bool = True


class Client:
    """One connection; every wait has a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.received = bytearray()
        """What `read`, `until` and `answer` took so far."""

    @classmethod
    async def connect(
        cls, port: int, *, receive_buffer: int = 0, tls: ssl.SSLContext | None = None
    ) -> "Client":
        """Connect to a port of this machine."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except OSError:
            sock.close()
            raise
        limit = max(receive_buffer, 2**16)
        reader, writer = await asyncio.open_connection(
            sock=sock, limit=limit, ssl=tls, server_hostname="localhost" if tls else None
        )
        return cls(reader, writer)

    def send(self, data: bytes) -> None:
        """Queue bytes."""
        self.writer.write(data)

    async def read(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        data = await asyncio.wait_for(self._reader.readexactly(size), DEADLINE_S)
        self.received += data
        return data

    async def until(self, mark: bytes) -> bytes:
        """Return what comes up to and with `mark`."""
        data = await asyncio.wait_for(self._reader.readuntil(mark), DEADLINE_S)
        self.received += data
        return data

    async def rest(self) -> bytes:
        """Return everything up to the end of the connection, however it ends."""
        found = b""
        with contextlib.suppress(ConnectionError):
            while data := await asyncio.wait_for(self._reader.read(2**16), DEADLINE_S):
                found += data
        return found

    async def closed(self) -> bool:
        """Wait for the end; tell whether nothing came before it."""
        return await self.rest() == b""

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """Return the next response."""
        head = await self.until(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)
        }
        status = int(first.split()[1])
        if bodiless or status in {204, 304}:
            return Answer(status, headers, b"")
        if b"content-length" in headers:
            body, whole = await self._sized(int(headers[b"content-length"]))
        elif b"transfer-encoding" in headers:
            body, whole = await self._chunks()
        else:
            body, whole = await self.rest(), True
        return Answer(status, headers, body, whole)

    async def _sized(self, size: int) -> tuple[bytes, bool]:
        try:
            return await self.read(size), True
        except asyncio.IncompleteReadError as error:
            return error.partial, False

    async def _chunks(self) -> tuple[bytes, bool]:
        body = bytearray()
        try:
            while size := int(await self.until(b"\r\n"), 16):
                body += await self.read(size)
                await self.read(2)
            await self.read(2)
        except (asyncio.IncompleteReadError, ConnectionError):
            return bytes(body), False
        return bytes(body), True

    async def ask(self, data: bytes) -> Answer:
        """Send a request, return its response."""
        self.send(data)
        return await self.answer()

    def close(self) -> None:
        """Close with a FIN."""
        self.writer.close()

    def reset(self) -> None:
        """Close with a RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        transport = self.writer.transport
        transport.abort()


class Front:
    """Servers under test, and clients of them."""

    def __init__(self) -> None:
        self._servers: list[HttpServer] = []
        self._clients: list[Client] = []

    async def serve(
        self,
        handler: Callable[[Exchange], None],
        *,
        limits: HttpLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> HttpServer:
        """Start a server on a free port."""
        server = HttpServer(handler, limits=limits)
        await server.start("127.0.0.1", 0, ssl=tls)
        self._servers.append(server)
        return server

    async def connect(
        self, server: HttpServer, *, receive_buffer: int = 0, tls: ssl.SSLContext | None = None
    ) -> Client:
        """Connect to `server`."""
        client = await Client.connect(server.port, receive_buffer=receive_buffer, tls=tls)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """Close everything."""
        for client in self._clients:
            client.writer.transport.abort()
        for server in self._servers:
            await server.close()


class Turn:
    """One request at an upstream, in the hands of a script."""

    def __init__(
        self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.head = head
        self.body = body
        self.connection = 0
        self._reader = reader
        self.writer = writer

    def send(self, *pieces: bytes) -> None:
        """Write bytes."""
        self.writer.write(b"".join(pieces))

    async def gone(self) -> None:
        """Wait until the other side closes."""
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(self._reader.read(1000), DEADLINE_S):
                pass

    def close(self) -> None:
        """Close with a FIN behind what was written."""
        self.writer.close()

    def reset(self) -> None:
        """Close with a RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.writer.transport.abort()


Script = Callable[[Turn], Awaitable[None]]
Die = Callable[[Turn], None]


def sends(*pieces: bytes, then: Callable[[Turn], Awaitable[None] | None] | None = None) -> Script:
    """Return a script that sends `pieces`, and what it does once they may have been read."""

    async def script(turn: Turn) -> None:
        turn.send(*pieces)
        if then is not None:
            await asyncio.sleep(0.01)
            if (doing := then(turn)) is not None:
                await doing

    return script


def answer(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    """Return a response with a length."""
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers, b"", body]
    return b"\r\n".join(lines)


def chunked(*pieces: bytes, kind: bytes = b"text/event-stream", end: bool = True) -> bytes:
    """Return a chunked response; without `end` its last chunk is missing."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % kind
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + (b"0\r\n\r\n" if end else b"")


JSON = b"Content-Type: application/json"


def posts(turns: list["Turn"]) -> list[dict[str, str]]:
    """Return the headers of the POSTs among them; none stands twice."""
    found = []
    for turn in turns:
        first, *lines = turn.head.decode().split("\r\n")[:-2]
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
        assert len(headers) == len(lines)
        found += [headers] if first.startswith("POST") else []
    return found


def living() -> Counter[str]:
    """Return how many objects of each class the collector knows."""
    return Counter(type(item).__name__ for item in gc.get_objects())


class Upstream:
    """A server that does with each request what `script` says; default: an empty 200."""

    def __init__(self) -> None:
        self.script: Script = self._ok
        self.turns: list[Turn] = []
        self.connections = 0
        self.failures: list[BaseException] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def origin(self) -> str:
        """Return its URL."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self, *, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, ssl=tls, backlog=2048
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop, and raise what went wrong in scripts."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.failures:
            raise self.failures[0]

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, script: Script) -> AsyncIterator["Upstream"]:
        """Serve until the block ends."""
        made = cls()
        made.script = script
        await made.start()
        try:
            yield made
        finally:
            await made.close()

    async def _ok(self, turn: Turn) -> None:
        turn.send(answer(b""))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
                turn = Turn(head, await reader.readexactly(int(length or 0)), reader, writer)
                turn.connection = number
                self.turns.append(turn)
                await self.script(turn)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:  # noqa: BLE001  shown when the test ends
            self.failures.append(error)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
