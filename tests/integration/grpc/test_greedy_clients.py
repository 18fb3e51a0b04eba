"""Clients that begin messages and never end them: what is held of those is bounded."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived

from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.server import GrpcServer
from kvmesh.transport.grpc.stream import GrpcStream

pytestmark = pytest.mark.integration

PATH = "/echo"
BOUND = 256 * 1024
LIMITS = GrpcLimits(max_held_bytes=BOUND)
WITHIN_S = 20.0


def echo(stream: GrpcStream) -> None:
    def on_message(message: bytes) -> None:
        stream.send(message)

    stream.on_message = on_message


class Client:
    """One connection, on which `h2` keeps to the windows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http2 = H2Connection(H2Configuration(client_side=True))
        self._http2.initiate_connection()

    async def begin(self) -> None:
        """Wait for the connection's window."""
        while self._http2.outbound_flow_control_window <= BOUND * 2:
            self._http2.receive_data(await self._reader.read(65_536))

    async def open(self, data: bytes) -> int:
        stream = self._http2.get_next_available_stream_id()
        head = [(":method", "POST"), (":scheme", "http"), (":path", PATH), (":authority", "x")]
        self._http2.send_headers(stream, [*head, ("content-type", "application/grpc")])
        for at in range(0, len(data), 16_384):
            self._http2.send_data(stream, data[at : at + 16_384])
        self._writer.write(self._http2.data_to_send())
        await self._writer.drain()
        return stream

    async def read(self) -> bytes:
        """Return the next bytes of any stream; b"" once the connection is gone."""
        while data := await self._reader.read(65_536):
            events = self._http2.receive_data(data)
            self._writer.write(self._http2.data_to_send())
            if received := b"".join(
                one.data or b"" for one in events if isinstance(one, DataReceived)
            ):
                return received
        return b""

    async def wait_cut(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self.read():
                pass


@contextlib.asynccontextmanager
async def client(server: GrpcServer, host: str = "127.0.0.1") -> AsyncGenerator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(host, 0))
    try:
        one = Client(reader, writer)
        await one.begin()
        yield one
    finally:
        writer.close()


async def test_who_holds_most_of_messages_that_never_end_is_cut_and_others_go_on() -> None:
    server = GrpcServer({PATH: echo}, LIMITS)
    await server.start("127.0.0.1", 0)
    begun = b"\0" + (BOUND * 2).to_bytes(4, "big")
    try:
        async with asyncio.timeout(WITHIN_S), client(server) as modest, client(server) as greedy:
            await modest.open(begun + bytes(BOUND // 8))
            for _ in range(7):
                await greedy.open(begun + bytes(BOUND // 8))
            await modest.open(b"\0\0\0\0\5hello")
            received = await modest.read()
            held = server.held_bytes
            await greedy.open(begun + bytes(BOUND // 8))
            await greedy.wait_cut()
            await modest.open(b"\0\0\0\0\3bye")
            received += await modest.read()
        counts = server.statistics()
    finally:
        await server.close()

    assert received == b"\0\0\0\0\5hello\0\0\0\0\3bye"
    assert 0 < held <= BOUND
    assert counts.protocol_errors == 1
    assert server.held_bytes == 0


async def test_many_connections_of_a_stranger_do_not_cost_a_gateway_its_own() -> None:
    server = GrpcServer({PATH: echo}, LIMITS)
    await server.start("127.0.0.1", 0)
    begun = b"\0" + (BOUND * 2).to_bytes(4, "big")
    try:
        async with asyncio.timeout(WITHIN_S), contextlib.AsyncExitStack() as stack:
            gateway = await stack.enter_async_context(client(server))
            await gateway.open(begun + bytes(BOUND // 4))
            for _ in range(12):
                stranger = await stack.enter_async_context(client(server, "127.0.0.2"))
                await stranger.open(begun + bytes(BOUND // 8))
            await gateway.open(b"\0\0\0\0\5hello")
            received = await gateway.read()
        counts = server.statistics()
    finally:
        await server.close()

    assert received == b"\0\0\0\0\5hello"
    assert counts.protocol_errors > 0
