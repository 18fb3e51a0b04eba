"""The front doors that `bench_faults` compares, each over engines of its own."""

import asyncio
import contextlib
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from benchmarks.faults.cells import Load
from benchmarks.faults.load import MODEL, chat, make_client, send
from benchmarks.proxy.peers import NGINX, environment, find, rust
from kvmesh.app.process.running import DIE_WITH_PARENT

START_S: Final = 60.0
POLL_S: Final = 0.05
ATTEMPTS: Final = 3
"""The Rust routers' port for metrics may be taken between finding it and listening on it."""
PORT_RANGE: Final = (12_000, 32_000)
STOP_S: Final = 3.0
USABLE: Final = re.compile(rb'"(usable|is_healthy)": ?true')
KVMESH: Final = (sys.executable, "-m", "kvmesh")
QUIET: Final = "--log-level=warning"
RETRIES: Final = (
    "proxy_pass http://workers; proxy_next_upstream error timeout invalid_header http_429 "
    "http_500 http_502 http_503 http_504 non_idempotent;"
)
"""nginx as one sets it up for engines that fail: unasked it passes a POST on once, and answers on,
whatever they say. It can send again only what it has buffered.
"""


class Ports:
    """Hands out free ports, none twice, outside the range whose ports the kernel gives to clients:
    nobody takes them before their process listens.
    """

    def __init__(self, seed: int) -> None:
        self._left = list(range(*PORT_RANGE))
        random.Random(seed).shuffle(self._left)

    def take(self) -> int:
        """Return the next one."""
        while True:
            port = self._left.pop()
            with contextlib.suppress(OSError), socket.socket() as sock:
                sock.bind(("127.0.0.1", port))
                return port


class Site(NamedTuple):
    """Where a door stands: what its processes listen on and talk to."""

    ports: Ports
    port: int
    engines: Sequence[str]
    folder: Path
    nats_url: str
    namespace: str


class Door(NamedTuple):
    """A front door: the processes that stay as long as its engines (sidecars), those that begin
    anew with each cell, and where it tells how many engines it would use.
    """

    name: str
    ours: bool
    begin: Callable[[Site], list[list[str]]]
    stay: Callable[[Site], list[list[str]]] = lambda _: []
    workers_path: str = "/v1/overview"
    missing: str = ""


class EndedError(RuntimeError):
    """A process ended that should not have."""


class Process:
    """A child process whose output goes to a file; it ends with this one."""

    def __init__(self, command: Sequence[str], log_path: Path) -> None:
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(), DIE_WITH_PARENT: "1"},
            )

    def check(self) -> None:
        """Raise `EndedError` with its last words when it has ended."""
        if self._process.poll() is not None:
            raise EndedError(f"a process has ended: {self.last_words()}")

    def last_words(self) -> str:
        """Return its command and the end of its log."""
        return f"{self._process.args!r}:\n{self._log_path.read_text(errors='replace')[-1000:]}"

    def ask_to_stop(self) -> None:
        self._process.terminate()

    def stop(self) -> None:
        """End it, by force when it does not end soon."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def stop_all(processes: Sequence[Process]) -> None:
    """End them all; they drain at the same time."""
    for process in processes:
        process.ask_to_stop()
    for process in processes:
        process.stop()


def alone(*options: str) -> Callable[[Site], list[list[str]]]:
    def begin(site: Site) -> list[list[str]]:
        named = [f"--worker=w{number}={url}" for number, url in enumerate(site.engines)]
        return [[*KVMESH, "router", *options, f"--http-port={site.port}", QUIET, *named]]

    return begin


def mesh(site: Site) -> list[str]:
    return [f"--nats-url={site.nats_url}", f"--namespace={site.namespace}", QUIET]


def sidecars(site: Site) -> list[list[str]]:
    return [
        [*KVMESH, "worker", f"--engine-url={url}", f"--worker-id=w{number}", *mesh(site)]
        for number, url in enumerate(site.engines)
    ]


def mesh_router(site: Site) -> list[list[str]]:
    return [[*KVMESH, "router", "--router-id=r0", f"--http-port={site.port}", *mesh(site)]]


def behind_meta_router(site: Site) -> list[list[str]]:
    router = mesh_router(site._replace(port=site.ports.take()))
    return [*router, [*KVMESH, "meta-router", f"--http-port={site.port}", *mesh(site)]]


def nginx(site: Site) -> list[list[str]]:
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in site.engines)
    text = NGINX.format(folder=site.folder, port=site.port, servers=servers)
    config = site.folder / "nginx.conf"
    text = text.replace("proxy_request_buffering off;", "")
    config.write_text(text.replace("proxy_pass http://workers;", RETRIES))
    return [[str(find("nginx")), "-p", str(site.folder), "-c", str(config)]]


def peer(executable: str, *first: str, policy: str) -> Callable[[Site], list[list[str]]]:
    command = rust(executable, *first, policy=policy)
    return lambda site: [command(site.port, site.engines, site.folder)]


def all_doors() -> list[Door]:
    """Return every front door, ours first."""
    doors = [
        Door("kvmesh alone, no events", True, alone("--no-kv-events")),
        Door("kvmesh alone", True, alone()),
        Door("kvmesh mesh", True, mesh_router, sidecars),
        Door("kvmesh meta-router", True, behind_meta_router, sidecars),
    ]
    for name, executable, first, policy in (
        ("vllm-router 0.1.17 rr", "vllm-router", (), "round_robin"),
        ("vllm-router 0.1.17 cache", "vllm-router", (), "cache_aware"),
        ("sglang-router 0.3.2 cache", "sglang-router", ("launch",), "cache_aware"),
        ("smg 1.13.0 cache", "smg", ("launch",), "cache_aware"),
    ):
        missing = "" if find(executable) else f"{executable} is neither on PATH nor in its folder"
        begin = peer(executable, *first, policy=policy)
        doors.append(Door(name, False, begin, workers_path="/workers", missing=missing))
    missing = "" if find("nginx") else "apt-get install nginx-light"
    doors.append(Door("nginx rr", False, nginx, workers_path="", missing=missing))
    return doors


class Fleet:
    """One door with engines of its own. Its sidecars stay; the door itself is opened for a cell
    and closed after it, so that nothing it learned or booked is left for the next.
    """

    def __init__(self, door: Door, site: Site) -> None:
        site.folder.mkdir(parents=True, exist_ok=True)
        self.door = door
        self.engines = site.engines
        self._site = site
        self._open: list[Process] = []
        self._standing = [
            Process(command, site.folder / f"sidecar{number}.log")
            for number, command in enumerate(door.stay(site))
        ]

    async def open(self) -> httpx.AsyncClient:
        """Begin the door's processes and return a client once it would use all its engines.

        Raises `RuntimeError` when it does not come to that.
        """
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(EndedError):
                return await self._begin()
            self.close()
        return await self._begin()

    async def _begin(self) -> httpx.AsyncClient:
        port = self._site.ports.take()
        folder = self._site.folder
        commands = self.door.begin(self._site._replace(port=port))
        self._open = [
            Process(command, folder / f"door{number}.log")
            for number, command in enumerate(commands)
        ]
        client = make_client(port)
        deadline = time.monotonic() + START_S
        while not await self._is_ready(client):
            processes = [*self._open, *self._standing]
            for process in processes:
                process.check()
            if time.monotonic() > deadline:
                words = "\n".join(process.last_words() for process in processes)
                raise RuntimeError(f"{self.door.name} is not ready. {words}")
            await asyncio.sleep(POLL_S)
        return client

    async def _is_ready(self, client: httpx.AsyncClient) -> bool:
        try:
            if path := self.door.workers_path:
                page = (await client.get(path, timeout=2)).content
                if len(USABLE.findall(page)) < len(self.engines):
                    return False
        except httpx.HTTPError:
            return False
        ready = Load("ready", 1, 1, timeout_s=2.0)
        [answer] = await send(client, ready, lambda _: chat("ready", "Open?"))
        return not answer.problem

    def close(self) -> None:
        """End the door, not its sidecars."""
        stop_all(self._open)
        self._open = []

    def end(self) -> None:
        """End all its processes."""
        stop_all([*self._open, *self._standing])


def start_mocker(port: int, folder: Path, number: int, *options: str) -> tuple[str, Process]:
    """Start a pretend vLLM whose faults can be changed, return its URL, too."""
    ports = [f"--http-port={port}", "--kv-events-port=0", "--kv-replay-port=0"]
    command = [*KVMESH, "mocker", f"--model={MODEL}", *ports, QUIET, *options]
    return f"http://127.0.0.1:{port}", Process(command, folder / f"engine{number}.log")


def clear_environment() -> None:
    """Forget settings of kvmesh that the caller's environment has: doors run with defaults."""
    for name in [name for name in os.environ if name.startswith("KVMESH_")]:
        if not name.startswith("KVMESH_BENCH_"):
            del os.environ[name]
