"""An API server that never comes to an end: lists and watches at ten times their bounds."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count, islice, repeat
from pathlib import Path

import pytest

from kvmesh.app.picker import kube_api
from kvmesh.app.picker.kube_api import (
    MOST_LINE_BYTES,
    MOST_LIST_BYTES,
    MOST_OBJECTS,
    MOST_PAGES,
    PAGE,
    KubeApi,
    Query,
    connect,
)
from kvmesh.app.picker.kube_mirror import Mirror
from kvmesh.app.picker.kube_objects import PODS, Pod, read
from kvmesh.errors import CodecError, TransportError
from tests.integration.kube import api_server

pytestmark = pytest.mark.integration

QUERY = Query(PODS, "llm")
Pieces = Callable[[int], Iterator[bytes]]


class Server:
    """Answers each request with pieces of a body; `asked` counts the requests, `sent` the bytes."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.asked = self.sent = 0
        self.connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections[asyncio.ensure_future(self.serve(reader, writer))] = writer

    async def cut(self) -> None:
        for writer in self.connections.values():
            writer.transport.abort()
        await asyncio.wait(self.connections)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                self.asked += 1
                for piece in self.pieces(self.asked):
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    self.sent += len(piece)
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
        writer.close()


@asynccontextmanager
async def answering(
    pieces: Pieces, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Server, KubeApi]]:
    made = Server(pieces)
    server = await asyncio.start_server(made.connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(directory, port)))
    asked = connect()
    async with server:
        yield made, asked
        await asked.close()
        await made.cut()


def page(items: int, *, more: bool = True) -> bytes:
    metadata = {"resourceVersion": "7"} | ({"continue": "x"} if more else {})
    return json.dumps({"metadata": metadata, "items": [{}] * items}).encode()


async def test_a_list_whose_pages_are_empty_and_never_the_last_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(
        lambda asked: iter([page(0, more=asked < 10 * MOST_PAGES)]), tmp_path, monkeypatch
    ) as (server, api):
        with pytest.raises(TransportError, match="more than 1,024 pages"):
            await api.list(QUERY)

    assert server.asked == MOST_PAGES


async def test_a_list_of_ten_times_the_objects_is_refused_where_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = 10 * MOST_OBJECTS // PAGE
    async with answering(
        lambda asked: iter([page(PAGE, more=asked < pages)]), tmp_path, monkeypatch
    ) as (server, api):
        with pytest.raises(TransportError, match="more than 65,536 objects"):
            await api.list(QUERY)

    assert server.asked == MOST_OBJECTS // PAGE + 1


async def test_pages_of_ten_times_the_bytes_are_refused_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is below the bound: a list keeps the bytes of all."""
    most = 1 << 20
    monkeypatch.setattr(kube_api, "MOST_LIST_BYTES", most)
    blank = b" " * (most // 10)

    def pieces(asked: int) -> Iterator[bytes]:
        return iter([blank, page(1, more=asked < 100)])

    async with answering(pieces, tmp_path, monkeypatch) as (server, api):
        with pytest.raises(TransportError, match="an answer of more than 1,048,576 bytes"):
            await api.list(QUERY)

    assert server.asked == 10
    assert MOST_LIST_BYTES == 256 << 20


@pytest.mark.parametrize("ends", [b"", b"\n"])
async def test_an_event_of_ten_times_the_bound_is_refused(
    ends: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = b"x" * (1 << 20)
    number = 10 * MOST_LINE_BYTES // len(piece)

    def pieces(_asked: int) -> Iterator[bytes]:
        return iter([*repeat(piece, number), ends])

    async with answering(pieces, tmp_path, monkeypatch) as (server, api):
        with pytest.raises(CodecError, match="an event of more than 4,194,304 bytes"):
            _ = [event async for event in api.watch(QUERY, "1", 60)]

    assert server.sent < 3 * MOST_LINE_BYTES


async def test_an_event_that_is_whole_and_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_api, "MOST_LINE_BYTES", 1 << 10)
    async with answering(lambda _: iter([b"x" * (10 << 10) + b"\n"]), tmp_path, monkeypatch) as (
        _,
        api,
    ):
        with pytest.raises(CodecError, match="an event of more than 1,024 bytes"):
            _ = [event async for event in api.watch(QUERY, "1", 60)]


def event_of(number: int) -> bytes:
    one = {"metadata": {"name": f"p-{number}", "resourceVersion": str(number)}}
    return json.dumps({"type": "ADDED", "object": one}).encode() + b"\n"


async def test_a_watch_adds_no_more_than_a_list_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends soon: an event costs no more among many objects than among few."""
    many = (b"".join(map(event_of, islice(count(at), PAGE))) for at in count(0, PAGE))

    def pieces(asked: int) -> Iterator[bytes]:
        return many if asked > 1 else iter([page(0, more=False)])

    async with answering(pieces, tmp_path, monkeypatch) as (_, api):
        ended = asyncio.Event()

        def changed() -> None:
            if mirror.trouble:
                ended.set()

        mirror = Mirror(api, QUERY, partial(read, Pod), changed, 600.0)
        running = asyncio.ensure_future(mirror.run())
        async with asyncio.timeout(120.0):
            await ended.wait()
        running.cancel()
        await asyncio.wait([running])

    assert mirror.trouble == "watch of pods of namespace llm: more than 65,536 objects"
    assert len(mirror.objects) == MOST_OBJECTS
