"""A mesh of four processes: router, meta-router, engine and sidecar."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.chaos.process import MeshProcess, fixed_ports

WITHIN_S = 120.0
"""A deadline for what takes a second: machines of tests are shared."""


class SmallMesh:
    """One mesh on the server at `nats_url`, which need not run yet.

    Its router holds a request that no worker may be given for `hold_s`, its meta-router for long.
    """

    def __init__(
        self, folder: Path, nats_url: str, *router_options: str, hold_s: float = WITHIN_S
    ) -> None:
        self._folder = folder
        self._nats = ["--nats-url", nats_url]
        router, front, engine, events, replay = fixed_ports(5)
        mocker = ("mocker", "--http-port", str(engine), "--speedup-ratio", "50")
        feeds = ("--kv-events-port", str(events), "--kv-replay-port", str(replay))
        self.engine = self.process("engine", engine, *mocker, *feeds)
        held = (f"--wait-for-worker-s={hold_s}", f"--wait-for-replica-s={WITHIN_S}")
        self.router = self.process(
            "router", router, "router", *door(router), *self._nats, held[0], *router_options
        )
        self.front = self.process("front", front, "meta-router", *door(front), *self._nats, held[1])
        sidecar = ("worker", "--engine-url", self.engine.url, *self._nats)
        self.sidecar = self.process("sidecar", 0, *sidecar)
        named = ("--worker", self.engine.url, "--no-kv-events")
        self.sharing = self.process("sharing", front, "router", *door(front), *named, *self._nats)

    def process(self, name: str, port: int, *arguments: str) -> MeshProcess:
        log = self._folder / f"{name}.log"
        return MeshProcess(name, f"http://127.0.0.1:{port}", arguments, log)

    def all(self) -> Iterator[MeshProcess]:
        yield from (self.engine, self.router, self.front, self.sidecar)

    def said(self, process: MeshProcess) -> str:
        return (self._folder / f"{process.name}.log").read_text()


def door(port: int) -> tuple[str, ...]:
    return ("--http-port", str(port))


@contextlib.contextmanager
def router_processes(count: int, folder: Path, *flags: str) -> Iterator[list[MeshProcess]]:
    """Run so many routers with the same flags, r0, r1, …"""
    processes = [
        MeshProcess(
            f"r{number}",
            f"http://127.0.0.1:{port}",
            ("router", "--router-id", f"r{number}", *door(port), *flags),
            folder / f"r{number}.log",
        )
        for number, port in enumerate(fixed_ports(count))
    ]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


@contextlib.asynccontextmanager
async def running(*processes: MeshProcess) -> AsyncIterator[httpx.AsyncClient]:
    for process in processes:
        process.start()
    try:
        async with httpx.AsyncClient(timeout=10) as client:
            yield client
    finally:
        for process in processes:
            process.kill()


async def answer_with(
    client: httpx.AsyncClient, process: MeshProcess, path: str, status: int, text: str = ""
) -> httpx.Response:
    """Return the first answer of that status that holds `text`."""
    deadline_s, seen = time.monotonic() + WITHIN_S, ""
    while time.monotonic() < deadline_s:
        assert process.alive, process.last_words()
        with contextlib.suppress(httpx.HTTPError):
            answer = await client.get(f"{process.url}{path}")
            if answer.status_code == status and text in answer.text:
                return answer
            seen = f"{answer.status_code} {answer.text}"
        await asyncio.sleep(0.05)
    pytest.fail(f"{process.name}{path}: not {status} {text!r} but {seen}\n{process.last_words()}")
