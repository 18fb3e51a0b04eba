"""Requests to engines and replicas over pooled connections."""

import asyncio
import ssl as tls
from typing import Final

from kvmesh.core.health.poison_guard import PoisonGuard
from kvmesh.transport.http.upstream.call import UpstreamCall
from kvmesh.transport.http.upstream.host import PoolState, UpstreamHost
from kvmesh.transport.http.upstream.messages import (
    OnChunk,
    UpstreamFailure,
    UpstreamOptions,
    UpstreamRequest,
    UpstreamSink,
    UpstreamStatistics,
)
from kvmesh.transport.http.upstream.origin import Origin
from kvmesh.transport.http.wire.headers import Headers

_DEATHS: Final = frozenset({"reset", "truncated"})

__all__ = [
    "OnChunk",
    "UpstreamCall",
    "UpstreamFailure",
    "UpstreamOptions",
    "UpstreamPool",
    "UpstreamRequest",
    "UpstreamSink",
    "UpstreamStatistics",
]


class UpstreamPool:
    """Keeps connections per origin; make it on the event loop that uses it.

    `ssl` is for https origins; the default verifies certificates against the system's CAs.
    `own_headers` go with every request: who forwards one leaves the client's of that name out.
    """

    def __init__(
        self, *, options: UpstreamOptions | None = None, ssl: tls.SSLContext | None = None
    ) -> None:
        self._state = PoolState(options or UpstreamOptions(), ssl)
        self.wheel = self._state.wheel
        own = self._state.options.authorization
        self.own_headers: Headers = ((b"authorization", own),) if own else ()
        self.poison = PoisonGuard()

    def send(self, request: UpstreamRequest, sink: UpstreamSink) -> UpstreamCall:
        """Send `request`; never waits, and never calls `sink` before it returns.

        Raises `ConfigError` for an origin that is not a URL, `ValueError` for a header that holds
        a line break.
        """
        state = self._state
        host = state.hosts.get(request.origin)
        if host is None:
            host = UpstreamHost(state, Origin.parse(request.origin))
            state.hosts[request.origin] = host
        call = UpstreamCall(host, request, sink)
        try:
            host.send(call)
        except Exception:
            call.cancel()
            raise
        return call

    def note_death(self, failure: UpstreamFailure, body: bytes) -> None:
        """Remember a request whose upstream closed the connection on it."""
        if failure.kind in _DEATHS:
            self.poison.died(body, failure.origin, self._state.loop.time())

    def refuses(self, body: bytes) -> bool:
        """Return whether a request with this body has ended too many upstreams of late."""
        return self.poison.refuses(body, self._state.loop.time())

    async def close(self) -> None:
        """Close every connection; running requests fail with "reset"."""
        state = self._state
        state.closed = True
        hosts = list(state.hosts.values())
        for host in hosts:
            host.close()
        while any(host.connections for host in hosts):  # noqa: ASYNC110  two turns, once
            await asyncio.sleep(0)
        state.wheel.close()

    def statistics(self) -> UpstreamStatistics:
        """Return the counts."""
        state = self._state
        hosts = state.hosts.values()
        return UpstreamStatistics(
            open_connections=sum(len(host.connections) for host in hosts),
            idle_connections=sum(len(host.idle) for host in hosts),
            connects=state.connects,
            reuses=state.reuses,
            stale_retries=state.stale_retries,
        )
