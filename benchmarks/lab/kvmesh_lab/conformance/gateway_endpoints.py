"""Model servers of the suite: they answer as a request's header says, and say what reached them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import httptools
import msgspec

from kvmesh.errors import ConfigError
from kvmesh_lab.conformance.bodies import noise, sse_body
from kvmesh_lab.conformance.wire import DESTINATION

ASK: Final = "x-conformance-answer"
"""`echo`, `sse EVENTS GAP_S`, `bulk BYTES`, or `status NUMBER`: what a request is answered. `once
NAME`: 503 whoever gets the first request of that name, then as `echo`.
"""

TRAILER: Final = "x-conformance-trailer"
"""A request with this trailer gets it back as a trailer of the answer."""

CHUNK: Final = 16_384
METRICS: Final = (
    b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
    b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 0\n"
    b"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 0\n"
)


class Echo(msgspec.Struct, frozen=True):
    """What reached a model server: who it is, the pick it was told, the body."""

    endpoint: str
    reported: str
    method: str
    path: str
    size: int
    digest: str


class Arrived:
    """A request, as its parser finds it."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.path = ""
        self.body = bytearray()
        self.complete = False
        self.wants_continue = False

    def on_url(self, url: bytes) -> None:
        """Take a part of the path."""
        self.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """See whether the client waits for leave to send its body."""
        self.wants_continue = "100-continue" in self.headers.get("expect", "")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self.body += body

    def on_message_complete(self) -> None:
        """Be done."""
        self.complete = True


class ModelServer:
    """One endpoint. It counts what it saw: answers that ended, and clients that went before."""

    def __init__(self, address: str, model: str, failed: set[str]) -> None:
        self.address = address
        self.model = model
        self._failed = failed  # of all model servers of the suite
        self.served = 0
        self.left = 0
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.Task[object]] = {}

    async def start(self) -> None:
        """Listen. Port 0 takes a free one. Raises `ConfigError` where it cannot."""
        host, _, port = self.address.rpartition(":")
        try:
            self._server = await asyncio.start_server(self._serve, host.strip("[]"), int(port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--endpoints {self.address}: cannot listen there ({error}); --no-serve where "
                "model servers of your own answer"
            ) from error
        bound = self._server.sockets[0].getsockname()[1]
        self.address = f"{host}:{bound}"

    async def stop(self) -> None:
        """Close the port and its connections."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await self._server.wait_closed()
            await asyncio.gather(*self._open.values())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = serving_task()
        try:
            while await self._answer_one(reader, writer):
                pass
        except (ConnectionError, httptools.HttpParserError):
            self.left += 1
        finally:
            self._open.pop(writer)
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        arrived = Arrived()
        parser = httptools.HttpRequestParser(arrived)
        while not arrived.complete:
            data = await reader.read(CHUNK)
            if not data:
                return False
            parser.feed_data(data)
            if arrived.wants_continue:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                arrived.wants_continue = False
        method = parser.get_method().decode()
        status, kind, body = self._reply(arrived, method)
        head = f"HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\n"
        head += "retry-after: 7\r\n" if status >= 400 else ""  # noqa: PLR2004  an error
        writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        async for piece in body:
            if writer.transport.is_closing():  # uvloop's raises RuntimeError where one writes then
                raise ConnectionResetError
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        trailer = arrived.headers.get(TRAILER)
        behind = f"{TRAILER}: {trailer}\r\n" if trailer else ""
        writer.write(f"0\r\n{behind}\r\n".encode())
        await writer.drain()
        self.served += 1
        return True

    def _reply(self, arrived: Arrived, method: str) -> tuple[int, str, AsyncIterator[bytes]]:
        words = arrived.headers.get(ASK, "").split()
        if words[:1] == ["once"] and words[1] not in self._failed:
            self._failed.add(words[1])
            words = ["status", "503"]
        answers: dict[str, Callable[[Sequence[str]], AsyncIterator[bytes]]] = {
            "sse": lambda said: in_time(sse_body(int(said[0]), seed=int(said[0])), float(said[1])),
            "bulk": lambda said: in_time(bulk(int(said[0]))),
            "status": lambda _: in_time([b'{"error":{"message":"of the model server"}}']),
        }
        if words and words[0] in answers:
            kind = "text/event-stream" if words[0] == "sse" else "application/json"
            status = int(words[1]) if words[0] == "status" else 200
            return status, kind, answers[words[0]](words[1:])
        if not words and method == "GET":
            return 200, "application/json", in_time([self._page(arrived.path)])
        echo = Echo(
            endpoint=self.address,
            reported=arrived.headers.get(DESTINATION, ""),
            method=method,
            path=arrived.path,
            size=len(arrived.body),
            digest=hashlib.sha256(arrived.body).hexdigest(),
        )
        return 200, "application/json", in_time([msgspec.json.encode(echo)])

    def _page(self, path: str) -> bytes:
        """Return what pickers ask model servers for by themselves."""
        if path.startswith("/metrics"):
            return METRICS
        card = {"id": self.model, "object": "model", "owned_by": "conformance"}
        return msgspec.json.encode({"object": "list", "data": [card]})


def serving_task() -> asyncio.Task[object]:
    """Return the task that serves this connection: it ends by itself once that is closed."""
    task = asyncio.current_task()
    assert task is not None
    return task


async def in_time(pieces: Sequence[bytes], gap_s: float = 0.0) -> AsyncIterator[bytes]:
    """Yield the pieces with `gap_s` before each."""
    for piece in pieces:
        await asyncio.sleep(gap_s)
        yield piece


def bulk(size: int) -> list[bytes]:
    """Return the pieces of an answer of `size` bytes."""
    body = noise(size, seed=size)
    return [body[at : at + CHUNK] for at in range(0, size, CHUNK)]
