"""Requests to engines and replicas over pooled connections: a pool, and its origins."""

import asyncio
import ssl as tls
from typing import Final

from kvmesh._native import render
from kvmesh.core.members.poison_guard import PoisonGuard
from kvmesh.transport.http.upstream.call import UpstreamCall
from kvmesh.transport.http.upstream.connection import KnownAnswer, UpstreamConnection
from kvmesh.transport.http.upstream.messages import (
    Deadlines,
    Kind,
    OnChunk,
    UpstreamFailure,
    UpstreamOptions,
    UpstreamRequest,
    UpstreamSink,
    UpstreamStatistics,
)
from kvmesh.transport.http.upstream.origin import Origin
from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh.transport.http.wire.deadlines import NEVER, DeadlineWheel
from kvmesh.transport.http.wire.headers import Headers, HeadPattern

_DEATHS: Final = frozenset({"reset", "truncated"})
_LENGTHLESS: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})

__all__ = [
    "OnChunk", "UpstreamCall", "UpstreamFailure", "UpstreamOptions",
    "UpstreamPool", "UpstreamRequest", "UpstreamSink", "UpstreamStatistics",
]  # fmt: skip


class PoolState:
    """What the origins of one pool share."""

    def __init__(self, options: UpstreamOptions, ssl: tls.SSLContext | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.options = options
        self.wheel = DeadlineWheel(self.loop)
        self.hosts: dict[str, UpstreamHost] = {}
        self.closed = False
        self.connects = 0
        self.reuses = 0
        self.stale_retries = 0
        self._ssl = ssl

    def ssl(self) -> tls.SSLContext:
        """Return the TLS settings; the default, made on first use, trusts the system's CAs."""
        if self._ssl is None:
            self._ssl = tls.create_default_context()
        return self._ssl


class UpstreamHost:
    """The connections to one origin."""

    def __init__(self, pool: PoolState, origin: Origin) -> None:
        self._pool = pool
        credential = render(pool.options.own_headers())
        self.first_line_end = b" HTTP/1.1\r\nhost: %b\r\n%b" % (origin.authority, credential)
        self.origin = origin
        self.idle: list[UpstreamConnection] = []
        self.connections: set[UpstreamConnection] = set()
        self.connecting: dict[UpstreamCall, asyncio.Task[None]] = {}
        self.waiting: dict[UpstreamCall, asyncio.TimerHandle] = {}
        self.known_answer: KnownAnswer | None = None
        self._learnt_s = NEVER

    def send(self, call: UpstreamCall) -> None:
        """Send on a new connection, or wait for one: none is idle."""
        if self._has_room():
            self.connect(call)
        else:
            wait_s = self._pool.options.connect_timeout_s
            self.waiting[call] = self._pool.loop.call_later(wait_s, self._expire, call)

    def connect(self, call: UpstreamCall) -> None:
        """Open a connection for `call`, or for whoever waits longest when it is open."""
        if call not in self.connecting:
            self.connecting[call] = self._pool.loop.create_task(self._open(call))

    def is_stale(self, connection: UpstreamConnection) -> bool:
        """Tell whether a reset means "closed while idle"; counts it."""
        pool = self._pool
        stale = pool.wheel.now_s - connection.sent_at_s <= pool.options.stale_window_s
        if pool.closed or not stale:
            return False
        pool.stale_retries += 1
        return True

    def forget(self, call: UpstreamCall) -> None:
        """Drop a cancelled call that has no connection yet."""
        for left in (self.connecting.pop(call, None), self.waiting.pop(call, None)):
            if left is not None:
                left.cancel()
        self._fill_room()

    def released(self, connection: UpstreamConnection) -> None:
        """Give the connection to a waiting call, or keep it for a while.

        A call whose own connection is not open yet takes it, too: to open one takes several turns
        of the loop, in each of which everybody who has a connection may send again.
        """
        options = self._pool.options
        if self.waiting:
            self._next_waiting().take(connection)
            return
        for call in self.connecting:
            if call.waiting:
                call.take(connection)
                return
        if len(self.idle) >= options.max_idle or self._pool.closed:
            connection.transport.abort()
            return
        connection.deadline_s = self._pool.wheel.now_s + options.keepalive_s
        self.idle.append(connection)

    def whole_answer(self, data: bytes, body: bytes, head: ResponseHead) -> None:
        """Know the head from now on: engines' differ once a second, by their date."""
        now_s = self._pool.wheel.now_s
        if now_s != self._learnt_s:
            self._learnt_s = now_s
            pattern = HeadPattern.learn(data, body) if body else None
            self.known_answer = None if pattern is None else (pattern, head.without_length())

    def opened(self, connection: UpstreamConnection) -> None:
        """Count the connection."""
        self.connections.add(connection)

    def lost(self, connection: UpstreamConnection) -> None:
        """Forget the connection; a waiting call may open another."""
        self.connections.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self._fill_room()

    def _next_waiting(self) -> UpstreamCall:
        call = next(iter(self.waiting))
        self.waiting.pop(call).cancel()
        return call

    def _has_room(self) -> bool:
        limit = self._pool.options.max_connections
        return limit is None or len(self.connections) + len(self.connecting) < limit

    def _fill_room(self) -> None:
        """Connect for calls that wait; an origin with nothing left is forgotten."""
        while self.waiting and self._has_room() and not self._pool.closed:
            self.connect(self._next_waiting())
        if not self.connections and not self.connecting and not self.waiting:
            self._pool.hosts.pop(self.origin.url, None)

    def close(self) -> None:
        """Cut every connection and fail every call."""
        for call in [*self.connecting, *self.waiting]:
            self.forget(call)
            if call.waiting:
                text = f"{self.origin.url}: the connection pool was closed"
                call.failed(UpstreamFailure("before_send", "reset", text, self.origin.url))
        for connection in list(self.connections):
            connection.close()

    async def _open(self, call: UpstreamCall) -> None:
        pool, origin = self._pool, self.origin
        pool.connects += 1
        deadlines = Deadlines(pool.options.first_byte_timeout_s, pool.options.idle_timeout_s)
        connection = UpstreamConnection(self, origin.url, pool.wheel, deadlines)
        try:
            async with asyncio.timeout(pool.options.connect_timeout_s):
                await pool.loop.create_connection(
                    lambda: connection,
                    origin.host,
                    origin.port,
                    ssl=pool.ssl() if origin.secure else None,
                    server_hostname=origin.host if origin.secure else None,
                )
            self._connected(call, connection)
        except asyncio.CancelledError:
            connection.abandon()
            raise
        except TimeoutError:
            connection.abandon()
            self._refused(call, "timeout", f"no connection in {pool.options.connect_timeout_s:g} s")
        except (OSError, UnicodeError) as error:
            self._refused(call, "refused", str(error))
        except Exception as error:  # noqa: BLE001  a task's end that nobody else sees
            connection.abandon()
            self.connecting.pop(call, None)
            self._fill_room()
            call.crash(error)

    def _connected(self, call: UpstreamCall, connection: UpstreamConnection) -> None:
        if connection.transport.is_closing():
            self._refused(call, "reset", "connection closed as soon as it was open")
            return
        if why := self._why_not(connection):
            connection.transport.abort()
            self._refused(call, "refused", why)
            return
        self.connecting.pop(call, None)
        if call.waiting:
            call.take(connection)
        else:
            self.released(connection)

    def _why_not(self, connection: UpstreamConnection) -> str:
        """Return why the address that was connected to may be sent nothing."""
        judge = self._pool.options.why_not_peer
        peer = connection.transport.get_extra_info("peername")
        return judge(self.origin.host, self.origin.port, peer[0]) if judge and peer else ""

    def _refused(self, call: UpstreamCall, kind: Kind, text: str) -> None:
        self.connecting.pop(call, None)
        self._fill_room()
        if call.waiting:
            url = self.origin.url
            call.failed(UpstreamFailure("before_send", kind, f"{url}: {text}", url))

    def _expire(self, call: UpstreamCall) -> None:
        del self.waiting[call]
        text = f"{self.origin.url}: all {self._pool.options.max_connections} connections are busy"
        call.failed(UpstreamFailure("before_send", "busy", text, self.origin.url))


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
        self.first_byte_s = self._state.options.first_byte_timeout_s
        self.idle_s = self._state.options.idle_timeout_s
        self.own_headers: Headers = self._state.options.own_headers()
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
        length = b""
        if request.body or request.method not in _LENGTHLESS:
            length = b"content-length: %d\r\n" % len(request.body)
        head = b"".join(
            (
                request.method.encode(),
                b" ",
                request.target,
                host.first_line_end,
                request.block,
                render(request.headers),
                length,
                b"\r\n",
            )
        )
        call = UpstreamCall(host, request, head, sink)
        idle = host.idle
        try:
            # The most recently used idle connection, else a new one, else wait for one.
            while idle:
                connection = idle.pop()
                if not connection.transport.is_closing():
                    state.reuses += 1
                    try:
                        call.send_on(connection)
                    except Exception:
                        connection.transport.abort()
                        raise
                    return call
            host.send(call)
        except Exception:
            call.cancel()
            raise
        return call

    async def open(
        self, origin: str, protocol: asyncio.Protocol
    ) -> asyncio.Transport | UpstreamFailure:
        """Open a connection that is the caller's to use and to close, for what is no HTTP; return
        why there is none. Raises `ConfigError` for an origin that is not a URL.
        """
        state, found = self._state, Origin.parse(origin)
        limit_s = state.options.connect_timeout_s
        kind: Kind = "refused"
        try:
            async with asyncio.timeout(limit_s):
                transport, _ = await state.loop.create_connection(
                    lambda: protocol,
                    found.host,
                    found.port,
                    ssl=state.ssl() if found.secure else None,
                    server_hostname=found.host if found.secure else None,
                )
        except TimeoutError:
            kind, why = "timeout", f"no connection in {limit_s:g} s"
        except (OSError, UnicodeError) as error:
            why = str(error)
        else:
            judge, peer = state.options.why_not_peer, transport.get_extra_info("peername")
            why = judge(found.host, found.port, peer[0]) if judge and peer else ""
            if not why:
                return transport
            transport.abort()
        return UpstreamFailure("before_send", kind, f"{origin}: {why}", origin)

    def quiet_s(self, origin: str) -> float:
        """Return for how long no answer under way there has brought a byte; infinite for none.

        O(connections to it).
        """
        state = self._state
        host = state.hosts.get(origin)
        received_s = (
            max((one.received_s() for one in host.connections), default=-NEVER) if host else -NEVER
        )
        return max(0.0, state.loop.time() - received_s)

    def note_death(self, failure: UpstreamFailure, key: bytes) -> None:
        """Remember a request whose upstream closed the connection on it; `key_of` its body."""
        if failure.kind in _DEATHS:
            self.poison.died(key, failure.origin, self._state.loop.time())

    def refuses(self, key: bytes) -> bool:
        """Return whether requests with the body of this key ended too many upstreams of late."""
        return self.poison.refuses(key, self._state.loop.time())

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
