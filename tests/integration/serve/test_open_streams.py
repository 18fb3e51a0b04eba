"""What a router keeps for each open stream: objects are counted, so that it cannot creep up."""

import asyncio
import gc
import socket
import sys
import threading
import time
from collections import Counter

import pytest

from kvmesh.settings.requests import DecisionSettings
from tests.integration.support.live_router import router

pytestmark = pytest.mark.integration

STREAMS = 40
WAIT_S = 30.0
BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"%b"}]}' % (b"word " * 90)
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n" % len(BODY)
)
A_FORMULA = b"x-kvmesh-cost: overlap-usage-waiting\r\n"
"""By which no request is decided in the compiled core."""
TARGETS = b"x-kvmesh-slo-tpot-ms: 1000000000\r\n"
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
BEGUN = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK)
)
MODELS = b'{"object":"list","data":[{"id":"m"}]}'
ANSWER = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
    len(MODELS),
    MODELS,
)
KEPT = {
    "AskedUsage": 1,
    "Connection": 1,
    "EventStream": 1,
    "Exchange": 1,
    "Forward": 1,
    "ForwardClock": 1,
    "HttpResponseParser": 1,
    "PassedAnswer": 1,
    "Request": 1,
    "RequestReader": 1,
    "ResponseReader": 1,
    "Resumption": 1,
    "Scope": 1,
    "UpstreamCall": 1,
    "UpstreamConnection": 1,
}
"""Neither a request's hashes nor a parser of requests; its body for when it goes on elsewhere, and
a clock for --request-timeout-s.
"""
READ = {"RoutedRequest": 1}
"""And a `Dispatched`, which the collector does not see where nothing in it leads on."""
REQUEST = {"Dispatched": 1, "RoutedRequest": 1}
INPUTS = {"Inputs": 1}
MAX_BLOCKS = 200
"""Of memory as Python allocates them, both sockets' and asyncio's included; 111 to 142 seen."""


class Engine:
    """Begins a stream on each connection and leaves it open; has no object per stream but it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=STREAMS)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Close everything."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
        self._listener.close()
        for sock in self._open:
            sock.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if sock.recv(65536).startswith(b"POST"):
                sock.sendall(BEGUN)
                self._open.append(sock)
            else:
                sock.sendall(ANSWER)
                sock.close()


def opened(url: str, count: int, headers: bytes) -> list[socket.socket]:
    """Return so many connections with a stream each that has begun."""
    host, _, port = url.removeprefix("http://").partition(":")
    streams = [socket.create_connection((host, int(port)), WAIT_S) for _ in range(count)]
    for sock in streams:
        sock.sendall(b"%b%b\r\n%b" % (HEAD, headers, BODY))
        received = b""
        while CHUNK not in received:
            received += sock.recv(65536)
    return streams


def living() -> Counter[str]:
    """Return how many objects of our classes and of the parser's the collector knows."""
    gc.collect()
    return Counter(
        type(item).__name__
        for item in gc.get_objects()
        if str(type(item).__module__).startswith(("kvmesh.", "httptools."))
    )


def per_stream(before: Counter[str]) -> dict[str, int]:
    """Return how many objects came since `before`, a stream; to a half, for a heartbeat may."""
    grown = {name: round(count / STREAMS) for name, count in (living() - before).items()}
    return {name: count for name, count in grown.items() if count}


@pytest.mark.parametrize(
    ("headers", "more"),
    [
        (A_FORMULA, READ),
        (b"", READ),
        (TARGETS, REQUEST | INPUTS),
    ],
    ids=["dispatch", "compiled", "targets"],
)
async def test_an_open_stream_holds_what_it_needs_and_nothing_else(
    headers: bytes, more: dict[str, int]
) -> None:
    engine = Engine()
    streams: list[socket.socket] = []
    # The first streams fill the log, so that later ones replace as many records in it.
    log = DecisionSettings(decision_log=STREAMS)
    deadline = time.monotonic() + WAIT_S
    try:
        async with router([engine.url], decision=log) as url:
            streams += await asyncio.to_thread(opened, url, STREAMS, headers)
            await asyncio.sleep(0)
            before, blocks = living(), sys.getallocatedblocks()
            streams += await asyncio.to_thread(opened, url, STREAMS, headers)
            # The log looks at a prompt's hashes once more, a little later.
            while (kept := per_stream(before)) != KEPT | more:
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.1)
            blocks = sys.getallocatedblocks() - blocks
            for sock in streams:
                sock.close()
    finally:
        for sock in streams:
            sock.close()
        await asyncio.to_thread(engine.close)

    assert kept == KEPT | more
    assert blocks / STREAMS < MAX_BLOCKS
