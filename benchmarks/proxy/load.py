"""Clients for proxy benchmarks: closed loops, an open loop, and open streams."""

import asyncio
import gc
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Final, NamedTuple, cast

from benchmarks.proxy.chats import CHATS, Chats

WRK: Final = shutil.which("wrk")
PATH: Final = "/v1/chat/completions"
HOT_PREFIXES: Final = 64
LENGTH: Final = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
DEADLINE_S: Final = 30.0
OPEN_CONNECTIONS: Final = 256


def answer_size(data: bytes) -> int:
    """Return the bytes of the answer that begins with `data`, which has all of its head."""
    head = data.find(b"\r\n\r\n") + 4
    length = LENGTH.search(data, 0, head)
    return (int(length.group(1)) if length else 0) + head


class Served(NamedTuple):
    """What a closed loop got done; latencies in us."""

    requests: int
    p50_us: float
    p99_us: float


def chat_body(prefix: int, size: int, *, interval_ms: int = 0) -> bytes:
    """Return a chat body of about `size` bytes; equal numbers share all but their last words."""
    text = f"You are assistant {prefix}. " + "Answer briefly and kindly. " * (size // 27)
    stream = f',"stream":true,"interval_ms":{interval_ms}' if interval_ms else ""
    return (
        f'{{"model":"m","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":16{stream}}}'
    ).encode()


def request_bytes(body: bytes, number: int = 0) -> bytes:
    """Return the request of that number as a client library sends it: no two heads are equal."""
    return (
        b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json\r\n"
        b"content-type: application/json\r\nuser-agent: bench/1\r\nauthorization: Bearer k\r\n"
        b"x-foo: bar-%d\r\ncontent-length: %d\r\n\r\n%b" % (PATH.encode(), number, len(body), body)
    )


def drive(port: int, size: int, connections: int, seconds: float, first: int = 0) -> Served:
    """Keep `connections` requests of `size` bytes running for `seconds`; wrk if there is one.

    They are chats from number `first` on, one after the other.
    """
    if WRK:
        return _drive_wrk(port, Chats(size), connections, seconds, first % CHATS)
    return asyncio.run(_drive_python(port, _turns(Chats(size), first), connections, seconds))


async def drive_made(
    port: int, requests: Sequence[bytes], connections: int, seconds: float
) -> Served:
    """Keep `connections` of these requests running for `seconds`; after the last the first comes
    again.
    """
    return await _drive_python(port, cycle(requests), connections, seconds)


def _drive_wrk(port: int, chats: Chats, connections: int, seconds: float, first: int) -> Served:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "chats.lua"
        script.write_text(chats.script(PATH, Path(folder), first))
        command = [str(WRK), "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}"]
        output = subprocess.run(
            [*command, "-s", script, f"http://127.0.0.1:{port}"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+)", output)
    if found is None or int(found[2]):
        raise RuntimeError(f"wrk failed: {output}")
    return Served(int(found[1]), float(found[3]), float(found[4]))


def _turns(chats: Chats, first: int) -> Iterator[bytes]:
    """Yield requests one after the other, for all connections."""
    return (request_bytes(chats.body(number), number) for number in count(first))


class _Loop(asyncio.Protocol):
    """One connection of the Python client: the next request goes when the answer is whole."""

    def __init__(self, requests: Iterator[bytes], latencies_ns: list[int]) -> None:
        self._requests = requests
        self._latencies_ns = latencies_ns
        self._left = -1
        self._sent_ns = 0
        self.running = True
        self.refused = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        request = next(self._requests)
        self._sent_ns = time.perf_counter_ns()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            if not data.startswith(b"HTTP/1.1 200"):
                self.refused = data[:200]
                return
            self._left = answer_size(data)
        self._left -= len(data)
        if self._left <= 0:
            self._left = -1
            self._latencies_ns.append(time.perf_counter_ns() - self._sent_ns)
            if self.running:
                self._send()


async def _drive_python(
    port: int, requests: Iterator[bytes], connections: int, seconds: float
) -> Served:
    latencies: list[int] = []
    loop = asyncio.get_running_loop()
    make = partial(_Loop, requests, latencies)
    protocols = [
        (await loop.create_connection(make, "127.0.0.1", port))[1] for _ in range(connections)
    ]
    await asyncio.sleep(seconds)
    for protocol in protocols:
        protocol.running = False
    await asyncio.sleep(0.05)
    for protocol in protocols:
        protocol.transport.abort()
        if protocol.refused:
            raise RuntimeError(f"not served: {protocol.refused!r}")
    return _served(latencies)


def _served(latencies_ns: Sequence[int]) -> Served:
    ordered = sorted(latencies_ns) or [0]
    middle, high = len(ordered) // 2, min(len(ordered) - 1, len(ordered) * 99 // 100)
    return Served(len(latencies_ns), ordered[middle] / 1e3, ordered[high] / 1e3)


class _Open(asyncio.Protocol):
    """One connection of the open loop: it goes back to the `idle` ones with each whole answer."""

    def __init__(self, idle: "deque[_Open]", latencies_ns: list[int]) -> None:
        self._idle = idle
        self._latencies_ns = latencies_ns
        self._left = -1
        self._due_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._idle.append(self)

    def send(self, request: bytes, due_ns: int) -> None:
        self._due_ns = due_ns
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            if not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"not served: {data[:200]!r}")
            self._left = answer_size(data)
        self._left -= len(data)
        if self._left <= 0:
            self._left = -1
            self._latencies_ns.append(time.perf_counter_ns() - self._due_ns)
            self._idle.append(self)


async def drive_open(
    port: int, size: int, per_second: int, seconds: float, first: int = 0
) -> Served:
    """Send chats at random times, on average `per_second`, whatever was answered until then.

    A latency counts from when its request was due, or from when this client, which waits in steps
    of 1 ms, came to send it: only what waits for a connection waits for the proxy. Answers that
    are missing in the end are an error.
    """
    loop, rng, chats = asyncio.get_running_loop(), random.Random(first), Chats(size)
    idle: deque[_Open] = deque()
    latencies: list[int] = []
    for _ in range(OPEN_CONNECTIONS):
        await loop.create_connection(partial(_Open, idle, latencies), "127.0.0.1", port)
    connections = list(idle)
    requests = [
        request_bytes(chats.body(first + number), first + number)
        for number in range(round(per_second * seconds))
    ]
    gc.collect()
    gc.disable()
    waiting: deque[tuple[bytes, int]] = deque()
    due_s = loop.time()
    for request in requests:
        due_s += rng.expovariate(per_second)
        while (wait_s := due_s - loop.time()) > 0.0:
            await asyncio.sleep(wait_s)
            _send_waiting(waiting, idle)
        waiting.append((request, time.perf_counter_ns()))
        _send_waiting(waiting, idle)
    deadline = loop.time() + DEADLINE_S
    while len(latencies) < len(requests):
        if loop.time() > deadline:
            raise RuntimeError(f"{len(requests) - len(latencies)} requests were never answered")
        await asyncio.sleep(0.001)
        _send_waiting(waiting, idle)
    gc.enable()
    for connection in connections:
        connection.transport.abort()
    return _served(latencies)


def _send_waiting(waiting: deque[tuple[bytes, int]], idle: deque[_Open]) -> None:
    while waiting and idle:
        idle.popleft().send(*waiting.popleft())


class _Stream(asyncio.Protocol):
    """One open stream that counts its chunks."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.chunks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b"data: ")


class Streams:
    """Streams held open through a proxy."""

    def __init__(self) -> None:
        self._streams: list[_Stream] = []

    @property
    def chunks(self) -> int:
        """Return the chunks received so far."""
        return sum(stream.chunks for stream in self._streams)

    async def open(self, port: int, count: int, interval_ms: int) -> None:
        """Open `count` streams and wait until each has its first chunk."""
        loop = asyncio.get_running_loop()
        for number in range(count):
            body = chat_body(number % HOT_PREFIXES, 400, interval_ms=interval_ms)
            request = request_bytes(body)
            _, stream = await loop.create_connection(partial(_Stream, request), "127.0.0.1", port)
            self._streams.append(stream)
        deadline = time.monotonic() + DEADLINE_S
        while not all(stream.chunks for stream in self._streams):
            if time.monotonic() > deadline:
                silent = sum(not stream.chunks for stream in self._streams)
                raise RuntimeError(f"{silent} of {count} streams never began")
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Leave them all, and give the proxy a moment to notice."""
        for stream in self._streams:
            stream.transport.abort()
        self._streams.clear()
        await asyncio.sleep(0.3)
