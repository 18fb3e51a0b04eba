"""A gateway that asks a picker, as Envoy does: HTTP/2, one stream a request, followed to its end.

It is cheap enough not to be what is measured, and reads no more of an answer than it must; what an
answer holds is checked once, before the clock starts.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from typing import Final, Literal, NamedTuple, cast

from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire

from benchmarks.proxy.chats import Chats
from benchmarks.proxy.workers import CHUNK

Follow = Literal["bodies", "heads"]
"""What the picker is shown of responses: their bodies too, or their headers alone."""

STREAMED: Final = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW: Final = 1 << 24
LARGEST: Final = (1 << 31) - 1
GRANT_AT: Final = 1 << 22
FRAME: Final = 16_384
PIECE: Final = 16_384
"""Bytes of a body in one message: what Envoy reads at a time."""
CHUNKS: Final = 8
END: Final = b"\x10\x01"
"""The end of a message that ends a streamed body: `end_of_stream`, its last field."""


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


def literal(name: bytes, value: bytes) -> bytes:
    return b"\0%c%b%c%b" % (len(name), name, len(value), value)


HEAD: Final = b"".join(
    (
        b"\x83\x86",  # POST, http
        literal(b":path", b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
        literal(b":authority", b"pickers"),
        literal(b"te", b"trailers"),
        literal(b"content-type", b"application/grpc"),
        literal(b"x-envoy-internal", b"true"),
        literal(b"x-forwarded-for", b"10.0.0.7"),
    )
)


class Script(NamedTuple):
    """What is said in one stream: `opening` until the pick, then the head and the chunks."""

    opening: bytes
    head: bytes
    chunks: tuple[bytes, ...]


def request_messages(body: bytes, follow: Follow) -> list[wire.ProcessingRequest]:
    """Return what Envoy says of a request, up to the end of its body."""
    first = wire.ProcessingRequest()
    pairs = {
        ":method": "POST", ":path": "/v1/chat/completions", ":authority": "gateway",
        ":scheme": "http", "content-type": "application/json", "user-agent": "bench/1",
        "authorization": "Bearer k", "content-length": str(len(body)),
        "x-request-id": f"{random.getrandbits(128):032x}",
    }  # fmt: skip
    for name, value in pairs.items():
        first.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    first.protocol_config.request_body_mode = STREAMED
    if follow == "bodies":
        first.protocol_config.response_body_mode = STREAMED
    messages = [first]
    for at in range(0, len(body), PIECE):
        piece = wire.HttpBody(body=body[at : at + PIECE], end_of_stream=at + PIECE >= len(body))
        messages.append(wire.ProcessingRequest(request_body=piece))
    return messages


def script(body: bytes, follow: Follow) -> Script:
    """Return all that is said of one request."""
    opening = b"".join(
        framed(message.SerializeToString()) for message in request_messages(body, follow)
    )
    head = wire.ProcessingRequest()
    for name, value in ((":status", "200"), ("content-type", "text/event-stream")):
        head.response_headers.headers.headers.add(key=name, raw_value=value.encode())
    parts = [(CHUNK, False)] * (CHUNKS - 1) + [(b"data: [DONE]\n\n", True)]
    bodies = [
        wire.ProcessingRequest(response_body=wire.HttpBody(body=data, end_of_stream=last))
        for data, last in parts
    ]
    chunks = tuple(framed(one.SerializeToString()) for one in bodies)
    return Script(opening, framed(head.SerializeToString()), chunks if follow == "bodies" else ())


class Asked:
    """One stream."""

    __slots__ = ("began_s", "held", "message", "picked", "said", "script", "stream", "window")

    def __init__(self, stream: int, said: Script, window: int) -> None:
        self.stream = stream
        self.script = said
        self.said = -1
        self.picked = False
        self.window = window
        self.held = b""
        self.message = bytearray()
        self.began_s = time.perf_counter()


class Link(asyncio.Protocol):
    """One connection, with some streams at a time."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._streams: dict[int, Asked] = {}
        self._next = 1
        self._window = 65_535
        self._initial = 65_535
        self._owed = 0
        self._data = bytearray()
        self._out: list[bytes] = []
        self._waiting: deque[Asked] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        settings = b"\0\4" + WINDOW.to_bytes(4, "big")
        grant = (LARGEST - 65_535).to_bytes(4, "big")
        self._transport.write(PREFACE + frame(4, 0, 0, settings) + frame(8, 0, 0, grant))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._streams:
            self._load.fail(f"the picker closed the connection: {exc}")

    def ask(self, said: Script) -> None:
        """Open a stream."""
        asked = self._streams[self._next] = Asked(self._next, said, self._initial)
        self._out.append(frame(1, 0x4, self._next, HEAD))
        self._next += 2
        self._send(asked, said.opening)

    def flush(self) -> None:
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def close(self) -> None:
        self._streams.clear()
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        held = self._data
        held += data
        at = 0
        while len(held) - at >= 9:
            size = int.from_bytes(held[at : at + 3], "big")
            if len(held) - at < 9 + size:
                break
            kind, flags = held[at + 3], held[at + 4]
            stream = int.from_bytes(held[at + 5 : at + 9], "big")
            self._take(kind, flags, stream, bytes(held[at + 9 : at + 9 + size]))
            at += 9 + size
        del held[:at]
        if self._owed >= GRANT_AT:
            self._out.append(frame(8, 0, 0, self._owed.to_bytes(4, "big")))
            self._owed = 0
        self.flush()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == 0:
            self._owed += len(payload)
            asked = self._streams.get(stream)
            if asked is not None:
                self._receive(asked, payload)
        elif kind == 1 and flags & 1:
            self._end(stream)
        elif kind == 3:
            if self._streams.pop(stream, None) is not None:
                self._load.fail(f"a stream was reset: {payload.hex()}")
        elif kind == 4 and not flags & 1:
            self._settle(payload)
        elif kind == 6 and not flags & 1:
            self._out.append(frame(6, 1, 0, payload))
        elif kind == 7:
            self._load.fail(f"the picker said goodbye: {payload[8:]!r}")
        elif kind == 8:
            self._grant(stream, int.from_bytes(payload, "big"))

    def _settle(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            if payload[at : at + 2] == b"\0\4":
                initial = int.from_bytes(payload[at + 2 : at + 6], "big")
                for asked in self._streams.values():
                    asked.window += initial - self._initial
                self._initial = initial
        self._out.append(frame(4, 1, 0))
        self._send_waiting()

    def _grant(self, stream: int, more: int) -> None:
        if stream == 0:
            self._window += more
        elif (asked := self._streams.get(stream)) is not None:
            asked.window += more
        self._send_waiting()

    def _send_waiting(self) -> None:
        for asked in list(self._waiting):
            self._waiting.remove(asked)
            held, asked.held = asked.held, b""
            self._send(asked, held)

    def _send(self, asked: Asked, data: bytes) -> None:
        if asked.held:
            asked.held += data
            return
        at = 0
        while at < len(data):
            size = min(len(data) - at, FRAME, self._window, asked.window)
            if size <= 0:
                asked.held = data[at:]
                self._waiting.append(asked)
                return
            self._out.append(frame(0, 0, asked.stream, data[at : at + size]))
            self._window -= size
            asked.window -= size
            at += size

    def _receive(self, asked: Asked, payload: bytes) -> None:
        held = asked.message
        held += payload
        while len(held) >= 5:
            end = 5 + int.from_bytes(held[1:5], "big")
            if len(held) < end:
                return
            last = held[end - 2 : end] == END
            del held[:end]
            if asked.picked:
                self._say_next(asked)
            elif last:
                asked.picked = True
                self._load.picked(asked)
                self._say_next(asked)

    def _say_next(self, asked: Asked) -> None:
        said = asked.script
        if asked.said < 0:
            self._send(asked, said.head)
        elif asked.said < len(said.chunks):
            self._send(asked, said.chunks[asked.said])
        elif not said.chunks and asked.said == 0:
            # Nothing of the response's body is shown: Envoy says no more.
            self._out.append(frame(0, 0x1, asked.stream))
        asked.said += 1

    def _end(self, stream: int) -> None:
        asked = self._streams.pop(stream, None)
        if asked is None:
            return
        if asked.script.chunks:
            self._out.append(frame(0, 0x1, stream))
        if not asked.picked or asked.said <= len(asked.script.chunks):
            self._load.fail(f"a stream ended before its time: {asked.picked} {asked.said}")
        self._load.done(self)


class Load:
    """A closed loop: `streams` requests at a time over `links` connections."""

    def __init__(self, port: int, scripts: list[Script], links: int, streams: int) -> None:
        self._port = port
        self._scripts = scripts
        self._links = links
        self._each = max(1, streams // links)
        self._turn = 0
        self._until_s = 0.0
        self._open = 0
        self._failure = ""
        self._over: asyncio.Future[None]
        self.picks = 0
        self.seconds: list[float] = []

    async def run(self, seconds: float) -> None:
        """Ask for `seconds`. Raises `RuntimeError` when the picker does not keep to the rules."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        links: list[Link] = []
        for _ in range(self._links):
            _, link = await loop.create_connection(lambda: Link(self), "127.0.0.1", self._port)
            links.append(link)
        await asyncio.sleep(0.05)
        self._until_s = time.perf_counter() + seconds
        for link in links:
            for _ in range(self._each):
                self._ask(link)
            link.flush()
        try:
            await asyncio.wait_for(self._over, seconds + 30)
        finally:
            for link in links:
                link.close()
        if self._failure:
            raise RuntimeError(self._failure)

    def picked(self, asked: Asked) -> None:
        self.picks += 1
        self.seconds.append(time.perf_counter() - asked.began_s)

    def done(self, link: Link) -> None:
        self._open -= 1
        if time.perf_counter() < self._until_s and not self._failure:
            self._ask(link)
        elif self._open == 0:
            self._finish()

    def fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._finish()

    def _ask(self, link: Link) -> None:
        self._open += 1
        self._turn += 1
        link.ask(self._scripts[self._turn % len(self._scripts)])

    def _finish(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


def make_scripts(size: int, follow: Follow, most_bytes: int = 60_000_000) -> list[Script]:
    """Return scripts of chats of about `size` bytes, each another."""
    chats = Chats(size)
    count = max(8, min(4_000, most_bytes // (size + 2_000)))
    return [script(chats.body(number), follow) for number in range(count)]


def check_picker(port: int, endpoints: set[str]) -> None:
    """Ask once by gRPC's own library. Raises `RuntimeError` for an answer that is no pick, or a
    body that is another than it was.
    """
    import grpc  # noqa: PLC0415  not needed by those who only ask
    from envoy.service.ext_proc.v3 import external_processor_pb2_grpc  # noqa: PLC0415

    body = Chats(100_000).body(7)
    with contextlib.closing(grpc.insecure_channel(f"127.0.0.1:{port}")) as channel:
        stub = external_processor_pb2_grpc.ExternalProcessorStub(channel)
        came, picked = b"", ""
        for answer in stub.Process(iter(request_messages(body, "bodies"))):
            if answer.HasField("request_headers"):
                for option in answer.request_headers.response.header_mutation.set_headers:
                    if option.header.key == "x-gateway-destination-endpoint":
                        picked = option.header.raw_value.decode()
            streamed = answer.request_body.response.body_mutation.streamed_response
            came += streamed.body
            if streamed.end_of_stream:
                break
    if came != body or picked.partition(",")[0] not in endpoints:
        raise RuntimeError(f"port {port}: picked {picked!r}, {len(came)} of {len(body)} bytes back")
