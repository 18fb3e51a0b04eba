"""A bucket whose processes are of several versions: two replicas, two sidecars, a front door."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Literal

import httpx
import msgspec

from kvmesh.actors.snapshotter import manifest_key
from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh.plane import event_plane
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.index.snapshot_manifest import SnapshotGeneration
from kvmesh.ports import EventPlane, KeyValue
from kvmesh.settings.roles import NatsSettings
from tests.chaos.process import MeshProcess, fixed_ports

BUCKET = "skew"
WITHIN_S = 60.0
POLL_S = 0.05
MODEL = "mock"

Version = Literal["now", "next", "only-next"]
"""This build, or one that tests/integration/versions/launch.py makes of it."""

Role = Literal["r0", "r1", "w0", "w1", "front"]
ROUTERS: Final[tuple[Role, ...]] = ("r0", "r1")
SIDECARS: Final[tuple[Role, ...]] = ("w0", "w1")
"""Both of one engine: so that requests can be served while one is replaced."""


class Fleet:
    """Processes on one server; `start` and `replace` say which version each is of."""

    def __init__(self, folder: Path, server: NatsServer) -> None:
        self.server = server
        self.client = httpx.AsyncClient(timeout=30)
        self._folder = folder
        self._ports = dict(zip(("r0", "r1", "front", "engine"), fixed_ports(4), strict=True))
        events, replay = fixed_ports(2)
        engine = self._ports["engine"]
        feeds = ("--kv-events-port", str(events), "--kv-replay-port", str(replay))
        mocker = ("mocker", "--http-port", str(engine), "--timing-profile", "instant", *feeds)
        self.engine = MeshProcess("engine", url(engine), mocker, folder / "engine.log")
        self._running: dict[str, MeshProcess] = {}

    def start(self, role: Role, version: Version) -> MeshProcess:
        """Start a process, which must not run, as a build of that version."""
        assert role not in self._running or not self._running[role].alive
        port = self._ports.get(role, 0)
        program: tuple[str, ...] = ("-m", "tests.fixed_flags")
        if version != "now":
            program = ("-m", "tests.integration.versions.launch", version)
        self._running[role] = process = MeshProcess(
            role,
            url(port),
            self._arguments(role, port),
            self._folder / f"{role}.log",
            "json",
            program,
        )
        process.start()
        return process

    def stop(self, role: Role) -> None:
        """End a process in good order."""
        self._running[role].stop()

    def kill(self) -> None:
        """End whatever still runs."""
        for process in (*self._running.values(), self.engine):
            process.kill()

    def said(self, role: Role) -> str:
        """Return the log of all processes that had that role."""
        return (self._folder / f"{role}.log").read_text()

    def url(self, role: Role) -> str:
        return url(self._ports[role])

    def door(self, role: Role) -> httpx.AsyncClient:
        """Return a client of one process, to be closed."""
        return httpx.AsyncClient(base_url=self.url(role), timeout=30)

    async def answer(self, role: Role, path: str) -> httpx.Response | None:
        """Return what a process answers; None for one that does not."""
        with contextlib.suppress(httpx.HTTPError):
            return await self.client.get(f"{self.url(role)}{path}")
        return None

    async def status(self, role: Role) -> dict[str, Any]:
        """Return a router's `mesh` in /v1/status, {} while it does not answer."""
        answer = await self.answer(role, "/v1/status")
        found: dict[str, Any] = answer.json()["mesh"] if answer else {}
        return found

    async def until_ready(self, *roles: Role) -> None:
        for role in roles:
            async with asyncio.timeout(WITHIN_S):
                while True:
                    answer = await self.answer(role, "/ready")
                    if answer is not None and answer.is_success:
                        break
                    assert self._running[role].alive, self._running[role].last_words()
                    await asyncio.sleep(POLL_S)

    async def until(self, check: Callable[[], Awaitable[object]]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                if await check():
                    return
                await asyncio.sleep(POLL_S)

    async def until_holds(self, role: Role, blocks: int) -> None:
        """Wait until a router knows of so many blocks."""

        async def holds() -> bool:
            return await self.blocks(role) >= blocks

        await self.until(holds)

    async def blocks(self, role: Role) -> int:
        """Return how many blocks a router knows of."""
        status = await self.status(role)
        return sum(status.get("blocks", {}).values())

    async def journal_format(self, role: Role) -> int:
        """Return the lowest format that workers' records have, as a router heard; 0: of none."""
        answer = await self.answer(role, "/v1/overview?limit=0")
        workers = answer.json()["workers"] if answer else []
        return min((one["journal_format"] for one in workers), default=0)

    async def until_usable(self, worker: Role, epoch: int) -> None:
        """Wait until a router may use a later life of a worker than that of `epoch`."""

        async def usable() -> bool:
            return await self.epoch(worker, usable=True) > epoch

        await self.until(usable)

    async def epoch(self, worker: Role, *, usable: bool = False) -> int:
        """Return a worker's epoch as some router knows it, 0 if none does (or may use it)."""
        found = [0]
        for router in ROUTERS:
            answer = await self.answer(router, "/v1/status")
            workers = answer.json()["workers"] if answer else []
            known = (one for one in workers if one["worker"] == worker)
            found += [one["epoch"] for one in known if one["usable"] or not usable]
        return max(found)

    async def until_writes(self, seen: "Seen", journal_format: int) -> None:
        """Wait until both sidecars say that their records have a format, and one of them has."""

        async def writes() -> bool:
            said = await self.journal_format("r0") == journal_format
            return said and journal_format in seen.formats

        await self.until(writes)

    async def until_reads_all(self, role: Role) -> None:
        """Wait until nothing is of a newer format than a router reads."""

        async def reads() -> bool:
            return (await self.status(role)).get("unread") == []

        await self.until(reads)

    async def until_takes(self, role: Role) -> None:
        """Wait until a router has written a snapshot."""

        async def took() -> bool:
            return bool((await self.status(role))["snapshotter"]["taken"])

        await self.until(took)

    async def until_agreed(self) -> None:
        """Wait until both replicas have read equally far, and hold the same of each worker."""

        async def agree() -> bool:
            reported = [await self.status(one) for one in ROUTERS]
            places = [(one["applied_sequence"], one["worker_digests"]) for one in reported if one]
            return len(places) == len(ROUTERS) and places[0] == places[1]

        await self.until(agree)

    async def trusts(self, role: Role) -> dict[str, str]:
        """Return how far a router believes the events of each worker."""
        answer = await self.answer(role, "/v1/status")
        workers = answer.json()["workers"] if answer else []
        return {one["worker"]: one["trust"] for one in workers}

    async def until_stored(self, seen: "Seen", blocks: int) -> int:
        """Return at which sequence a snapshot of so many blocks was stored, once it is."""

        async def found() -> list[int]:
            return [one.sequence for one in seen.generations.values() if one.blocks >= blocks]

        await self.until(found)
        return (await found())[0]

    def _arguments(self, role: Role, port: int) -> tuple[str, ...]:
        nats = ("--nats-url", self.server.url)
        door = ("--http-port", str(port), "--drain-s", "2")
        if role in SIDECARS:
            named = ("--bucket", BUCKET, "--worker-id", role)
            return ("worker", "--engine-url", self.engine.url, *named, *nats)
        if role == "front":
            return ("meta-router", *door, *nats)
        bucket = ("--bucket", BUCKET, "--router-id", role, "--snapshot-interval-s", "0.5")
        return ("router", *door, *nats, *bucket, "--stream-max-bytes", str(32 << 20))


class Seen(msgspec.Struct):
    """What went over the server, and what was stored there.

    `asked` are requests for dumps, `journal` its records, of those `formats`.
    """

    generations: dict[str, SnapshotGeneration] = {}
    asked: int = 0
    journal: int = 0
    formats: set[int] = set()

    def emptied(self) -> list[SnapshotGeneration]:
        """Return the empty generations behind one that was not."""
        found = sorted(self.generations.values(), key=lambda one: one.sequence)
        full = next((at for at, one in enumerate(found) if one.blocks), len(found))
        return [one for one in found[full:] if not one.blocks]


class _Generations(msgspec.Struct):
    """What a manifest of any format has."""

    generations: list[SnapshotGeneration] = []


@contextlib.asynccontextmanager
async def watching(server: NatsServer) -> AsyncIterator[Seen]:
    """Follow manifest, commands and journal while the block runs."""
    seen = Seen()
    plane = event_plane(NatsSettings(nats_url=server.url), "snapshot tool")
    await plane.connect()
    subjects = Subjects("kvmesh", BUCKET)

    def on_command(subject: str, data: bytes) -> None:
        del subject
        seen.asked += msgspec.msgpack.decode(data)["type"] == "resync"

    def on_record(subject: str, data: bytes) -> None:
        del subject
        seen.journal += 1
        seen.formats.add(msgspec.msgpack.decode(data)[0])

    subscriptions = [
        await plane.bus.subscribe(subjects.control(), on_command),
        await plane.bus.subscribe(subjects.events(), on_record),
    ]
    following = asyncio.create_task(follow_manifest(plane, seen))
    try:
        yield seen
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        for subscription in subscriptions:
            await subscription.close()
        await plane.close()


async def follow_manifest(plane: EventPlane, seen: Seen) -> None:
    """Note each generation that a manifest ever names."""
    keys: KeyValue | None = None
    while True:
        with contextlib.suppress(Exception):
            if keys is None:
                keys, _ = await plane.stores(BUCKET)
            entry = await keys.get(manifest_key(BUCKET))
            if entry is not None:
                read = msgspec.json.decode(entry.value, type=_Generations)
                seen.generations.update({one.name: one for one in read.generations})
        await asyncio.sleep(POLL_S)


class Load:
    """Clients of the front door: what each was answered, and which answers were errors."""

    def __init__(self, fleet: Fleet) -> None:
        self.answered = 0
        self.failed: list[str] = []
        self.trusts: list[tuple[str, str]] = []
        self._fleet = fleet

    @contextlib.asynccontextmanager
    async def running(self, clients: int = 2) -> AsyncIterator[None]:
        """Have so many clients ask one thing after the other."""
        tasks = [asyncio.create_task(self._client(number)) for number in range(clients)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, asyncio.CancelledError), result

    async def ask(self, prompt: str, role: Role = "front") -> httpx.Response:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
        return await self._fleet.client.post(f"{self._fleet.url(role)}/v1/completions", json=body)

    async def _why_not(self, role: Role) -> str:
        answer = await self._fleet.answer(role, "/ready")
        return answer.json()["reason"] if answer is not None else "does not answer"

    async def _client(self, number: int) -> None:
        turn = 0
        while True:
            turn += 1
            text = f"Client {number} on its subject {turn // 4}. " * 20 + f"Turn {turn}."
            try:
                answer = await self.ask(text)
            except httpx.HTTPError as error:
                self.failed.append(f"{type(error).__name__}: {error}")
                continue
            self.answered += 1
            if not answer.is_success:
                reported = [f"{one}: {await self._why_not(one)}" for one in ROUTERS]
                self.failed.append(f"{answer.status_code} {answer.text} {' '.join(reported)}")
            headers = answer.headers
            self.trusts.append(
                (headers.get("x-kvmesh-router", ""), headers.get("x-kvmesh-trust", ""))
            )
            await asyncio.sleep(0.02)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"
