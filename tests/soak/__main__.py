"""`python -m tests.soak [REQUESTS] [router flags]`: a million requests through one router.

Its memory must stay where it was after the first tenth. What it remembers of distinct prompts is
bounded (8,192 families of answers' lengths, 4,096 hot prefixes), and full before counting begins.

Each slice is a closed loop of plain requests by wrk, then streams that are left in the middle,
requests nobody should take, clients that leave before their answer, and connections never reused.
"""

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import uvloop

from benchmarks.measure import resident_bytes
from benchmarks.proxy.bench_proxy import engines
from benchmarks.proxy.load import Streams, chat_body, drive, request_bytes
from benchmarks.proxy.peers import family
from tests.integration.support.live_router import free_port
from tests.unit.transport.http.malformed import CORPUS

MIB = 1024**2
SLICE_S = 20.0
CONNECTIONS = 64
STREAMS = 200
DISTINCT_PROMPTS = 3000
"""Each belongs to three families of lengths."""
PROMPTS_AT_ONCE = 250
APPROX_TTL_S = 5

READY_S = 60.0
LOCK = "KVMESH_SOAK_LOCK"
"""Environment variable: a file locked for the time of each slice, on a machine that is shared."""

MAY_GROW = 1.03
"""Of what is held after the first tenth: the allocator's own unrest."""


class Slice(NamedTuple):
    """One slice: requests so far, resident memory after it, how quick it was."""

    requests: int
    resident_mib: float
    per_s: float


@contextmanager
def router(*arguments: str) -> Iterator[tuple[int, int]]:
    """Run a router over pretend engines; give its port and process id."""
    port = free_port()
    with engines(max(os.sched_getaffinity(0))) as urls:
        workers = [f"--worker=w{number}={url}" for number, url in enumerate(urls)]
        options = [
            "--no-kv-events",
            "--log-level=error",
            f"--approx-ttl-s={APPROX_TTL_S}",
            *arguments,
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "kvmesh", "router", f"--http-port={port}", *options, *workers]
        )
        try:
            wait_until_it_serves(port)
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(30)


def wait_until_it_serves(port: int) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/ready").raise_for_status()
        except httpx.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


async def disturb(port: int, number: int) -> int:
    """Send what goes wrong; return how many requests that was."""
    streams = Streams()
    try:
        await streams.open(port, STREAMS, 50)
    except RuntimeError as error:
        say(str(error))
    await streams.close()
    for case in CORPUS:
        await _send(port, case.data, wait=True)
    for client in range(STREAMS):
        unique = chat_body(number * STREAMS + client + 1000, 2000)
        await _send(port, request_bytes(unique), wait=bool(client % 2))
    return 2 * STREAMS + len(CORPUS)


async def fill(port: int) -> None:
    """Send so many distinct prompts that every bounded table is full.

    Slowly, so that few of them are believed cached at a time: memory of those that were would be
    free for what grows later, and hide it.
    """
    for number in range(DISTINCT_PROMPTS):
        prompt = chat_body(10_000_000 + number, 2000)
        await _send(port, request_bytes(prompt), wait=True)
        if number % PROMPTS_AT_ONCE == 0:
            await asyncio.sleep(APPROX_TTL_S)


async def _send(port: int, data: bytes, *, wait: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if wait:
            async with asyncio.timeout(10):
                await reader.read(1000)
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.transport.abort()


@contextmanager
def turn() -> Iterator[None]:
    """Wait for this machine's turn, if it is shared."""
    with Path(os.environ.get(LOCK, os.devnull)).open("a", encoding="ascii") as lock:
        if LOCK in os.environ:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def closed_loop(port: int) -> int:
    """Return how many requests were answered; a slice with errors is told and not counted."""
    try:
        return drive(port, 400, CONNECTIONS, SLICE_S).requests
    except RuntimeError as error:
        say(str(error))
        return 0


def soak(port: int, pid: int, requests: int) -> Iterator[Slice]:
    """Yield slices until `requests` are done."""
    done = number = 0
    uvloop.run(fill(port))
    while done < requests:
        with turn():
            start = time.monotonic()
            count = closed_loop(port) + uvloop.run(disturb(port, number))
            elapsed_s = time.monotonic() - start
        done += count
        number += 1
        time.sleep(1.0)
        resident = sum(map(resident_bytes, family(pid))) / MIB
        yield Slice(done, resident, count / elapsed_s)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(requests: int, *arguments: str) -> int:
    slices: list[Slice] = []
    with router(*arguments) as (port, pid):
        for one in soak(port, pid, requests):
            slices.append(one)
            say(f"{one.requests:>10,} {one.resident_mib:8.1f} MiB {one.per_s:8,.0f}/s")
    settled = next(one for one in slices if one.requests >= requests / 10)
    growth = slices[-1].resident_mib / settled.resident_mib
    say(f"x{growth:.3f} of what it held after {settled.requests:,} requests")
    return 0 if growth <= MAY_GROW else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 1_000_000, *sys.argv[2:]))
