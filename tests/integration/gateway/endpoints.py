"""Engines of a gateway's tests: echo, streams that a seed decides, and failures on demand."""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable

from kvmesh.app.picker.envoy_options import Address

Headers = dict[str, str]

MODELS = b'{"object":"list","data":[{"id":"mock","object":"model","max_model_len":1000000}]}'


def stream_of(seed: int, chunks: int, size: int = 60) -> list[bytes]:
    """Return the events of the stream that `seed` asks for: each another, told by its number."""
    events = []
    for number in range(chunks):
        word = hashlib.sha256(f"{seed}:{number}".encode()).hexdigest()
        text = (word * (size // len(word) + 1))[:size]
        events.append(f'data: {{"n":{number},"text":"{text}"}}\n\n'.encode())
    return [*events, b"data: [DONE]\n\n"]


class Endpoint:
    """An HTTP/1.1 server. What it answers is in the request's headers:

    `x-chunks`, `x-seed`, `x-size`, `x-pause`: a stream (`stream_of`), with seconds between events;
    `x-status`: that status; `x-drop: yes`: the connection ends without an answer, at this server
    only if `x-at` names it; `x-trailers: yes`: a stream with a trailer. Else: the request's body;
    at /v1/models its model, `mock`.
    """

    def __init__(self) -> None:
        self.address = Address("127.0.0.1", 0)
        self.seen: list[Headers] = []
        self.on_request: Callable[[Headers, bytes], None] = lambda *_: None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> Address:
        self._server = await asyncio.start_server(
            self._serve, self.address.host, self.address.port, limit=1 << 20
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = Address(host, port)
        return self.address

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            while await self._answer(reader, writer):
                pass
        self._writers.discard(writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        headers[":path"] = lines[0].split(" ")[1]
        body = await read_body(reader, headers)
        self.seen.append(headers)
        self.on_request(headers, body)
        if headers.get("x-drop") == "yes" and headers.get("x-at") in {None, str(self.address)}:
            return False
        if headers[":path"] == "/v1/models":
            self._whole(headers, MODELS, writer)
        elif "x-chunks" in headers:
            await self._stream(headers, writer)
        else:
            self._whole(headers, body, writer)
        await writer.drain()
        return True

    def _whole(self, headers: Headers, body: bytes, writer: asyncio.StreamWriter) -> None:
        at = headers.get("x-at") in {None, str(self.address)}
        status = headers.get("x-status", "200") if at else "200"
        writer.write(
            f"HTTP/1.1 {status} Said\r\nx-served-by: {self.address}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        )
        writer.write(body)

    async def _stream(self, headers: Headers, writer: asyncio.StreamWriter) -> None:
        trailer = headers.get("x-trailers") == "yes"
        writer.write(
            f"HTTP/1.1 200 OK\r\nx-served-by: {self.address}\r\ncontent-type: text/event-stream\r\n"
            f"{'trailer: x-last' + chr(13) + chr(10) if trailer else ''}"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        asked = int(headers.get("x-seed", 0)), int(headers["x-chunks"])
        for event in stream_of(*asked, int(headers.get("x-size", 60))):
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            if "x-pause" in headers:
                await asyncio.sleep(float(headers["x-pause"]))
        writer.write(b"0\r\n" + (b"x-last: yes\r\n" if trailer else b"") + b"\r\n")


async def read_body(reader: asyncio.StreamReader, headers: Headers) -> bytes:
    """Return the body. Raises `EOFError` where the connection ends before it is whole."""
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while (await reader.readuntil(b"\r\n")).strip():
        pass
    return b"".join(parts)
