"""Several processes of one role behind one port: how they are kept alive.

Each listens at the shared port (SO_REUSEPORT: the kernel deals connections out) and, for who must
reach just this one, at a port of its own above it. A process that dies takes the connections that
it had accepted with it; the others go on, and it is started again.
"""

import asyncio
import os
import sys
import tempfile
from typing import Final

import msgspec

from kvmesh.app.process.listening import why_taken
from kvmesh.app.process.place import VARIABLE
from kvmesh.app.process.running import DIE_WITH_PARENT, Stop
from kvmesh.app.process.supervisor import Child, ChildSpec
from kvmesh.core.members.url_rules import LAST_PORT
from kvmesh.errors import ConfigError
from kvmesh.observe import get_logger
from kvmesh.tasks import end_tasks
from kvmesh.transport.http.wire.sockets import ANY_HOST, announced_host

LOOPBACK: Final = "127.0.0.1"
POLL_S: Final = 0.1
MARGIN_S: Final = 5.0
"""What a process may take to end beyond its drain."""

MOST_PROCESSES: Final = 256


class ProcessPlan(msgspec.Struct, frozen=True):
    """`count` processes of this very command line behind `port`, which end within `drain_s`.

    `dashboard_port` is where one page shows all of them, by a meta-router of their own; 0: none.
    """

    count: int
    host: str
    port: int
    drain_s: float
    bucket: str
    dashboard_port: int = 0

    def ports(self) -> list[int]:
        """Return every port that is listened on."""
        shown = [self.dashboard_port] if self.dashboard_port else []
        return [*range(self.port, self.port + self.count + 1), *shown]

    def children(self, folder: str) -> list[Child]:
        """Return the processes, not started."""
        found: list[Child] = []
        for number in range(self.count):
            own = {VARIABLE: f"{number}/{self.count}/{folder}", DIE_WITH_PARENT: "1"}
            spec = ChildSpec(name=f"process-{number}", args=sys.argv[1:])
            terminate_s = self.drain_s + MARGIN_S
            found.append(Child(spec, os.environ | own, None, terminate_s=terminate_s))
        if self.dashboard_port:
            spec = ChildSpec(name="dashboard", args=self._dashboard())
            # Settings in variables are those of routers.
            kept = {key: value for key, value in os.environ.items() if key[:7] != "KVMESH_"}
            found.append(Child(spec, kept | {DIE_WITH_PARENT: "1"}, None))
        return found

    def _dashboard(self) -> list[str]:
        host = announced_host(self.host)
        ports = range(self.port + 1, self.port + 1 + self.count)
        named = [f"--replica={self.bucket}=http://{host}:{port}" for port in ports]
        listens = "--http-host", self.host, "--http-port", str(self.dashboard_port)
        return ["meta-router", *named, *listens, "--drain-s", "0"]


async def run_processes(plan: ProcessPlan, stop: Stop) -> None:
    """Keep a plan's processes running until `stop`, then have all drain.

    Raises `ConfigError` for too many, a taken port, and when one refuses to start.
    """
    count, port = plan.count, plan.port
    if count > MOST_PROCESSES or not 0 < port < LAST_PORT - count:
        raise ConfigError(
            f"--processes {count} --http-port {port}: name at most {MOST_PROCESSES}, and a port "
            f"behind which {count + 1} more are free: one for each process, one for the dashboard"
        )
    for one in plan.ports():
        _refuse_taken(plan.host, one)
    with tempfile.TemporaryDirectory(prefix="kvmesh-") as folder:
        children = plan.children(folder)
        try:
            for child in children:
                await child.start()
            get_logger().info("processes start", count=count, port=port, ports=plan.ports()[1:])
            await _until(stop, children, plan)
        finally:
            await asyncio.gather(*(child.stop() for child in children))


async def _until(stop: Stop, children: list[Child], plan: ProcessPlan) -> None:
    """Return at `stop`. Raises `ConfigError` when a process ends by itself before all listen."""
    stopping = asyncio.ensure_future(stop.wait())
    listening = asyncio.ensure_future(_listening(plan))
    refused = [asyncio.ensure_future(child.wait_refused()) for child in children]
    try:
        wanted = {stopping, listening, *refused}
        done, _ = await asyncio.wait(wanted, return_when=asyncio.FIRST_COMPLETED)
        if listening in done:
            for child in children:
                child.proven = True
            await stopping
        elif stopping not in done:
            raise ConfigError("a process cannot start; it says above why")
    finally:
        await end_tasks(stopping, listening, *refused)


async def _listening(plan: ProcessPlan) -> None:
    """Return when every process listens at its own port."""
    host = LOOPBACK if plan.host in ANY_HOST else plan.host
    for port in plan.ports()[1:]:
        while True:
            try:
                _, writer = await asyncio.open_connection(host, port)
            except OSError:
                await asyncio.sleep(POLL_S)
            else:
                writer.close()
                break


def _refuse_taken(host: str, port: int) -> None:
    """Raise `ConfigError` for a port that somebody has: two would share it without a word."""
    if why := why_taken(host, port):
        raise ConfigError(
            f"port {port} of {host or '*'}, which --processes needs, cannot be listened on "
            f"({why}): stop who has it (`ss -ltnp`), or name another --http-port"
        )
