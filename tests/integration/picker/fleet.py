"""One bucket of real processes: NATS, engines with sidecars, pickers and routers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from kvmesh.app.ops.nats_server import NatsServer
from tests.chaos.process import MeshProcess, fixed_ports
from tests.integration.picker.asking import Gateway

BUCKET: Final = "picks"
WITHIN_S: Final = 60.0
POLL_S: Final = 0.05


class PickerProcess:
    """A picker, and a gateway that asks it."""

    def __init__(self, process: MeshProcess, address: str) -> None:
        self.process = process
        self.address = address
        self.url = process.url
        self.name = process.name


class PickerFleet:
    """Processes that share `server`; `start` and `stop` run all of them."""

    def __init__(
        self, folder: Path, server: NatsServer | None, namespace: str = "", *, engines: int
    ) -> None:
        self.server = server
        self.namespace = namespace
        self.client = httpx.AsyncClient(timeout=60)
        self._folder = folder
        self.processes: list[MeshProcess] = []
        self.pickers: list[PickerProcess] = []
        self.gateways: list[Gateway] = []
        self.workers: dict[str, str] = {}
        for number in range(engines):
            self._add_engine(number)

    def add_picker(self, *options: str, name: str = "") -> PickerProcess:
        """Add a picker that is not started yet."""
        http, grpc = fixed_ports(2)
        name = name or f"p{len(self.pickers)}"
        arguments = ["picker", "--bucket", BUCKET, "--router-id", name]
        arguments += ["--http-port", str(http), "--grpc-port", str(grpc), *self.nats(), *options]
        process = self._process(name, f"http://127.0.0.1:{http}", arguments)
        picker = PickerProcess(process, f"127.0.0.1:{grpc}")
        self.pickers.append(picker)
        return picker

    def add_router(self, name: str, *options: str) -> MeshProcess:
        """Add a router of the bucket that is not started yet."""
        (port,) = fixed_ports(1)
        arguments = ["router", "--bucket", BUCKET, "--router-id", name, *self.nats()]
        arguments += ["--http-port", str(port), *options]
        return self._process(name, f"http://127.0.0.1:{port}", arguments)

    def add_front(self) -> MeshProcess:
        """Add a meta-router that is not started yet."""
        (port,) = fixed_ports(1)
        arguments = ["meta-router", "--http-port", str(port), *self.nats()]
        return self._process("front", f"http://127.0.0.1:{port}", arguments)

    def nats(self) -> list[str]:
        if self.server is None:
            return []
        return ["--nats-url", self.server.url, "--namespace", self.namespace]

    async def start(self) -> None:
        """Start all that does not run, wait until all is ready."""
        for process in self.processes:
            process.start()
        for process in self.processes:
            if process.url:
                await self.until_answers(process)

    async def until_answers(self, process: MeshProcess, path: str = "/ready") -> None:
        """Wait until a process says that it is ready: an engine, that it is alive."""
        path = "/health" if process.name.startswith("engine") else path
        async with asyncio.timeout(WITHIN_S):
            while True:
                assert process.alive, process.last_words()
                with contextlib.suppress(httpx.HTTPError):
                    if (await self.client.get(f"{process.url}{path}")).is_success:
                        return
                await asyncio.sleep(POLL_S)

    async def status(self, url: str) -> dict[str, Any]:
        """Return what a replica tells of itself."""
        found: dict[str, Any] = (await self.client.get(f"{url}/v1/status")).json()
        return found

    def gateway(self, picker: PickerProcess) -> Gateway:
        """Return what asks a picker, on a connection of its own."""
        self.gateways.append(Gateway(picker.address))
        return self.gateways[-1]

    async def stop(self) -> None:
        for gateway in self.gateways:
            await gateway.close()
        await self.client.aclose()
        for process in reversed(self.processes):
            process.kill()

    def _add_engine(self, number: int) -> None:
        port, events, replay = fixed_ports(3)
        url, worker = f"http://127.0.0.1:{port}", f"w{number}"
        self.workers[f"127.0.0.1:{port}"] = worker
        arguments = ["mocker", "--http-port", str(port), "--speedup-ratio", "1"]
        arguments += ["--kv-events-port", str(events), "--kv-replay-port", str(replay)]
        self._process(f"engine-{number}", url, arguments)
        if self.server is not None:
            sidecar = ["worker", "--engine-url", url, "--bucket", BUCKET, "--worker-id", worker]
            self._process(f"sidecar-{number}", "", [*sidecar, *self.nats()])

    def engines(self) -> Iterator[str]:
        """Yield the engines as --worker takes them."""
        for address, worker in self.workers.items():
            yield f"{worker}=http://{address}"

    def _process(self, name: str, url: str, arguments: list[str]) -> MeshProcess:
        process = MeshProcess(name, url, arguments, self._folder / f"{name}.log", "json")
        self.processes.append(process)
        return process


@contextlib.asynccontextmanager
async def running(fleet: PickerFleet) -> AsyncIterator[PickerFleet]:
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.stop()
