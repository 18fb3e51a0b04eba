"""Faults drawn from a seed: who is killed or frozen when, and for how long."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvmesh.errors import KvMeshError
from kvmesh.transport.nats.connection import NatsConnection, NatsOptions
from kvmesh.transport.nats.jetstream import JetStream
from tests.chaos.mesh import ChaosMesh
from tests.chaos.process import MeshProcess

KINDS = ("server", "server", "router", "router", "engine", "sidecar", "engine and sidecar")
STREAM = "KVMESH_EVENTS_chaos"


class Fault(msgspec.Struct, frozen=True):
    """`which` picks the victim; a server of -1 is the one that leads the stream."""

    at_s: float
    kind: str
    which: int
    frozen: bool
    lasts_s: float


def draw_faults(rng: random.Random, count: int, within_s: float) -> list[Fault]:
    """Return `count` faults that begin within so many seconds."""
    return sorted(
        (
            Fault(
                at_s=round(rng.uniform(0.0, within_s), 2),
                kind=rng.choice(KINDS),
                which=rng.randrange(-1, 6),
                frozen=rng.random() < 0.4,
                lasts_s=round(rng.uniform(0.2, 5.0), 2),
            )
            for _ in range(count)
        ),
        key=lambda fault: fault.at_s,
    )


class Storm:
    """Brings faults upon a mesh; `history` tells what was done, in words and seconds."""

    def __init__(self, mesh: ChaosMesh) -> None:
        self.history: list[str] = []
        self._mesh = mesh
        self._start_s = time.monotonic()

    async def rage(self, faults: Sequence[Fault]) -> None:
        """Let all faults happen and end; what died by itself meanwhile is for `heal`."""
        self._start_s = time.monotonic()
        await asyncio.gather(*map(self._happen, faults))

    async def _happen(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        if fault.kind == "server":
            await self._strike_server(fault)
            return
        victims = self._victims(fault)
        how = "SIGSTOP" if fault.frozen else "SIGKILL"
        self._tell(f"{how} {', '.join(victim.name for victim in victims)} for {fault.lasts_s} s")
        for victim in victims:
            strike: Callable[[], None] = victim.freeze if fault.frozen else victim.kill
            strike()
        await asyncio.sleep(fault.lasts_s)
        for victim in victims:
            victim.thaw()
            victim.start()
        self._tell(f"{', '.join(victim.name for victim in victims)} goes on")

    async def _strike_server(self, fault: Fault) -> None:
        servers = self._mesh.servers
        number = await self._leader() if fault.which < 0 else fault.which % len(servers)
        server = servers[number]
        leads = " (the stream's leader)" if fault.which < 0 and len(servers) > 1 else ""
        how = "SIGSTOP" if fault.frozen else "SIGKILL"
        self._tell(f"{how} nats-server {number}{leads} for {fault.lasts_s} s")
        if fault.frozen:
            server.freeze()
        else:
            server.kill()
        await asyncio.sleep(fault.lasts_s)
        server.thaw()
        await self._mesh.start_server(server)
        self._tell(f"nats-server {number} goes on")

    async def _leader(self) -> int:
        """Return the number of the server that leads the stream; 0 when nobody can tell."""
        if len(self._mesh.servers) == 1:
            return 0
        connection = NatsConnection(NatsOptions(url=self._mesh.nats_url, name="storm"))
        try:
            await connection.connect()
            jetstream = JetStream(connection)
            info = await jetstream.call(f"STREAM.INFO.{STREAM}", None, dict[str, Any])
            return int(info["cluster"]["leader"].removeprefix("n"))
        except (KvMeshError, ValueError, KeyError):
            return 0
        finally:
            await connection.close()

    def _victims(self, fault: Fault) -> list[MeshProcess]:
        mesh = self._mesh
        match fault.kind:
            case "router":
                if fault.which == 0:
                    return list(mesh.routers)
                return [mesh.routers[fault.which % len(mesh.routers)]]
            case "engine":
                return [mesh.engines[fault.which % len(mesh.engines)]]
            case "sidecar":
                return [mesh.sidecars[fault.which % len(mesh.sidecars)]]
            case _:
                number = fault.which % len(mesh.engines)
                return [mesh.engines[number], mesh.sidecars[number]]

    def _tell(self, what: str) -> None:
        self.history.append(f"{time.monotonic() - self._start_s:6.2f} s  {what}")
