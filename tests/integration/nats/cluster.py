"""Three nats-servers on loopback that replicate each other."""

import asyncio
import socket
from pathlib import Path
from typing import Any

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.errors import TransportError
from kvmesh.transport.nats.jetstream.api import JetStream

NAMES = ("n1", "n2", "n3")
POLL_S = 0.1


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class NatsCluster:
    def __init__(self, folder: Path) -> None:
        ports = free_ports(len(NAMES))
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        self.servers = {
            name: NatsServer(
                folder / name,
                log_path=folder / f"{name}.log",
                config=f'server_name: {name}\ncluster {{ name: test, listen: "127.0.0.1:{port}", '
                f"routes: [{routes}] }}\n",
            )
            for name, port in zip(NAMES, ports, strict=True)
        }

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers.values())

    async def start(self) -> None:
        for server in self.servers.values():
            await server.start()

    async def stop(self) -> None:
        for server in self.servers.values():
            await server.stop()

    async def leader(self, jetstream: JetStream, stream: str) -> NatsServer:
        """Return the server that leads `stream`."""
        info = await jetstream.call(f"STREAM.INFO.{stream}", None, dict[str, Any])
        return self.servers[info["cluster"]["leader"]]

    async def wait_whole(self, jetstream: JetStream, stream: str, timeout_s: float = 60) -> None:
        """Wait until every replica of `stream` has what its leader has."""
        async with asyncio.timeout(timeout_s):
            while not await self._is_whole(jetstream, stream):  # noqa: ASYNC110  the server's state
                await asyncio.sleep(POLL_S)

    async def _is_whole(self, jetstream: JetStream, stream: str) -> bool:
        try:
            info = await jetstream.call(f"STREAM.INFO.{stream}", None, dict[str, Any])
        except TransportError:
            return False
        replicas = info["cluster"].get("replicas") or []
        return len(replicas) == len(NAMES) - 1 and all(
            each["current"] and not each.get("offline") for each in replicas
        )
