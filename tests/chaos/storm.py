"""Faults drawn from a seed: who is killed, frozen or cut off when, and for how long."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvmesh.errors import KvMeshError
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from tests.chaos.mesh import ChaosMesh
from tests.chaos.process import MeshProcess

KINDS = (
    *("server", "server", "router", "router", "engine", "sidecar"),
    *("engine and sidecar", "all servers", "all routers", "all sidecars", "all engines"),
)
ROUTE_KINDS = ("partition", "partition", "route", "slow routes", "lossy routes")
SLOW_S, LOSS = 0.15, 0.1
LONG, LONG_S = 0.1, 12.0
STREAM = "KVMESH_EVENTS_chaos"


class Fault(msgspec.Struct, frozen=True):
    """`which` picks the victim; a server of -1 is the one that leads the stream.

    A "partition" parts a server from all others, a "route" one of its neighbours from it; `frozen`,
    bytes wait there until it is healed, else connections break.
    """

    at_s: float
    kind: str
    which: int
    frozen: bool
    lasts_s: float


def draw_faults(
    rng: random.Random, count: int, within_s: float, kinds: Sequence[str] = KINDS
) -> list[Fault]:
    """Return `count` faults of these kinds that begin within so many seconds."""
    return sorted(
        (
            Fault(
                at_s=round(rng.uniform(0.0, within_s), 2),
                kind=rng.choice(kinds),
                which=rng.randrange(-1, 6),
                frozen=rng.random() < 0.4,
                lasts_s=round(rng.uniform(0.2, LONG_S if rng.random() < LONG else 5.0), 2),
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
            number = await self._leader() if fault.which < 0 else fault.which
            await self._strike_servers(fault, [number % len(self._mesh.servers)])
            return
        if fault.kind == "all servers":
            await self._strike_servers(fault, list(range(len(self._mesh.servers))))
            return
        if fault.kind in ROUTE_KINDS:
            await self._strike_routes(fault)
            return
        victims = self._victims(fault)
        how = "SIGSTOP" if fault.frozen else "SIGKILL"
        self.report(f"{how} {', '.join(victim.name for victim in victims)} for {fault.lasts_s} s")
        for victim in victims:
            strike: Callable[[], None] = victim.freeze if fault.frozen else victim.kill
            strike()
        await asyncio.sleep(fault.lasts_s)
        for victim in victims:
            victim.thaw()
            victim.start()
        self.report(f"{', '.join(victim.name for victim in victims)} goes on")

    async def _strike_servers(self, fault: Fault, numbers: list[int]) -> None:
        servers = [self._mesh.servers[number] for number in numbers]
        names = f"nats-server {', '.join(map(str, numbers))}"
        leads = " (the stream's leader)" if fault.which < 0 and len(numbers) == 1 else ""
        how = "SIGSTOP" if fault.frozen else "SIGKILL"
        self.report(f"{how} {names}{leads} for {fault.lasts_s} s")
        for server in servers:
            if fault.frozen:
                server.freeze()
            else:
                server.kill()
        await asyncio.sleep(fault.lasts_s)
        for server in servers:
            server.thaw()
            await self._mesh.start_server(server)
        self.report(f"{names} goes on")

    async def _strike_routes(self, fault: Fault) -> None:
        """Part servers, or slow down all that passes between them, for a while."""
        routes, count = self._mesh.routes, len(self._mesh.servers)
        if fault.kind in {"slow routes", "lossy routes"}:
            self.report(f"{fault.kind} for {fault.lasts_s} s")
            strike, amount = (
                (routes.slow, SLOW_S) if fault.kind == "slow routes" else (routes.lose, LOSS)
            )
            strike(amount)
            await asyncio.sleep(fault.lasts_s)
            strike(0.0)
            self.report(f"no more {fault.kind}")
            return
        number = fault.which % count if fault.which >= 0 else await self._leader()
        others = [(number + 1) % count] if fault.kind == "route" else []
        what = f"n{number} from {f'n{others[0]}' if others else 'all others'}"
        self.report(f"{'hold' if fault.frozen else 'cut'} {what} for {fault.lasts_s} s")
        part = routes.hold if fault.frozen else routes.cut
        part(number, others)
        await asyncio.sleep(fault.lasts_s)
        routes.heal(number, others)
        self.report(f"healed: {what}")

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
        number = fault.which % len(mesh.engines)
        engine, sidecar = mesh.engines[number], mesh.sidecars[number]
        victims: dict[str, list[MeshProcess]] = {
            "router": [mesh.routers[fault.which % len(mesh.routers)]],
            "engine": [engine],
            "sidecar": [sidecar],
            "engine and sidecar": [engine, sidecar],
            "all routers": mesh.routers,
            "all sidecars": mesh.sidecars,
            "all engines": mesh.engines,
        }
        return victims[fault.kind]

    def report(self, what: str) -> None:
        """Note what was done, and when."""
        self.history.append(f"{time.monotonic() - self._start_s:6.2f} s  {what}")
