"""A collector of OTLP over HTTP that decodes what it is sent, and can be sick in many ways."""

import asyncio
import contextlib
import gzip
import ssl
import zlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="opentelemetry-proto not installed",
)

TAKEN = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
BUSY = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"
REFUSED = b"HTTP/1.1 400 Bad\r\ncontent-length: 3\r\n\r\nno!"
GARBAGE = b"\x00\xffnot HTTP at all\r\n\r\n"
UNREADABLE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\xff\xff\xff\xff"
SILENT = b""


def partly(rejected: int, why: str) -> bytes:
    """Return the answer of a collector that took all but so many spans."""
    reported = trace_service.ExportTraceServiceResponse()
    reported.partial_success.rejected_spans = rejected
    reported.partial_success.error_message = why
    body = reported.SerializeToString()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def redirect(url: str) -> bytes:
    """Return an answer that sends its reader elsewhere."""
    return f"HTTP/1.1 307 Elsewhere\r\nlocation: {url}\r\ncontent-length: 0\r\n\r\n".encode()


class Collector:
    """`answers` are given in turn, then `TAKEN` for ever; `SILENT` never ends. The spans of posts
    that were answered `TAKEN` are in `spans`; `posts` counts all, `heads` are their heads.
    """

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[bytes] = []
        self.usual = TAKEN
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.heads: list[str] = []
        self._came = asyncio.Condition()

    @property
    def posts(self) -> int:
        """Return how many batches came."""
        return len(self.heads)

    async def until(self, enough: Callable[["Collector"], bool]) -> None:
        """Wait until enough has come."""
        async with asyncio.timeout(20), self._came:
            await self._came.wait_for(lambda: enough(self))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with contextlib.closing(writer), contextlib.suppress(EOFError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                data = await reader.readexactly(length)
                answer = self.answers.pop(0) if self.answers else self.usual
                self._take(head, data, taken=answer is TAKEN)
                async with self._came:
                    self._came.notify_all()
                if answer is SILENT:
                    await asyncio.sleep(3600)
                writer.write(answer)
                if answer is GARBAGE:
                    break

    def _take(self, head: str, data: bytes, *, taken: bool) -> None:
        self.heads.append(head)
        if "content-encoding: gzip" in head.lower():
            data = gzip.decompress(data)
        elif "content-encoding: deflate" in head.lower():
            data = zlib.decompress(data)
        message = trace_service.ExportTraceServiceRequest.FromString(data)
        for resource in message.resource_spans:
            reported = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.resources.append(reported)
            for scope in resource.scope_spans:
                self.spans += scope.spans if taken else ()


@contextlib.asynccontextmanager
async def collecting(tls: ssl.SSLContext | None = None) -> AsyncGenerator[Collector]:
    """Serve a collector on a port of its own."""
    made = Collector()
    tasks: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(made.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(begin, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    made.url = f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}"
    if tls is None:
        made.url = made.url.replace("localhost", "127.0.0.1")
    try:
        yield made
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def attributes(span: Any) -> dict[str, Any]:
    """Return a span's attributes by name."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
