"""Clients for proxy benchmarks: closed loops of short requests, and open streams."""

import asyncio
import re
import shutil
import subprocess
import tempfile
import time
from functools import partial
from typing import Final, NamedTuple, cast

WRK: Final = shutil.which("wrk")
PATH: Final = "/v1/chat/completions"
HOT_PREFIXES: Final = 64
LENGTH: Final = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
DEADLINE_S: Final = 30.0


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


def request_bytes(body: bytes) -> bytes:
    """Return the request as a client library sends it."""
    return (
        b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json\r\n"
        b"content-type: application/json\r\nuser-agent: bench/1\r\nauthorization: Bearer k\r\n"
        b"content-length: %d\r\n\r\n%b" % (PATH.encode(), len(body), body)
    )


def drive(port: int, size: int, connections: int, seconds: float) -> Served:
    """Keep `connections` requests of `size` bytes running for `seconds`; wrk if there is one."""
    if WRK:
        return _drive_wrk(port, size, connections, seconds)
    return asyncio.run(_drive_python(port, size, connections, seconds))


def _drive_wrk(port: int, size: int, connections: int, seconds: float) -> Served:
    bodies = ",\n".join(
        f"[==[{chat_body(number, size).decode()}]==]" for number in range(HOT_PREFIXES)
    )
    script = f"""
        wrk.method = "POST"
        wrk.headers["content-type"] = "application/json"
        wrk.headers["authorization"] = "Bearer k"
        local requests, turn = {{}}, 0
        init = function()
            for number, body in ipairs({{ {bodies} }}) do
                requests[number] = wrk.format(nil, "{PATH}", nil, body)
            end
        end
        request = function()
            turn = turn % #requests + 1
            return requests[turn]
        end
        done = function(summary, latency)
            io.write(string.format("RESULT %d %d %d %d\\n", summary.requests,
                summary.errors.status + summary.errors.connect + summary.errors.read,
                latency:percentile(50), latency:percentile(99)))
        end
    """
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = [str(WRK), "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}"]
        output = subprocess.run(
            [*command, "-s", file.name, f"http://127.0.0.1:{port}"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+)", output)
    if found is None or int(found[2]):
        raise RuntimeError(f"wrk failed: {output}")
    return Served(int(found[1]), float(found[3]), float(found[4]))


class _Loop(asyncio.Protocol):
    """One connection of the Python client: the next request goes when the answer is whole."""

    def __init__(self, requests: list[bytes], latencies_ns: list[int], start: int) -> None:
        self._requests = requests
        self._latencies_ns = latencies_ns
        self._turn = start
        self._left = -1
        self._sent_ns = 0
        self.running = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._turn = (self._turn + 1) % len(self._requests)
        self._sent_ns = time.perf_counter_ns()
        self.transport.write(self._requests[self._turn])

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            head = data.find(b"\r\n\r\n") + 4
            length = LENGTH.search(data, 0, head)
            self._left = (int(length.group(1)) if length else 0) + head
        self._left -= len(data)
        if self._left <= 0:
            self._left = -1
            self._latencies_ns.append(time.perf_counter_ns() - self._sent_ns)
            if self.running:
                self._send()


async def _drive_python(port: int, size: int, connections: int, seconds: float) -> Served:
    requests = [request_bytes(chat_body(number, size)) for number in range(HOT_PREFIXES)]
    latencies: list[int] = []
    loop = asyncio.get_running_loop()
    protocols = [
        (
            await loop.create_connection(
                partial(_Loop, requests, latencies, number), "127.0.0.1", port
            )
        )[1]
        for number in range(connections)
    ]
    await asyncio.sleep(seconds)
    for protocol in protocols:
        protocol.running = False
    await asyncio.sleep(0.05)
    for protocol in protocols:
        protocol.transport.abort()
    ordered = sorted(latencies) or [0]
    middle, high = len(ordered) // 2, min(len(ordered) - 1, len(ordered) * 99 // 100)
    return Served(len(latencies), ordered[middle] / 1e3, ordered[high] / 1e3)


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
