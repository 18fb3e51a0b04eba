"""One client connection: requests out of bytes, one exchange at a time, deadlines, closing."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.half_close import HalfClosed
from kvmesh.transport.http.server.listener import Listener
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.request_reader import BODY, HEAD, IDLE, Phase, RequestReader
from kvmesh.transport.http.wire.deadlines import NEVER, RESTING
from kvmesh.transport.http.wire.problem import Problem
from kvmesh.transport.http.wire.sockets import has_unread

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FULL = Problem(503, "too many connections", code="too_many_connections", retry_after_s=1)
_PATIENT = 32
"""Connections above the limit that are waited for, so that they read why they were turned away."""
Diverted = tuple[Callable[[bytes], object], Callable[[], object]]
"""Who takes a connection's bytes that are HTTP no more, and ends it in an orderly way."""

_SLOW = Problem(408, "the request took too long to arrive", code="request_timeout")


class Connection(asyncio.Protocol):
    """Reads requests, runs the handler on one at a time, keeps the others waiting.

    While requests wait (pipelining) nothing more is read, so a client's leaving is then noticed
    only with the answer in progress.
    """

    __slots__ = (
        "_awaits_end", "_body_mark", "_client", "_diverted", "_exchange", "_half_closed",
        "_lingering", "_listener", "_reader", "_reading_paused", "_secure", "_serving",
        "_writing_paused", "date", "deadline_s", "last", "spoke", "transport",
    )  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._reader = RequestReader(listener.limits, listener.bodies, listener.screen)
        self._exchange: Exchange | None = None
        self._diverted: Diverted | None = None
        self._half_closed: HalfClosed | None = None
        self._awaits_end = False
        self._lingering = False
        self._reading_paused = False
        self._writing_paused = False
        self._serving = False
        self._body_mark = 0
        self._client = ""
        self._secure = False
        self.date = listener.date
        self.last = False
        self.deadline_s = NEVER
        self.spoke = -1

    @property
    def busy(self) -> bool:
        """Return whether a request is being read or answered."""
        return self._exchange is not None or self._reader.phase is not IDLE

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or refuse it when there are too many."""
        self.transport = cast("asyncio.Transport", transport)
        listener = self._listener
        listener.accepted += 1
        limits = listener.limits
        self.transport.set_write_buffer_limits(high=limits.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        self._client = peer[0] if isinstance(peer, tuple) else ""
        self._secure = transport.get_extra_info("sslcontext") is not None
        self.last = listener.last
        served = len(listener.connections) - listener.turned_away
        listener.connections.add(self)
        listener.wheel.add(self)
        self.deadline_s = listener.wheel.now_s + limits.header_timeout_s
        if served >= limits.max_connections or listener.draining:
            listener.refused += 1
            # A request that comes behind the refusal would turn it into a reset.
            self._awaits_end = listener.turned_away < _PATIENT
            listener.turned_away += self._awaits_end
            self._refuse(_FULL)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the handler, and let go of everything."""
        del exc
        listener = self._listener
        listener.wheel.discard(self)
        listener.connections.discard(self)
        listener.turned_away -= self._awaits_end
        self._lose_exchange()
        self._drop_ready()
        self._reader.close()
        if listener.on_connection_gone is not None:
            listener.on_connection_gone()

    def data_received(self, data: bytes) -> None:
        """Feed the reader, then serve what became whole."""
        if self._lingering:
            return
        if self.spoke <= RESTING:
            self._listener.wheel.wake(self)
        reader = self._reader
        before = reader.phase
        try:
            if before is IDLE and self._exchange is None and not self._writing_paused:
                request = reader.take(data)
                if request is not None:
                    self.deadline_s = NEVER
                    self._handle(request)
                    return
            if self._diverted is not None and self._exchange is not None:
                self._exchange.scope.enter(self._diverted[0], data)
            else:
                self._feed(data, before)
        except Exception as error:  # noqa: BLE001  the connection's edge: the others go on
            self.crash(error)

    def _feed(self, data: bytes, before: Phase) -> None:
        """Read what is not one whole request, behind others or in pieces."""
        reader = self._reader
        reader.feed(data)
        if self._exchange is not None:
            if reader.ready:
                self._hold_back()
        elif reader.ready:
            self._serve()
        else:
            self._watch_arrival(before, reader.phase)
            if reader.crowded:
                self._breathe()

    def eof_received(self) -> bool:
        """Take the client's FIN: it has no further request, or it is gone. TLS cannot tell."""
        if self._lingering or self._exchange is None:
            return False
        sock = self.transport.get_extra_info("socket")
        if self._secure or sock is None or self._diverted is not None:
            self._leave()
            return False
        self._half_closed = HalfClosed(sock, self._leave)
        self.last = True
        self._exchange.reach_out()
        return True

    def pause_writing(self) -> None:
        """Tell the exchange that its client is slow, and watch that it moves at all."""
        self._writing_paused = True
        self.deadline_s = self._listener.wheel.now_s + self._listener.limits.write_stall_s
        exchange = self._exchange
        if exchange is not None and exchange.on_pause is not None:
            exchange.scope.enter(exchange.on_pause)

    def resume_writing(self) -> None:
        """Tell the exchange to go on."""
        self._writing_paused = False
        exchange = self._exchange
        if exchange is None:
            self._rest()
            return
        self.deadline_s = NEVER
        if exchange.on_resume is not None:
            exchange.scope.enter(exchange.on_resume)

    def is_idle(self) -> bool:
        """Return whether its client sends nothing, nothing is sent, and none of it is under way."""
        at_work = self._exchange is not None or self._writing_paused or self._lingering
        return not at_work and self._reader.phase is IDLE and not self.transport.is_closing()

    def on_deadline(self, now: float) -> None:
        """Act on what took too long in the present phase."""
        phase = self._reader.phase
        limits = self._listener.limits
        stuck = self._writing_paused or self._diverted is not None
        if stuck or self._lingering or self.transport.is_closing():
            self._leave()
        elif self._exchange is not None:
            self.deadline_s = NEVER
        elif phase is BODY:
            grown = self._reader.body_bytes - self._body_mark
            self._body_mark = self._reader.body_bytes
            self.deadline_s = now + limits.body_window_s
            least = limits.min_body_bytes_per_s * limits.body_window_s
            if self._listener.bodies.tight:
                # Slow bodies must not hold the room that all share.
                least = max(least, self._body_mark / 4)
            if grown < least:
                self._refuse(_SLOW)
        elif phase is HEAD:
            self._refuse(_SLOW)
        else:
            self.transport.close()

    def crash(self, error: Exception) -> None:
        """Give the connection up for an error of ours, with the request on it."""
        if self._exchange is None:
            self.report(error, b"")
        else:
            self._exchange.scope.crash(error)
        if self.transport.is_closing():
            self._leave()
        else:
            self._close()

    # the exchange's side

    def report(self, error: Exception, request_id: bytes) -> None:
        """Log and count an error of ours."""
        self._listener.report(error, request_id)

    def reset(self) -> None:
        """Close with a TCP reset."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    def divert(self, take: Callable[[bytes], object], leave: Callable[[], object]) -> bool:
        """Give all further bytes to `take` until the exchange ends, which `leave` is asked to do,
        within `linger_s`, when the server closes; False where bytes have come already.
        """
        if self._reader.ready or self._reader.phase is not IDLE:
            return False
        self._diverted = take, leave
        return True

    def answered(self, *, reusable: bool) -> None:
        """Go on to the next request, or close."""
        self._exchange = self._diverted = None
        if self._half_closed is not None:
            self._half_closed.stop()
            reusable = False
        if not reusable:
            self._close()
        elif not self._serving:
            reader = self._reader
            if self._reading_paused or self.last or reader.ready or reader.phase is not IDLE:
                self._rest()
            else:
                listener = self._listener
                self.deadline_s = listener.wheel.now_s + listener.limits.idle_timeout_s

    def shut(self, *, at_once: bool) -> None:
        """Close an idle connection, with `at_once` any; what came unread is served otherwise."""
        self.last = True
        if at_once and self._diverted is not None and self._exchange is not None:
            self._exchange.scope.enter(self._diverted[1])
            self.deadline_s = self._listener.wheel.now_s + self._listener.limits.linger_s
        elif at_once:
            self._leave()
        elif self.busy or self._writing_paused:
            return
        elif has_unread(self.transport):
            self.deadline_s = self._listener.wheel.now_s + self._listener.limits.linger_s
        else:
            self.transport.close()

    # inside

    def _watch_arrival(self, before: Phase, phase: Phase) -> None:
        """Set the deadline of a request that has only begun to arrive."""
        listener = self._listener
        if phase is BODY and before is not BODY:
            self._body_mark = 0
            self.deadline_s = listener.wheel.now_s + listener.limits.body_window_s
        elif phase is HEAD and before is IDLE:
            self.deadline_s = listener.wheel.now_s + listener.limits.header_timeout_s
        if self._reader.wants_continue:
            self._reader.wants_continue = False
            self.transport.write(_CONTINUE)

    def _rest(self) -> None:
        """Serve a waiting request, or wait for the next one."""
        if self._reader.ready:
            self._serve()
            return
        listener = self._listener
        if self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()
        if self._reader.phase is IDLE:
            self.deadline_s = listener.wheel.now_s + listener.limits.idle_timeout_s
            if listener.draining:
                self.transport.close()
        else:
            self._watch_arrival(IDLE, self._reader.phase)

    def _serve(self) -> None:
        """Run the handler on waiting requests until one stays unanswered."""
        ready = self._reader.ready
        self._serving = True
        self.deadline_s = NEVER
        while ready and self._exchange is None and not self._writing_paused:
            item = ready.pop(0)
            if self.transport.is_closing() or self._lingering:
                self._drop_ready()
            elif isinstance(item, Problem):
                self._refuse(item)
            else:
                self._handle(item)
        self._serving = False
        if self._exchange is None and not self._writing_paused and not self._lingering:
            if not self.transport.is_closing():
                self._rest()
        elif ready:
            self._hold_back()

    def _breathe(self) -> None:
        """Read on in the next turn of the event loop: many reads may come in one."""
        self._reader.crowded = False
        self.transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if not (self._reading_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def _hold_back(self) -> None:
        """Read nothing more while requests wait."""
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def _handle(self, request: Request) -> None:
        listener = self._listener
        listener.requests += 1
        request.client = self._client
        request.secure = self._secure
        ids, sent = listener.request_ids, request.head.get(b"x-request-id")
        if sent is None:
            ids.count += 1  # as `accept` does
            request_id = b"%b-%x" % (ids.prefix, ids.count)
        else:
            request_id = ids.accept(sent)
        exchange = Exchange(request, self, request_id)
        self._exchange = exchange
        try:
            listener.handler(exchange)
        except Exception as error:  # noqa: BLE001  the HTTP edge: logged, counted, answered
            exchange.scope.crash(error)

    def _refuse(self, problem: Problem) -> None:
        """Answer a request that is not one, and close."""
        listener = self._listener
        listener.problems += 1
        if self._reader.phase is BODY:
            self._reader.close()  # what came of it is nobody's, and takes room
        request = Request("GET", b"/", [])
        request.keep_alive = False
        self._exchange = exchange = Exchange(request, self, listener.request_ids.accept(None))
        exchange.fail(problem)

    def _close(self) -> None:
        """Close so that the last answer arrives: unread bytes would turn the close into a reset."""
        self._drop_ready()
        if self.transport.is_closing():
            return
        self.deadline_s = self._listener.wheel.now_s + self._listener.limits.write_stall_s
        idle = self._reader.phase is IDLE and not self._awaits_end
        if idle or not self.transport.can_write_eof():
            self.transport.close()
            return
        listener = self._listener
        self._lingering = True
        self.deadline_s = listener.wheel.now_s + listener.limits.linger_s
        self.transport.write_eof()
        if self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()

    def _drop_ready(self) -> None:
        for item in self._reader.ready:
            if isinstance(item, Request):
                item.uncharge()
        self._reader.ready.clear()

    def _leave(self) -> None:
        """Give up a client that is gone."""
        try:
            self._lose_exchange()
        finally:
            self.transport.abort()

    def _lose_exchange(self) -> None:
        exchange = self._exchange
        self._exchange = None
        if self._half_closed is not None:
            self._half_closed.stop()
        if exchange is not None:
            exchange.lost()
