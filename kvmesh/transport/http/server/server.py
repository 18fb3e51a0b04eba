"""The HTTP server of every front door: a listener, its connections, and an orderly end."""

import asyncio
import contextlib
import socket
import ssl as tls
from typing import Final

import msgspec

from kvmesh.transport.http.server.connection import Connection
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.limits import BodyBudget, HttpLimits
from kvmesh.transport.http.server.listener import Handler, Listener
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.request_reader import Screen
from kvmesh.transport.http.wire.deadlines import DeadlineWheel
from kvmesh.transport.http.wire.sockets import BACKLOG, accept, listen, take, waiting

LAST_REQUESTS_S: Final = 0.25

__all__ = ["Exchange", "Handler", "HttpLimits", "HttpServer", "HttpStatistics", "Request"]


class HttpStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; `open_connections` and `open_requests` are of now."""

    open_connections: int
    open_requests: int
    accepted_connections: int
    refused_connections: int
    requests: int
    malformed_requests: int
    handler_failures: int


class HttpServer:
    """An HTTP/1.1 server. `handler` is called with each whole request, on the event loop.

    It may answer at once or keep the `Exchange` and answer later; it must not block. `screen` is
    asked about a request whose long body is still to come: what it refuses is not read. `bodies` is
    what request bodies take, of another listener of the process, too, if it counts there.
    """

    def __init__(
        self, handler: Handler, *, limits: HttpLimits | None = None, screen: Screen | None = None
    ) -> None:
        self._handler = handler
        self._screen = screen
        self.limits = limits or HttpLimits()
        self.bodies = BodyBudget(self.limits.max_total_body_bytes)
        self._listener: Listener | None = None
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._ssl: tls.SSLContext | None = None
        self._quiet = asyncio.Event()
        self.port = 0

    async def start(
        self,
        host: str,
        port: int,
        *,
        ssl: tls.SSLContext | None = None,
        backlog: int = BACKLOG,
        own_port: int | None = None,
    ) -> None:
        """Listen on every address of `host`; afterwards `port` is the real one.

        With an `own_port` other processes share `port`, and `self.port` is the former, which this
        one alone has, too; 0: none. Raises `TransportError` when the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        wheel = DeadlineWheel(loop)
        listener = Listener(self._handler, self.limits, wheel, self._screen, self.bodies)
        wheel.on_tick = listener.date.refresh
        listener.on_connection_gone = self._check_quiet
        sockets = listen(host, port, backlog=backlog, shared=own_port is not None)
        self.port = sockets[0].getsockname()[1]
        if own_port:
            sockets += listen(host, own_port, backlog=backlog)
            self.port = own_port
        self._listener, self._sockets, self._ssl = listener, sockets, ssl
        await accept(sockets, lambda: Connection(listener), self._servers, ssl=ssl, backlog=backlog)

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let open exchanges finish for `grace_s` seconds, cut the rest.

        On idle connections requests may be under way: they are kept for `LAST_REQUESTS_S` of these,
        and so are those that the kernel has taken meanwhile. Answers say that no other may follow.
        """
        listener = self._listener
        if listener is None:
            return
        listener.last = True
        untaken = waiting(self._sockets)
        self._stop_listening()
        for connection in listener.connections:
            connection.last = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await take(untaken, lambda: Connection(listener), ssl=self._ssl)
                if listener.connections:
                    await asyncio.sleep(LAST_REQUESTS_S)
                self._shut(listener, at_once=False)
                await self._quiet.wait()
        await self.close()

    async def close(self) -> None:
        """Stop at once: every connection is cut. Safe to call twice."""
        if self._listener is None:
            return
        self._shut(self._listener, at_once=True)
        await self._quiet.wait()
        self._listener.wheel.close()

    def statistics(self) -> HttpStatistics:
        """Return the counters."""
        listener = self._listener
        if listener is None:
            return HttpStatistics(0, 0, 0, 0, 0, 0, 0)
        return HttpStatistics(
            open_connections=len(listener.connections),
            open_requests=sum(connection.busy for connection in listener.connections),
            accepted_connections=listener.accepted,
            refused_connections=listener.refused,
            requests=listener.requests,
            malformed_requests=listener.problems,
            handler_failures=listener.crashes,
        )

    def _shut(self, listener: Listener, *, at_once: bool) -> None:
        """Accept nobody more, and have connections end, busy ones only `at_once`."""
        self._stop_listening()
        listener.draining = True
        for connection in list(listener.connections):
            connection.shut(at_once=at_once)
        self._check_quiet()

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._sockets = []

    def _check_quiet(self) -> None:
        listener = self._listener
        if listener is not None and listener.draining and not listener.connections:
            self._quiet.set()
