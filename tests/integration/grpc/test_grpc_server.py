"""The gRPC server under the client of grpcio, over real sockets."""

import asyncio
import contextlib
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterable, AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from hpack import Encoder

from kvmesh.errors import ConfigError, TransportError
from kvmesh.transport.grpc.server import GrpcLimits, GrpcServer, grpc_context
from kvmesh.transport.grpc.session_events import CANCEL, CONNECT_ERROR
from kvmesh.transport.reloading_tls import ReloadingTls
from tests.conftest import Eventually
from tests.integration.grpc.conftest import Service
from tests.unit.transport.grpc.client import HEAD, PREFACE, frame

pytestmark = pytest.mark.integration

TLS = Path(__file__).parents[2] / "fixtures" / "tls"


def channel(server: GrpcServer) -> Any:
    """Return a channel of its own connection; its stubs ask for more arguments than it needs."""
    return grpc.aio.insecure_channel(
        f"127.0.0.1:{server.port}",
        options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)],
    )


def head_of(path: str) -> bytes:
    """Return the block of headers of a call."""
    return Encoder().encode([*HEAD[:2], (":path", path), *HEAD[3:]])


async def many(messages: list[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def gathered(call: AsyncIterable[bytes]) -> list[bytes]:
    return [message async for message in call]


async def test_messages_of_any_size_come_back(service: Service) -> None:
    server = await service.start()
    messages = [b"", b"a", b"b" * 62_000, b"c" * 1_500_000, b"d" * 70_000]

    async with channel(server) as opened:
        calls = [opened.stream_stream("/test/Echo")(many(messages)) for _ in range(5)]
        answers = await asyncio.gather(*map(gathered, calls))

    assert answers == [messages] * 5
    assert server.statistics().messages == 25


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/test/Nothing", grpc.StatusCode.UNIMPLEMENTED, "unknown method /test/Nothing"),
        ("/test/Broken", grpc.StatusCode.INTERNAL, "internal error"),
        ("/test/Raises", grpc.StatusCode.INTERNAL, "internal error"),
    ],
)
async def test_a_call_that_fails_fails_alone(
    service: Service, path: str, code: grpc.StatusCode, words: str
) -> None:
    server = await service.start()

    async with channel(server) as opened:
        echo = opened.stream_stream("/test/Echo")()
        await echo.write(b"before")
        first = await echo.read()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await opened.unary_unary(path)(b"x")
        await echo.write(b"after")
        second = await echo.read()
        echo.cancel()

    assert (first, second) == (b"before", b"after")
    assert (raised.value.code(), raised.value.details()) == (code, words)
    assert len(service.errors) == (path != "/test/Nothing")


async def test_health_is_checked_and_watched(service: Service) -> None:
    server = await service.start()

    async with channel(server) as opened:
        check = opened.unary_unary("/grpc.health.v1.Health/Check")
        watch = opened.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        seen = [await check(b""), await watch.read()]
        service.serves = False
        seen += [await check(b""), await watch.read()]
        service.serves = True
        service.health.refresh()
        seen += [await watch.read()]
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await check(b"\x0a\x04what")
        with pytest.raises(grpc.aio.AioRpcError) as garbage:
            await check(b"\xff\xff")
        other = opened.unary_stream("/grpc.health.v1.Health/Watch")(b"\x0a\x04what")
        seen += [await other.read()]
        other.cancel()
        watch.cancel()

    assert seen == [b"\x08\1", b"\x08\1", b"\x08\2", b"\x08\2", b"\x08\1", b"\x08\3"]
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
    assert garbage.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_who_goes_away_is_told_to_the_handler(
    service: Service, eventually: Eventually
) -> None:
    server = await service.start()

    async with channel(server) as opened:
        cancelled = opened.stream_stream("/test/Hold")()
        await cancelled.write(b"x")
        await eventually(lambda: len(service.streams) == 1)
        cancelled.cancel()
        await eventually(lambda: service.resets == [CANCEL])
    stream_of = socket.create_connection(("127.0.0.1", server.port))
    stream_of.sendall(PREFACE + frame(4) + frame(1, 4, 1, head_of("/test/Hold")))
    await eventually(lambda: len(service.streams) == 2)
    stream_of.close()

    await eventually(lambda: service.resets == [CANCEL, CONNECT_ERROR])
    assert server.statistics().open_streams == 0


async def test_a_slow_reader_holds_up_only_itself(service: Service, eventually: Eventually) -> None:
    server = await service.start(GrpcLimits(max_message_bytes=1 << 26))
    # A reader that never reads: it grants its stream 65,535 bytes and nothing more.
    slow = socket.create_connection(("127.0.0.1", server.port))
    slow.sendall(PREFACE + frame(4) + frame(1, 4, 1, head_of("/test/Echo")))
    slow.sendall(frame(8, 0, 0, b"\0\x0f\0\0"))
    block, lively = b"\0\0\0\x3f\xfb" + b"s" * 16_379, head_of("/test/Echo")
    slow.setblocking(False)
    loop = asyncio.get_running_loop()

    async def push() -> None:
        for _ in range(15):  # one window: then the stream is paused
            await loop.sock_sendall(slow, frame(0, 0, 1, block))

    await asyncio.wait_for(push(), 10)
    await loop.sock_sendall(slow, frame(1, 4, 3, lively) + frame(0, 1, 3, b"\0\0\0\0\5hello"))
    received = b""
    while b"hello" not in received:
        received += await asyncio.wait_for(loop.sock_recv(slow, 1 << 16), 10)
    slow.close()

    await eventually(lambda: server.statistics().open_streams == 0)
    assert received.count(b"s" * 1000) > 10


async def test_a_drain_lets_calls_end_and_takes_no_more(
    service: Service, eventually: Eventually
) -> None:
    server = await service.start()

    async with channel(server) as opened:
        echo = opened.stream_stream("/test/Echo")()
        await echo.write(b"one")
        first = await echo.read()
        draining = asyncio.create_task(server.drain(10))
        await eventually(lambda: server.draining)
        await echo.write(b"two")
        second = await echo.read()
        await echo.done_writing()
        end = await echo.read()
        await asyncio.wait_for(draining, 5)
        with pytest.raises(grpc.aio.AioRpcError):
            await opened.unary_unary("/test/Echo")(b"x", timeout=2)

    assert (first, second, end) == (b"one", b"two", grpc.aio.EOF)  # type: ignore[attr-defined]
    assert server.statistics().open_connections == 0


async def test_a_drain_cuts_what_outlives_it(service: Service, eventually: Eventually) -> None:
    server = await service.start()

    async with channel(server) as opened:
        held = opened.stream_stream("/test/Hold")()
        await held.write(b"x")
        idle = socket.create_connection(("127.0.0.1", server.port))
        await eventually(lambda: len(service.streams) == 1)
        await asyncio.wait_for(server.drain(0.2), 5)

    idle.close()
    assert service.resets == [CONNECT_ERROR]


async def test_connections_above_the_limit_are_closed(
    service: Service, eventually: Eventually
) -> None:
    server = await service.start(GrpcLimits(max_connections=1))
    first = socket.create_connection(("127.0.0.1", server.port))
    await eventually(lambda: server.statistics().open_connections == 1)

    second = socket.create_connection(("127.0.0.1", server.port))
    await eventually(lambda: server.statistics().refused_connections == 1)

    first.close()
    second.close()
    await eventually(lambda: server.statistics().open_connections == 0)


async def test_who_says_nothing_is_closed(service: Service, eventually: Eventually) -> None:
    server = await service.start(GrpcLimits(preface_timeout_s=0.2))
    silent = socket.create_connection(("127.0.0.1", server.port))

    await eventually(lambda: server.statistics().accepted_connections == 1)
    await eventually(lambda: server.statistics().open_connections == 0)
    silent.close()


async def test_a_client_of_http1_is_closed(service: Service) -> None:
    server = await service.start()

    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    data = await asyncio.wait_for(reader.read(), 5)
    writer.close()

    assert data[3] == 4  # SETTINGS, as RFC 9113 has it
    assert server.statistics().protocol_errors == 1


async def test_a_reset_connection_ends_its_streams(
    service: Service, eventually: Eventually
) -> None:
    server = await service.start()
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.sendall(PREFACE + frame(4) + frame(1, 4, 1, head_of("/test/Hold")) + b"\0\0")
    await eventually(lambda: len(service.streams) == 1)

    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()

    await eventually(lambda: server.statistics().open_connections == 0)
    assert service.resets == [CONNECT_ERROR]


async def test_an_address_in_use_is_said(service: Service) -> None:
    server = await service.start()

    with pytest.raises(TransportError, match=str(server.port)):
        await GrpcServer({}).start("127.0.0.1", server.port)


def make_certificate(cert: Path, key: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:prime256v1", "-keyout", key, "-out", cert, "-days", "2", "-nodes",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip


async def test_tls_speaks_http2_and_reads_its_files_anew(service: Service, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(TLS / "cert.pem", cert)
    shutil.copy(TLS / "key.pem", key)
    tls = ReloadingTls((cert, key), partial(grpc_context, cert, key))
    server = await service.start(ssl=tls.context)

    async def check(trusted: bytes) -> bytes:
        credentials = grpc.ssl_channel_credentials(trusted)
        options = [("grpc.ssl_target_name_override", "localhost"),
                   ("grpc.use_local_subchannel_pool", 1)]  # fmt: skip
        target = f"127.0.0.1:{server.port}"
        secure: Any = grpc.aio.secure_channel(target, credentials, options)
        async with secure as opened:
            answer = await opened.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)
            assert isinstance(answer, bytes)
            return answer

    first = await check(cert.read_bytes())
    cert.write_text("half a certif")
    kept = await check((TLS / "cert.pem").read_bytes())
    make_certificate(cert, key)
    renewed = await check(cert.read_bytes())

    assert (first, kept, renewed) == (b"\x08\1",) * 3
    assert tls.reloads == 1


async def test_tls_without_a_client_certificate_is_refused_where_one_is_asked_for(
    service: Service,
) -> None:
    cert, key = TLS / "cert.pem", TLS / "key.pem"
    tls = ReloadingTls((cert, key), partial(grpc_context, cert, key, cert))
    server = await service.start(ssl=tls.context)
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    context.set_alpn_protocols(["h2"])

    reader, writer = await asyncio.open_connection(
        "127.0.0.1", server.port, ssl=context, server_hostname="localhost"
    )
    data = b""
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        data = await asyncio.wait_for(reader.read(100), 5)
    writer.close()

    assert data == b""  # not even SETTINGS
    assert server.statistics().open_connections == 0


def test_files_that_are_no_certificate_are_named(tmp_path: Path) -> None:
    wrong, missing = tmp_path / "wrong.pem", tmp_path / "missing.pem"
    wrong.write_text("no certificate")

    with pytest.raises(ConfigError, match=r"wrong\.pem"):
        ReloadingTls((wrong,), partial(grpc_context, wrong, None))
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        ReloadingTls((missing,), partial(grpc_context, missing, None))
