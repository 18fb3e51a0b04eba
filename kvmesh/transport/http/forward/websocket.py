"""One WebSocket on its way: the handshake as any request's attempts, then bytes both ways.

Bytes are passed as they are, extensions included; frames are followed only so far that a close
frame of ours never falls into one of the engine's.
"""

from functools import partial
from typing import Final

from kvmesh._native import render
from kvmesh.transport.http.forward.endings import answer, gave_up
from kvmesh.transport.http.forward.engine_socket import EngineSocket
from kvmesh.transport.http.forward.message import message_to
from kvmesh.transport.http.forward.plan import (
    ForwardOptions,
    ForwardPlan,
    Outcome,
    Target,
    Wait,
)
from kvmesh.transport.http.forward.retries import Retries, failure_of
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import patience_s
from kvmesh.transport.http.upstream.client import UpstreamFailure, UpstreamPool
from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh.transport.http.wire.deadlines import NEVER
from kvmesh.transport.http.wire.problem import Problem
from kvmesh.transport.http.wire.websocket import (
    IDLE,
    LOST,
    RESTARTS,
    UPGRADE,
    CloseCode,
    Frames,
    close_frame,
)

_MOST_EARLY: Final = 16 * 1024
_EARLY: Final = Problem(400, "upgrade: websocket: bytes came before the answer", "bad_websocket")
_DRAINING: Final = Problem(503, "this server is being drained", "draining", retry_after_s=1)
_OK: Final = 200


class WebSocketForward:
    """A WebSocket as its plan sees it; `EngineSocket` is the engine's side of it.

    A plan is told of 101 as of a 200 that nobody watched: it shows that the engine is there, and
    nothing of how fast it is. `deadline_s` and `spoke` are the pool's wheel's: quiet in both
    directions for the pool's idle time, or open for the options' `deadline_s`, it is closed.
    """

    __slots__ = (
        "_attempts", "_early", "_expires_s", "_failure", "_frames", "_options", "_paused",
        "_plan", "_pool", "_retries", "_side", "_target", "deadline_s", "exchange", "leaving",
        "scope", "spoke",
    )  # fmt: skip

    bound: None = None
    passed: int = 0
    resumable: str = ""

    def __init__(self, exchange: Exchange, pool: UpstreamPool, options: ForwardOptions) -> None:
        self.exchange = exchange
        self.scope = exchange.scope
        self.spoke = -1
        self.deadline_s = self._expires_s = NEVER
        self.leaving = False
        self._pool = pool
        self._options = options
        self._plan: ForwardPlan
        self._target = Target("")
        self._side: EngineSocket | None = None
        self._frames = Frames()
        self._retries = Retries(options, pool)
        self._failure: UpstreamFailure | None = None
        self._attempts = 0
        self._early = b""
        self._paused = False

    def begin(self, plan: ForwardPlan, *, stream: bool = False) -> None:
        """Open the socket at an engine that `plan` names; never waits."""
        del stream
        self._plan = plan
        exchange, wheel = self.exchange, self._pool.wheel
        self.scope.held.append(self._over)
        if not exchange.channel.divert(self._from_client, self.leave):
            self._refuse_early()
            return
        exchange.on_pause, exchange.on_resume = self._pause, self._resume
        wheel.add(self)
        self.scope.held.append(partial(wheel.discard, self))
        if self._options.deadline_s is not None:
            self._expires_s = wheel.now_s + self._options.deadline_s
        self._touch()
        self._send(plan.next_target())

    # what its plan, and who watches over it, see

    def proceed(self) -> None:
        """Ask the plan for the next target: it said `Wait`."""
        if not self.scope.over:
            self._retries.wait()
            self._send(self._plan.next_target())

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        """Give the handshake up, unless it is done."""
        if not self.exchange.started and self._side is not None:
            self.fail(failure)

    def hand_over(self, failure: UpstreamFailure) -> None:
        """Have the client open another one: its engine leaves."""
        del failure
        if self.exchange.started:
            self.leave()

    def patience_s(self) -> float:
        """Return for how long its client waits for the handshake; infinite: untold."""
        return patience_s(self.exchange.request)

    def usage(self) -> None:
        """Return nothing: nobody looks into frames."""

    # attempts

    def _send(self, target: Target | Problem | Wait | None) -> None:
        if isinstance(target, Target):
            self._attempts += 1
            self._target = target
            message = message_to(
                target, self.exchange, self._pool.own_headers, None, None, unnamed=False
            )
            lines = message.block + render((*message.headers, *self._pool.own_headers, *UPGRADE))
            self._side = side = EngineSocket(self, target, message.target, lines)
            self.scope.start(self._connect(side, target))
        elif isinstance(target, Problem):
            answer(self.exchange, target, "refused")
        elif target is None:
            answer(self.exchange, gave_up(self._failure, self._attempts, ""), "failed")

    async def _connect(self, side: EngineSocket, target: Target) -> None:
        found = await self._pool.open(target.origin, side)
        if isinstance(found, UpstreamFailure):
            if self._side is side:
                self.fail(found)
        elif self._side is not side:
            found.abort()
        else:
            side.ask()

    def fail(self, failure: UpstreamFailure) -> None:
        """Try another engine for the handshake, or tell the client; close what is open."""
        self._drop_side()
        self._failure = failure
        if self.exchange.started:
            self._close(LOST, "the engine was lost")
            return
        again = self._plan.on_attempt_failed(failure)
        if self._retries.allow(failure, b"") and again:
            self._send(self._plan.next_target())
        else:
            problem = gave_up(failure, self._attempts, self._target.worker)
            answer(self.exchange, problem, "failed")

    def refused(self, head: ResponseHead, body: bytes) -> None:
        """Take the answer of an engine that opens no WebSocket: another one's, or the client's."""
        options = self._options
        if head.status in options.retry_statuses:
            failure = failure_of(head, self._target.origin, blameless=options.blameless)
            if failure is not None:
                self.fail(failure)
                return
        self._drop_side()
        added = self._plan.on_head(head.status)
        self.scope.kind = "finished"
        self.exchange.request.keep_alive = False
        self.exchange.pass_whole(head.status, head.lines(ours=not added), added, body)

    def opened(self, head: ResponseHead, rest: bytes) -> None:
        """Take the engine's 101, and what came behind it."""
        own = [one for one in head.headers if one[0].startswith(b"sec-websocket-")]
        added = self._plan.on_head(_OK)
        self._plan.on_tokens(1)
        lines = head.lines(ours=not added) + render((*own, *UPGRADE))
        if self.scope.trace is not None:
            self.scope.trace.answered(added)
        self.exchange.switch(lines, added)
        early, self._early = self._early, b""
        if early and self._side is not None:
            self._side.write(early)
        if rest:
            self.from_engine(rest)
        if self._paused and self._side is not None:
            self._side.pause()

    # bytes

    def _from_client(self, data: bytes) -> None:
        self._touch()
        if self.exchange.started:
            if self._side is not None:
                self._side.write(data)
            return
        self._early += data
        if len(self._early) > _MOST_EARLY:
            self._refuse_early()

    def from_engine(self, data: bytes) -> None:
        """Pass on what the engine sends, when this leaves up to the end of the frame."""
        self._touch()
        end = self._frames.feed(data, to_end=self.leaving)
        self.exchange.write(data[:end] if self.leaving else data)
        if self.leaving and self._frames.between:
            self._close(RESTARTS, "the server restarts")

    def engine_gone(self, why: str) -> None:
        """Learn that the engine has closed its side, behind a close frame or not."""
        if self._frames.closed and self._frames.between:
            self._side = None
            self.scope.kind = "finished"
            self.exchange.end()
            return
        origin = self._target.origin
        if self.exchange.started:
            self.fail(UpstreamFailure("mid_response", "truncated", f"{origin}: {why}", origin))
        else:
            self.fail(UpstreamFailure("after_send", "reset", f"{origin}: {why}", origin))

    def hold_client(self, *, full: bool) -> None:
        """Read no more of the client while the engine takes no more."""
        transport = self.exchange.channel.transport
        if not transport.is_closing():
            (transport.pause_reading if full else transport.resume_reading)()

    def _pause(self) -> None:
        self._paused = True
        if self._side is not None:
            self._side.pause()

    def _resume(self) -> None:
        self._paused = False
        if self._side is not None:
            self._side.resume()

    # the end

    def leave(self) -> None:
        """Close as a server that restarts, at the end of the frame under way."""
        self.leaving = True
        if not self.exchange.started:
            answer(self.exchange, _DRAINING, "refused")
        elif self._frames.between:
            self._close(RESTARTS, "the server restarts")

    def _close(self, code: CloseCode, reason: str) -> None:
        """Send a close frame if none was sent, and end; in the middle of a frame just end."""
        self.scope.kind = "cut"
        if not self._frames.between:
            self.exchange.abort()
            return
        if not self._frames.closed:
            self.exchange.write(close_frame(code, reason))
        self.exchange.end()

    def _refuse_early(self) -> None:
        self.exchange.request.keep_alive = False
        answer(self.exchange, _EARLY, "refused")

    def _touch(self) -> None:
        """Take that something moves."""
        self.deadline_s = min(self._pool.wheel.now_s + self._pool.idle_s, self._expires_s)

    def is_idle(self) -> bool:
        """Return False: its deadline moves with each byte."""
        return False

    def on_deadline(self, now: float) -> None:
        """Give up what is quiet, or open for too long."""
        if self.exchange.started:
            quiet = now < self._expires_s
            self._close(IDLE, "nothing was sent for too long" if quiet else "open for too long")
        elif self._side is None:
            answer(self.exchange, gave_up(self._failure, self._attempts, ""), "failed")
        else:
            origin = self._target.origin
            text = f"{origin}: no answer to a WebSocket handshake"
            self.fail(UpstreamFailure("after_send", "timeout", text, origin))

    def crash(self, error: Exception) -> None:
        """End for an error of ours."""
        self.scope.crash(error)

    def _drop_side(self) -> None:
        side, self._side = self._side, None
        if side is not None:
            side.close()

    def _over(self) -> None:
        """Close the engine's side, and tell the plan."""
        plan, scope = self._plan, self.scope
        outcome = Outcome(scope.kind, scope.status, self._attempts, self._failure, watched=False)
        del self._plan  # a cycle
        try:
            self._drop_side()
        finally:
            plan.on_finish(outcome)
