"""A whole mesh of real processes on fixed ports: nats-servers, engines, sidecars, routers."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import msgspec

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.errors import TransportError
from tests.chaos.process import MeshProcess, fixed_ports
from tests.chaos.routes import Routes

BUCKET = "chaos"
BLOCK_SIZE = 16
POLL_S = 0.1
NOWHERE = 1
"""A port where nobody listens."""


class MeshSize(msgspec.Struct, frozen=True):
    """`ranks` has one number of data-parallel ranks an engine; `servers` is 1 or 3.

    `homes` has the number of the one server of each sidecar, each router and the front door, in
    this order; without, all know all servers.
    """

    servers: int = 1
    routers: int = 2
    ranks: tuple[int, ...] = (1, 2)
    blocks: int = 400
    speedup: float = 20.0
    snapshot_s: float = 3.0
    homes: tuple[int, ...] = ()
    router_options: tuple[str, ...] = ()


class ChaosMesh:
    def __init__(self, folder: Path, size: MeshSize) -> None:
        self.size = size
        self._folder = folder
        listens = fixed_ports(size.servers)
        self.routes = Routes(listens if size.servers > 1 else ())
        self.servers = self._make_servers(listens)
        self._homes = iter(size.homes)
        self.engines: list[MeshProcess] = []
        self.sidecars: list[MeshProcess] = []
        self.ranks: dict[str, tuple[MeshProcess, int]] = {}
        for number, ranks in enumerate(size.ranks):
            self._add_engine(number, ranks)
        *ports, front, beside, events, replay = fixed_ports(size.routers + 4)
        feeds = ["--kv-events-port", str(events), "--kv-replay-port", str(replay)]
        self.reference = self._process(
            "reference",
            f"http://127.0.0.1:{beside}",
            ["mocker", "--http-port", str(beside), "--block-size", str(BLOCK_SIZE), *feeds],
        )
        self.routers = [self._router(number, port) for number, port in enumerate(ports)]
        front_url = f"http://127.0.0.1:{front}"
        self.front = self._process(
            "front", front_url, ["meta-router", "--http-port", str(front), *self._nats()]
        )

    @property
    def nats_url(self) -> str:
        return ",".join(server.url for server in self.servers)

    def processes(self) -> Iterator[MeshProcess]:
        yield from (*self.engines, *self.sidecars, *self.routers, self.front)

    async def start(self) -> None:
        self.routes.start()
        for server in self.servers:
            await server.start()
        for process in (self.reference, *self.processes()):
            process.start()
        await self.wait_ready()

    async def stop(self) -> None:
        for process in (self.reference, *self.processes()):
            process.kill()
        for server in self.servers:
            server.thaw()
            await server.stop()
        self.routes.stop()

    async def start_server(self, server: NatsServer) -> None:
        """Start it again, however often that takes."""
        async with asyncio.timeout(30):
            while not server.program.runs():
                with contextlib.suppress(TransportError):
                    await server.start()

    async def heal(self) -> None:
        """Undo every fault: what was frozen goes on, what died is started, all is awaited."""
        self.routes.heal()
        self.routes.slow(0.0)
        self.routes.lose(0.0)
        for server in self.servers:
            server.thaw()
            await self.start_server(server)
        for process in self.processes():
            process.thaw()
        await self.wait_ready()

    async def wait_ready(self, timeout_s: float = 240) -> None:
        """Wait until all doors say they are ready; what gave up meanwhile is started again."""
        doors = [f"{one.url}/ready" for one in (*self.routers, self.front)]
        doors += [f"{one.url}/health" for one in (*self.engines, self.reference)]
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        async with httpx.AsyncClient(timeout=2.0) as client:
            while doors:
                for process in self.processes():
                    process.start()
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(doors[0])).status_code == httpx.codes.OK:
                        doors.pop(0)
                        continue
                late = asyncio.get_running_loop().time() > deadline_s
                assert not late, f"not ready in {timeout_s} s: {doors}\n{self.last_words()}"
                await asyncio.sleep(POLL_S)

    def last_words(self) -> str:
        return "\n".join(f"--- {one.name}\n{one.last_words()}" for one in self.processes())

    def _make_servers(self, listens: Sequence[int]) -> list[NatsServer]:
        return [
            NatsServer(
                self._folder / f"n{number}",
                port=port,
                log_path=self._folder / f"n{number}.log",
                config=self._cluster(number, listens[number]) if len(listens) > 1 else "",
            )
            for number, port in enumerate(fixed_ports(len(listens)))
        ]

    def _cluster(self, number: int, listen: int) -> str:
        """Return a server's part of the cluster: it can reach the others by `routes` only.

        What a server tells of its own address leads nowhere, and clients hear of no other server.
        """
        urls = ", ".join(f'"{url}"' for url in self.routes.urls(number))
        return (
            f'server_name: n{number}\ncluster {{ name: test, listen: "127.0.0.1:{listen}"'
            f', routes: [{urls}], no_advertise: true, advertise: "127.0.0.1:{NOWHERE}" }}\n'
        )

    def _nats(self) -> list[str]:
        """Return the servers of the next process."""
        home = next(self._homes, None)
        return ["--nats-url", self.nats_url if home is None else self.servers[home].url]

    def _add_engine(self, number: int, ranks: int) -> None:
        # Rank r adds r to both event ports, so they keep a distance.
        (port,), (events, replay) = fixed_ports(1), sorted(fixed_ports(2))
        while replay - events < ranks:
            events, replay = sorted(fixed_ports(2))
        url, worker = f"http://127.0.0.1:{port}", f"w{number}"
        arguments = ["mocker", "--http-port", str(port), "--kv-events-port", str(events)]
        arguments += ["--kv-replay-port", str(replay), "--block-size", str(BLOCK_SIZE)]
        arguments += ["--data-parallel-size", str(ranks)]
        arguments += ["--num-gpu-blocks-override", str(self.size.blocks)]
        arguments += ["--speedup-ratio", str(self.size.speedup)]
        self.engines.append(engine := self._process(f"engine-{number}", url, arguments))
        sidecar = ["worker", "--engine-url", url, "--bucket", BUCKET, "--worker-id", worker]
        self.sidecars.append(self._process(f"sidecar-{number}", url, [*sidecar, *self._nats()]))
        for rank in range(ranks):
            self.ranks[worker if ranks == 1 else f"{worker}-dp{rank}"] = (engine, rank)

    def _router(self, number: int, port: int) -> MeshProcess:
        arguments = ["router", "--bucket", BUCKET, "--router-id", f"r{number}", *self._nats()]
        arguments += ["--http-port", str(port), "--kv-cache-block-size", str(BLOCK_SIZE)]
        arguments += ["--stream-replicas", str(self.size.servers)]
        arguments += ["--snapshot-interval-s", str(self.size.snapshot_s)]
        arguments += self.size.router_options
        return self._process(f"router-{number}", f"http://127.0.0.1:{port}", arguments)

    def _process(self, name: str, url: str, arguments: list[str]) -> MeshProcess:
        return MeshProcess(name, url, arguments, self._folder / f"{name}.log")


@contextlib.contextmanager
def running_mesh(folder: Path, size: MeshSize) -> Iterator[ChaosMesh]:
    """Run a mesh for tests that each have an event loop of their own."""
    mesh = ChaosMesh(folder, size)
    try:
        asyncio.run(mesh.start())
        yield mesh
    finally:
        asyncio.run(mesh.stop())
