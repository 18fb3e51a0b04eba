"""Pretend engines for proxy benchmarks: cheap enough not to be what is measured.

`python -m benchmarks.proxy.workers N` prints N ports, then serves until its standard input ends.
A chat request with `"stream":true` gets a chunk each `"interval_ms"` until the client leaves;
any other request gets one small JSON answer, `GET /left` the times (CLOCK_MONOTONIC, ns, the same
clock in every process) at which streams were left.
"""

import asyncio
import re
import sys
import time
from collections import deque
from typing import cast

import uvloop

JSON = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"hello there"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}}'
)
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}'
CHUNK = (
    b'data: {"id":"chatcmpl-f2f1d38cbe2b4a4c9b3dd7b4","object":"chat.completion.chunk",'
    b'"created":1732189026,"model":"m","choices":[{"index":0,"delta":{"content":" hello"},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)
FRAMED = b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK)
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
TICK_S = 0.001
INTERVAL = re.compile(rb'"interval_ms":\s*(\d+)')
LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)


def answer(body: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )


ANSWERS = {b"GET": answer(MODELS), b"POS": answer(JSON)}


class Ticker:
    """Writes a chunk to each stream every so many ticks, the streams spread over the ticks."""

    def __init__(self) -> None:
        self._slots: dict[int, list[set[asyncio.Transport]]] = {}
        self._ticks = 0
        self._next = 0
        self.left_ns: deque[int] = deque(maxlen=1024)

    def add(self, transport: asyncio.Transport, interval_ms: int) -> None:
        slots = self._slots.setdefault(interval_ms, [set() for _ in range(interval_ms)])
        self._next += 7
        slots[self._next % interval_ms].add(transport)

    def discard(self, transport: asyncio.Transport) -> None:
        for slots in self._slots.values():
            for slot in slots:
                if transport in slot:
                    slot.discard(transport)
                    self.left_ns.append(time.monotonic_ns())

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += TICK_S
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._ticks += 1
            for interval, slots in self._slots.items():
                for transport in slots[self._ticks % interval]:
                    transport.write(FRAMED)


class Engine(asyncio.Protocol):
    """One connection."""

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data = data = self._data + data if self._data else data
        head = data.find(b"\r\n\r\n") + 4
        if head < 4:
            return
        length = LENGTH.search(data, 0, head)
        if len(data) < head + (int(length.group(1)) if length else 0):
            return
        self._data = b""
        if b'"stream":true' in data or b'"stream": true' in data:
            interval = INTERVAL.search(data)
            self._transport.write(SSE_HEAD + FRAMED)
            self._ticker.add(self._transport, int(interval.group(1)) if interval else 20)
        elif data.startswith(b"GET /left"):
            self._transport.write(answer(repr(list(self._ticker.left_ns)).encode()))
        elif data.startswith(b"GET /metrics"):
            self._transport.write(answer(b"# none\n"))
        else:
            self._transport.write(ANSWERS.get(data[:3], ANSWERS[b"GET"]))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._ticker.discard(self._transport)


async def main() -> None:
    loop = asyncio.get_running_loop()
    ticker = Ticker()
    servers = [
        await loop.create_server(lambda: Engine(ticker), "127.0.0.1", 0, backlog=4096)
        for _ in range(int(sys.argv[1]))
    ]
    ports = [str(server.sockets[0].getsockname()[1]) for server in servers]
    print(*ports, flush=True)
    ticking = asyncio.create_task(ticker.run())
    await loop.run_in_executor(None, sys.stdin.read)
    ticking.cancel()


if __name__ == "__main__":
    uvloop.run(main())
