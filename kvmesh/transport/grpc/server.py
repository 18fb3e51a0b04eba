"""The gRPC server: listeners, connections, and an orderly end."""

import asyncio
import contextlib
import ssl
import ssl as tls
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from kvmesh.errors import ConfigError
from kvmesh.transport.grpc.connection import Connection, Routes
from kvmesh.transport.grpc.limits import GrpcLimits, GrpcStatistics
from kvmesh.transport.grpc.stream import GrpcStream
from kvmesh.transport.http.wire.deadlines import DeadlineWheel
from kvmesh.transport.http.wire.sockets import accept, listen

__all__ = ["GrpcLimits", "GrpcServer", "GrpcStatistics", "GrpcStream"]

Report = Callable[[Exception, str], None]
"""Logs and counts an error of ours by the path of its call, "" for none."""


class GrpcServer:
    """A gRPC server of streams. `routes` has what is called with each new stream, by its path.

    A handler sets the stream's callbacks and returns; nothing may block. A path that is not in
    `routes` is answered UNIMPLEMENTED. What a handler or a callback raises goes to `report`, its
    stream ends with INTERNAL, the others go on.
    """

    def __init__(
        self, routes: Routes, limits: GrpcLimits | None = None, report: Report | None = None
    ) -> None:
        self.routes = routes
        self.limits = limits or GrpcLimits()
        self._report = report
        self._servers: list[asyncio.Server] = []
        self._quiet = asyncio.Event()
        self.connections: set[Connection] = set()
        self.draining = False
        self.accepted = self.refused = self.streams = self.messages = 0
        self.resets = self.protocol_errors = self._failures = 0
        self.held_bytes = 0
        self.port = 0

    async def start(self, host: str, port: int, ssl: tls.SSLContext | None = None) -> None:
        """Listen on every address of `host`; afterwards `port` is the real one.

        Without `ssl` clients speak HTTP/2 by prior knowledge. Raises `TransportError` when the
        address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self.wheel = DeadlineWheel(loop)
        sockets = listen(host, port)
        self.port = sockets[0].getsockname()[1]
        await accept(sockets, lambda: Connection(self), self._servers, ssl=ssl)

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, send GOAWAY, let open streams end for `grace_s` seconds, cut the rest."""
        if not self._servers:
            return
        self._stop_accepting()
        for connection in list(self.connections):
            connection.drain()
        self.gone()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), grace_s)
        await self.close()

    async def close(self) -> None:
        """Stop at once: every connection is cut. Safe to call twice."""
        if not self.port:
            return
        self._stop_accepting()
        for connection in list(self.connections):
            connection.cut()
        self.gone()
        await self._quiet.wait()
        self.wheel.close()

    def statistics(self) -> GrpcStatistics:
        """Return the counters."""
        return GrpcStatistics(
            open_connections=len(self.connections),
            open_streams=sum(connection.open_streams for connection in self.connections),
            accepted_connections=self.accepted,
            refused_connections=self.refused,
            streams=self.streams,
            messages=self.messages,
            resets=self.resets,
            protocol_errors=self.protocol_errors,
            handler_failures=self._failures,
        )

    def report(self, error: Exception, path: str) -> None:
        """Count an error of ours and pass it on."""
        self._failures += 1
        if self._report is None:
            structlog.get_logger().error("gRPC stream crashed", path=path, exc_info=error)
        else:
            self._report(error, path)

    def relieve(self) -> None:
        """Cut the connection for which most is held, of the peer for which most is: many small ones
        of a stranger must not cost a gateway its own.
        """
        held = Counter[str]()
        for one in self.connections:
            held[one.peer] += one.held_bytes
        [(peer, _)] = held.most_common(1)
        greedy = max(
            (one for one in self.connections if one.peer == peer), key=lambda one: one.held_bytes
        )
        structlog.get_logger().warning(
            "gRPC connection cut: its messages are not whole, or wait for its window",
            peer=peer,
            held_bytes=greedy.held_bytes,
            of_all=self.held_bytes,
            limit=self.limits.max_held_bytes,
        )
        self.protocol_errors += 1
        greedy.cut()

    def gone(self) -> None:
        """Notice that the last connection of a server that drains is gone."""
        if self.draining and not self.connections:
            self._quiet.set()

    def _stop_accepting(self) -> None:
        self.draining = True
        for server in self._servers:
            server.close()
        self._servers.clear()


_ALPN: Final = ["h2"]


def grpc_context(cert: Path, key: Path | None, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return the context of a port for gRPC. Raises `ConfigError` for unusable files."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    try:
        context.load_cert_chain(cert, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(str(path) for path in (cert, key, client_ca) if path is not None)
        raise ConfigError(f"TLS files {names}: {error}") from error
    return context
