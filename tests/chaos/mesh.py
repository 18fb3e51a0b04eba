"""A whole mesh of real processes on fixed ports: nats-servers, engines, sidecars, routers."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec

from kvmesh.app.nats_server import NatsServer
from kvmesh.errors import TransportError
from tests.chaos.process import MeshProcess, fixed_ports

BUCKET = "chaos"
BLOCK_SIZE = 16
POLL_S = 0.1


class MeshSize(msgspec.Struct, frozen=True):
    """`ranks` has one number of data-parallel ranks an engine; `servers` is 1 or 3."""

    servers: int = 1
    routers: int = 2
    ranks: tuple[int, ...] = (1, 2)
    blocks: int = 400
    speedup: float = 20.0
    snapshot_s: float = 3.0


class ChaosMesh:
    def __init__(self, folder: Path, size: MeshSize) -> None:
        self.size = size
        self._folder = folder
        self.servers = self._make_servers()
        self.engines: list[MeshProcess] = []
        self.sidecars: list[MeshProcess] = []
        self.ranks: dict[str, tuple[MeshProcess, int]] = {}
        nats = ["--nats-url", ",".join(server.url for server in self.servers)]
        for number, ranks in enumerate(size.ranks):
            self._add_engine(number, ranks, nats)
        *ports, front = fixed_ports(size.routers + 1)
        self.routers = [self._router(number, port, nats) for number, port in enumerate(ports)]
        front_url = f"http://127.0.0.1:{front}"
        self.front = self._process(
            "front", front_url, ["meta-router", "--http-port", str(front), *nats]
        )

    @property
    def nats_url(self) -> str:
        return ",".join(server.url for server in self.servers)

    def processes(self) -> Iterator[MeshProcess]:
        yield from (*self.engines, *self.sidecars, *self.routers, self.front)

    async def start(self) -> None:
        for server in self.servers:
            await server.start()
        for process in self.processes():
            process.start()
        await self.wait_ready()

    async def stop(self) -> None:
        for process in self.processes():
            process.kill()
        for server in self.servers:
            server.thaw()
            await server.stop()

    async def start_server(self, server: NatsServer) -> None:
        """Start it again, however often that takes."""
        async with asyncio.timeout(30):
            while server.process is None or server.process.poll() is not None:
                with contextlib.suppress(TransportError):
                    await server.start()

    async def heal(self) -> None:
        """Undo every fault: what was frozen goes on, what died is started, all is awaited."""
        for server in self.servers:
            server.thaw()
            await self.start_server(server)
        for process in self.processes():
            process.thaw()
        await self.wait_ready()

    async def wait_ready(self, timeout_s: float = 240) -> None:
        """Wait until all doors say they are ready; what gave up meanwhile is started again."""
        doors = [f"{one.url}/ready" for one in (*self.routers, self.front)]
        doors += [f"{one.url}/health" for one in self.engines]
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

    def _make_servers(self) -> list[NatsServer]:
        count = self.size.servers
        ports, routes = fixed_ports(count), fixed_ports(count)
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        return [
            NatsServer(
                self._folder / f"n{number}",
                port=port,
                log_path=self._folder / f"n{number}.log",
                config=f'server_name: n{number}\ncluster {{ name: test, listen: "127.0.0.1:{route}"'
                f", routes: [{urls}] }}\n"
                if count > 1
                else "",
            )
            for number, (port, route) in enumerate(zip(ports, routes, strict=True))
        ]

    def _add_engine(self, number: int, ranks: int, nats: list[str]) -> None:
        # Rank r adds r to both event ports, so they keep a distance.
        (port,), (events, replay) = fixed_ports(1), sorted(fixed_ports(2))
        while replay - events < ranks:
            events, replay = sorted(fixed_ports(2))
        url, worker = f"http://127.0.0.1:{port}", f"w{number}"
        arguments = ["mocker", "--port", str(port), "--kv-events-port", str(events)]
        arguments += ["--replay-port", str(replay), "--block-size", str(BLOCK_SIZE)]
        arguments += ["--data-parallel-size", str(ranks)]
        arguments += ["--num-gpu-blocks-override", str(self.size.blocks)]
        arguments += ["--speedup-ratio", str(self.size.speedup)]
        self.engines.append(engine := self._process(f"engine-{number}", url, arguments))
        sidecar = ["worker", "--engine-url", url, "--bucket", BUCKET, "--worker-id", worker, *nats]
        self.sidecars.append(self._process(f"sidecar-{number}", url, sidecar))
        for rank in range(ranks):
            self.ranks[worker if ranks == 1 else f"{worker}-dp{rank}"] = (engine, rank)

    def _router(self, number: int, port: int, nats: list[str]) -> MeshProcess:
        arguments = ["router", "--bucket", BUCKET, "--router-id", f"r{number}", *nats]
        arguments += ["--http-port", str(port), "--kv-cache-block-size", str(BLOCK_SIZE)]
        arguments += ["--stream-replicas", str(self.size.servers)]
        arguments += ["--snapshot-interval-s", str(self.size.snapshot_s)]
        return self._process(f"router-{number}", f"http://127.0.0.1:{port}", arguments)

    def _process(self, name: str, url: str, arguments: list[str]) -> MeshProcess:
        return MeshProcess(name, url, arguments, self._folder / f"{name}.log")
