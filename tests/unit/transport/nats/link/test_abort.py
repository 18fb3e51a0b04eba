import asyncio
from urllib.parse import urlparse

from kvmesh.transport.nats.link.abort import AbortingTransport


def take_none(*_: object) -> bool:
    return False


async def test_before_it_is_connected_it_is_closed_and_takes_nothing() -> None:
    transport = AbortingTransport(take_none)

    transport.write(b"lost")
    transport.writelines([b"lost"])
    await transport.drain()
    transport.close()
    await transport.wait_closed()

    assert transport.at_eof()
    assert transport
    assert transport.server_info() == {}


async def test_an_info_that_is_no_json_says_nothing() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO {\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = AbortingTransport(take_none)
    await transport.connect(urlparse(f"nats://127.0.0.1:{port}"), 1024, 5)

    line = await transport.readline()
    transport.close()
    await transport.wait_closed()
    server.close()

    assert line == b"INFO {\r\n"
    assert transport.server_info() == {}


async def test_lines_that_the_socket_does_not_take_are_waited_for() -> None:
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        accepted.set_result(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    transport = AbortingTransport(take_none)
    port = server.sockets[0].getsockname()[1]
    await transport.connect(urlparse(f"nats://127.0.0.1:{port}"), 65_536, 5)
    peer = await accepted

    transport.writelines([b"x" * 1_000_000] * 32)
    assert not transport.takes_more()
    draining = asyncio.ensure_future(transport.drain())
    done, _ = await asyncio.wait({draining}, timeout=0.05)
    assert not done

    peer.transport.resume_reading()  # type: ignore[attr-defined]
    peer.transport.set_protocol(asyncio.Protocol())
    await asyncio.wait_for(draining, 10)
    transport.close()
    peer.close()
    server.close()
