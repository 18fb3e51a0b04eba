"""Two sites of real processes, each with its own nats-server, and a network between them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.ops.site_server import site_conf
from tests.chaos.process import MeshProcess, fixed_ports
from tests.integration.support.small_mesh import door
from tests.integration.support.waiting import until, until_ready

ENGINE = ("--timing-profile", "preble-70b", "--max-num-seqs", "8")
LEAF = "of-the-leaf"


class SiteLink:
    """One TCP way between sites: a port that leads to another, `delay_s` long each way.

    A `silent` one takes connections and bytes and passes nothing on; a closed one breaks them.
    """

    def __init__(self, target: int, delay_s: float) -> None:
        self.port = fixed_ports(1)[0]
        self.bytes = 0
        self.silent = False
        self._target = target
        self._delay_s = delay_s
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self.silent = False
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self.port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        for one in (self._pass(reader, back), self._pass(there, writer)):
            task = asyncio.ensure_future(one)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()
        self._writers.add(writer)

        async def deliver() -> None:
            while True:
                due_s, data = await queue.get()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                if not self.silent:
                    writer.write(data)

        delivering = asyncio.ensure_future(deliver())
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    self.bytes += len(data)
                    queue.put_nowait((loop.time() + self._delay_s, data))
            await asyncio.sleep(self._delay_s)
        finally:
            delivering.cancel()
        self._writers.discard(writer)
        writer.transport.abort()


class Site:
    """One site: an engine, its sidecar, routers and a meta-router, on a server of its own."""

    def __init__(
        self,
        name: str,
        folder: Path,
        engine: Sequence[str],
        front: Sequence[str],
        routers: int = 1,
        router: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self.engine_options = engine
        self.front_options = front
        self.router_options = router
        self.port, self.leaf_port, *self._ports = fixed_ports(5 + routers)
        self.engine_url = f"http://127.0.0.1:{self._ports[0]}"
        self.server = NatsServer(self.folder / "store")
        self.processes: list[MeshProcess] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, doors: Mapping[str, int], hubs: Mapping[str, str]) -> None:
        """Start the server, which joins `hubs`, and the processes; `doors` of the other sites are
        ports by name.
        """
        listen = 0 if len(hubs) == len(doors) else self.leaf_port
        conf = site_conf(self.name, list(doors), listen=listen, hubs=hubs, leaf=LEAF)
        self.server = NatsServer(
            self.folder / "store", log_path=self.folder / "nats.log", config=conf
        )
        await self.server.start()
        nats = ("--nats-url", self.server.url, "--namespace", self.name)
        engine, events, replay, *routers = self._ports
        feeds = ("--kv-events-port", str(events), "--kv-replay-port", str(replay))
        mocker = ("mocker", "--http-port", str(engine), *feeds, *self.engine_options)
        there = (f"--peer-site={name}=http://127.0.0.1:{port}" for name, port in doors.items())
        sites = ("--site", self.name, *there)
        self.processes = [
            self._process("engine", engine, *mocker),
            self._process("sidecar", 0, "worker", "--engine-url", self.engine_url, *nats),
            *(
                self._process("router", one, "router", *door(one), *nats, *self.router_options)
                for one in routers
            ),
            self._process(
                "front",
                self.port,
                "meta-router",
                *door(self.port),
                *nats,
                *sites,
                *self.front_options,
            ),
        ]
        for one in self.processes:
            one.start()

    def _process(self, name: str, port: int, *arguments: str) -> MeshProcess:
        log = self.folder / f"{name}-{port}.log"
        return MeshProcess(name, f"http://127.0.0.1:{port}", arguments, log)

    def named(self, name: str) -> list[MeshProcess]:
        """Return its processes of that name."""
        return [one for one in self.processes if one.name == name]

    def kill(self) -> None:
        """Have all of it die at once."""
        for one in self.processes:
            one.kill()
        self.server.kill()

    async def stop(self) -> None:
        for one in self.processes:
            one.kill()
        await self.server.stop()


class TwoSites:
    """Sites a and b; b joins a's server as a leaf. `doors` are the ways to each site."""

    def __init__(
        self,
        folder: Path,
        delay_s: float,
        engine: Sequence[str],
        front: Sequence[str],
        routers: int = 1,
    ) -> None:
        self.a, self.b = (Site(name, folder, engine, front, routers) for name in ("a", "b"))
        self.leaf = SiteLink(self.a.leaf_port, delay_s)
        self.doors = {one.name: SiteLink(one.port, delay_s) for one in (self.a, self.b)}

    async def start(self) -> None:
        for link in (self.leaf, *self.doors.values()):
            await link.open()
        await self.a.serve({"b": self.doors["b"].port}, {})
        hub = f"nats-leaf://b:{LEAF}@127.0.0.1:{self.leaf.port}"
        await self.b.serve({"a": self.doors["a"].port}, {"a": hub})

    async def cut(self, *, silent: bool = False) -> None:
        """Part the sites from each other; `silent`: what is sent is lost, and nobody is told."""
        for link in (self.leaf, *self.doors.values()):
            if silent:
                link.silent = True
            else:
                await link.close()

    async def heal(self) -> None:
        for link in (self.leaf, *self.doors.values()):
            await link.close()
            await link.open()

    async def stop(self) -> None:
        for link in (self.leaf, *self.doors.values()):
            await link.close()
        for one in (self.a, self.b):
            await one.stop()


@contextlib.asynccontextmanager
async def two_sites(
    folder: Path,
    *engine: str,
    front: Sequence[str] = (),
    delay_s: float = 0.02,
    routers: int = 1,
) -> AsyncIterator[TwoSites]:
    """Run two sites of so many routers each, with a round trip of twice `delay_s`; `front`: options
    of meta-routers.
    """
    sites = TwoSites(folder, delay_s, engine, front, routers)
    try:
        await sites.start()
        yield sites
    finally:
        await sites.stop()


async def status(site: Site) -> dict[str, Any]:
    """Return what a site says of itself."""
    async with httpx.AsyncClient(base_url=site.url, timeout=10) as client:
        found: dict[str, Any] = (await client.get("/v1/status")).json()
    return found


async def why_not(site: Site, other: str) -> str:
    """Return why no request goes to another site, "" where one may."""
    rows = (await status(site))["sites"]["sites"]
    why: str = next(one["why_not"] for one in rows if one["site"] == other)
    return why


async def until_usable(site: Site, other: str) -> None:
    """Wait until a site may send requests to another."""

    async def usable() -> bool:
        return not await why_not(site, other)

    async with httpx.AsyncClient(timeout=10) as client:
        await until_ready(client, site.url)
    await until(usable, what=f"{site.name} may send to {other}")


async def until_lost(site: Site, other: str) -> float:
    """Wait until a site has given another up; return how long it took, s."""
    began_s = time.monotonic()
    await until(lambda: why_not(site, other))
    return time.monotonic() - began_s
