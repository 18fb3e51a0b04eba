"""What an open stream costs a router: processor time a chunk, and memory.

`--beside PATH` alternates with another checkout, which has its own compiled core; `now, nothing
kept` is this one with `--keep-stream-bytes 0`.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.measure import Sample, compare, parse_options, report
from benchmarks.proxy.peers import free_port
from benchmarks.started import Started
from benchmarks.streams.lockstep import LockStep

STREAMS: Final = 16
BEGINNING: Final = 8
"""Tokens that do not count: what goes with a stream's begin."""

SETTLED_S: Final = 1.0
BODIES: Final = (400, 20_000)
OPEN: Final = 500
TOGETHER: Final = 25
HELD_TOKENS: Final = 20
"""So many streams begin at a time, and so many tokens pass before the next do."""


def chat(number: int, size: int) -> bytes:
    """Return the body of a streamed chat of about `size` bytes, as clients write it."""
    text = f"{number:06d} " + "word " * ((size - 110) // 5)
    asked = {"model": "m", "stream": True, "temperature": 0, "max_tokens": 1000}
    asked["messages"] = [{"role": "user", "content": text}]
    return json.dumps(asked, separators=(",", ":")).encode()


def pss_bytes(pid: int) -> int:
    """Return the memory of a process, with its part of what it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class Measured:
    """One router, and what it is sent."""

    def __init__(self, name: str, tree: Path | None, flags: Sequence[str], folder: Path) -> None:
        self.name = name
        self._tree = tree
        self._flags = flags
        self._log = folder / f"{name.replace(' ', '-')}.log"

    def start(self, url: str) -> Started:
        port = free_port()
        flags = ["--no-kv-events", f"--http-port={port}", f"--worker=w0={url}", *self._flags]
        return Started(["kvmesh", "router", *flags], port, self._log, self._tree)

    def chunk(self, tokens: int) -> Sample:
        """Return the processor time of chunks of long streams, and of their begin and end."""
        return uvloop.run(self._chunk(tokens))

    async def _chunk(self, tokens: int) -> Sample:
        lockstep = LockStep()
        await lockstep.listen()
        router = self.start(lockstep.url)
        try:
            await asyncio.to_thread(router.wait, is_ready)
            before_s = began_s = after_s = 0.0
            for number in range(2):  # the first round warms
                began_s = router.cpu_s()
                for one in range(STREAMS):
                    await lockstep.open(router.port, chat(one + number * STREAMS, BODIES[0]))
                for token in range(BEGINNING):
                    await lockstep.tick(token)
                before_s = router.cpu_s()
                for token in range(tokens if number else BEGINNING):
                    await lockstep.tick(token)
                after_s = router.cpu_s()
                await lockstep.leave()
            ends_s = router.cpu_s() - after_s + before_s - began_s
        finally:
            router.kill()
        return {
            "cpu us/chunk": (after_s - before_s) / STREAMS / tokens * 1e6,
            "cpu us/begin and end": ends_s / STREAMS * 1e6,
        }

    def memory(self, size: int, streams: int) -> float:
        """Return the bytes that an open stream of a body of `size` bytes takes."""
        return uvloop.run(self._memory(size, streams))

    async def _memory(self, size: int, streams: int) -> float:
        lockstep = LockStep()
        await lockstep.listen()
        router = self.start(lockstep.url)
        try:
            await asyncio.to_thread(router.wait, is_ready)
            for number in range(BEGINNING):
                await lockstep.open(router.port, chat(number, size))
            await asyncio.sleep(SETTLED_S)
            before = await asyncio.to_thread(pss_bytes, router.pid)
            for number in range(streams):
                await lockstep.open(router.port, chat(BEGINNING + number, size))
                if number % TOGETHER == TOGETHER - 1:  # what one lets go of the next takes
                    for token in range(HELD_TOKENS):
                        await lockstep.tick(token)
            await asyncio.sleep(SETTLED_S)
            return (await asyncio.to_thread(pss_bytes, router.pid) - before) / streams
        finally:
            router.kill()


def is_ready(router: Started) -> bool:
    """Return whether it serves."""
    return bool(router.ask("/ready")["ready"])


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--only", choices=("chunks", "memory"))
    found, rest = parser.parse_known_args()
    options = parse_options("Processor time a chunk of a stream, memory a stream.", rest)
    with tempfile.TemporaryDirectory(prefix="kvmesh-bench-") as name:
        folder = Path(name)
        ways = [] if found.beside is None else [Measured("before", found.beside, (), folder)]
        nothing = ("--keep-stream-bytes=0",)
        ways += [Measured("now", None, (), folder)]
        ways += [Measured("now, nothing kept", None, nothing, folder)]
        if found.only != "memory":
            tokens = options.size(full=500, quick=50)
            began_s = time.monotonic()
            made = {one.name: lambda one=one: one.chunk(tokens) for one in ways}
            chunks = compare(f"{STREAMS} streams", made, options.rounds, warm_up=0)
            report(chunks, options)
            least = {
                one: min(sample["cpu us/chunk"] for sample in chunks.samples[one]) for one in made
            }
            first = next(iter(least.values()))
            for one, us in least.items():
                print(f"{one}: least {us:.2f} us/chunk, x{us / first:.3f}")
            print(f"{time.monotonic() - began_s:.0f} s", file=sys.stderr)
        if found.only != "chunks":
            streams = options.size(full=OPEN, quick=100)
            held = {
                one.name: lambda one=one: {
                    f"KiB/stream of {size} B": one.memory(size, streams) / 1024 for size in BODIES
                }
                for one in ways
            }
            report(compare("memory", held, min(options.rounds, 3), warm_up=0), options)


if __name__ == "__main__":
    main()
