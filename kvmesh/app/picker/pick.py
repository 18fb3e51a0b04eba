"""One request that is decided here and sent by a gateway: what a plan says, told; what comes, seen.

A gateway sends the request itself, so an attempt that fails is not repeated here: it is blamed on
its worker, as `Forward` does, and the gateway tries the alternatives that it was given.
"""

from typing import Final

import msgspec

from kvmesh.app.picker.addresses import Addresses
from kvmesh.app.picker.blame import read_word
from kvmesh.app.picker.counts import PickCounts
from kvmesh.app.picker.exchange import PickExchange, Way
from kvmesh.app.picker.request_changes import changes_of
from kvmesh.app.picker.seen_answer import SeenAnswer
from kvmesh.app.picker.unwatched import UnwatchedPicks
from kvmesh.core.engines.sse import Usage
from kvmesh.core.members.poison_guard import key_of
from kvmesh.errors import KvMeshError
from kvmesh.transport.grpc.extproc_messages import ResponseHeaders
from kvmesh.transport.http.forward.endings import POISON
from kvmesh.transport.http.forward.plan import (
    ForwardOptions,
    ForwardPlan,
    Outcome,
    Target,
    Wait,
)
from kvmesh.transport.http.server.request import patience_s
from kvmesh.transport.http.server.scope import End
from kvmesh.transport.http.upstream.client import UpstreamFailure, UpstreamPool
from kvmesh.transport.http.upstream.messages import bad_answer
from kvmesh.transport.http.wire.deadlines import ForwardClock
from kvmesh.transport.http.wire.headers import Headers, retry_after_s
from kvmesh.transport.http.wire.problem import Problem

RETRY_S: Final = 1
"""After so long a client may ask again that heard of no answer: its worker is left out by then."""

NO_WORKER: Final = Problem(503, "no worker can take this request", "no_worker", retry_after_s=1)
_CHOSEN: Final = "the worker chosen"
_EVENTS: Final = b"text/event-stream"
_OK: Final = 200
_ROUTED: Final = b"x-kvmesh-worker"
"""An answer that names its worker comes from a router, which has tried the others already."""

_UNJUDGED: Final = frozenset({_ROUTED, b"content-encoding"})


class PickShared(msgspec.Struct, frozen=True):
    """What all picks of a process share.

    `pool` has the clock, what is sent with every request, and who died of which. `unwatched` keeps
    picks of which a gateway tells little or nothing; without it they are released at once.
    """

    pool: UpstreamPool
    addresses: Addresses
    counts: PickCounts = msgspec.field(default_factory=PickCounts)
    unwatched: UnwatchedPicks | None = None


class Pick:
    """A request on its way through a gateway.

    It is made before its plan, which may call it once it has begun. `origin` is where it was sent,
    `status` that of the response, 0 before it.
    """

    __slots__ = (
        "_answer", "_attempts", "_clock", "_error_body", "_failed", "_failure",
        "_options", "_shared", "_watched", "bound", "exchange", "origin", "plan", "scope", "status",
    )  # fmt: skip

    def __init__(
        self, exchange: PickExchange, shared: PickShared, *, options: ForwardOptions
    ) -> None:
        self.scope = exchange.scope
        self.origin = ""
        self.status = 0
        self.bound: str | None = None
        self.exchange = exchange
        self._shared = shared
        self._options = options
        self.plan: ForwardPlan
        self._clock: ForwardClock | None = None
        self._answer = SeenAnswer(reads_usage=options.reads_usage)
        self._error_body = b""
        self._failure: UpstreamFailure | None = None
        self._failed = False
        self._watched = True
        self._attempts = 0

    def begin(self, plan: ForwardPlan, *, stream: bool = False) -> None:
        """Tell the gateway what `plan` says; never waits."""
        del stream  # a gateway can be told nothing of a response that has not begun
        self.plan = plan
        self.scope.held.append(self._over)
        pool, deadline_s = self._shared.pool, self._options.deadline_s
        if pool.poison.deaths and pool.refuses(key_of(self.exchange.request.body)):
            self._refuse(POISON, "refused")
            return
        self._take(plan.next_target())
        if deadline_s is not None and not (self.origin or self.scope.over):
            self._clock = ForwardClock(self, pool.wheel, deadline_s, None)

    @property
    def passed(self) -> int:
        """Return how many tokens of the worker's stream have come."""
        stream = self._answer.stream
        return 0 if stream is None else stream.tokens

    @property
    def resumable(self) -> str:
        """Return "no" for a stream: the gateway, not the picker, passes it on."""
        return "" if self._answer.stream is None else "no"

    def hand_over(self, failure: UpstreamFailure) -> None:
        """Do nothing: what a gateway passes on stays where it is."""

    def proceed(self) -> None:
        """Ask the plan for the target; a plan that said `Wait` calls this."""
        if not (self.scope.over or self.origin):
            self._take(self.plan.next_target())

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        """Give the worker up unless its answer has begun: the gateway, which would wait for it for
        ever, answers its client.
        """
        if self.origin and not self.status:
            self._blame(failure)
            self.scope.kind = "failed"
            kind, wait_s = f"upstream_{failure.kind}", RETRY_S
            problem = Problem(504, failure.describe(_CHOSEN), kind, retry_after_s=wait_s)
            self.exchange.take_back(problem)

    def patience_s(self) -> float:
        """Return for how long its client waits for a byte, by its own headers; infinite: untold."""
        return patience_s(self.exchange.request)

    def usage(self) -> Usage | None:
        """Return what the worker reported of its tokens, if it did."""
        return self._answer.usage()

    # the response's side

    def on_head(self, head: ResponseHeaders) -> Headers:
        """Take the head of the response, and return what is told to the client of the decision."""
        status, events, routed = 0, False, False
        for name, value in head.headers:
            if name == b":status":
                status = int(value) if value.isdigit() and len(value) == 3 else 0  # noqa: PLR2004
            elif name == b"content-type":
                events = value.startswith(_EVENTS)
            elif name in _UNJUDGED:
                routed, self._answer.check = routed or name == _ROUTED, None
        if head.served:
            self._move(head.served)
        self.status = self.scope.status = status
        if status != _OK or self.exchange.quiet:
            self._answer.check = None
        if status in self._options.retry_statuses and not (routed or self._failed):
            wait_s = retry_after_s(head.headers)
            word = read_word(status, head.attributes, self.origin, wait_s)
            if word is None:
                self.scope.kind = "failed"
            else:
                self._blame(word)
        if events:
            self._answer.begin_stream()
        self._let_go_of_body()
        own = self.plan.on_head(status)
        return self._reported(own)

    def _reported(self, own: Headers) -> Headers:
        if self.scope.trace is not None:
            self.scope.trace.answered(own)
        return (*own, (b"x-request-id", self.exchange.request_id))

    def on_body(self, data: bytes) -> None:
        """Take a piece of the response's body, which is on its way to the client already."""
        if tokens := self._answer.feed(data):
            self.plan.on_tokens(tokens)

    def on_end(self) -> None:
        """Release what the request holds: its response is complete."""
        sickness = "" if self._failed else self._answer.judge(self._options.form)
        said = self._answer.error()
        failure = bad_answer(sickness, said, self.origin) if sickness else None
        if failure is not None:
            self._failure = failure
            self.close("cut")
            return
        self._error_body = said if sickness else b""
        self._finish()

    def _finish(self) -> None:
        if tokens := self._answer.end():
            self.plan.on_tokens(tokens)
        self.close("failed" if self.scope.kind == "failed" else "finished")

    def on_gone(self) -> None:
        """Learn that the stream was reset: the client, or the worker, left before the end."""
        stream = self._answer.stream
        whole = stream is not None and stream.is_complete()
        self.close("finished" if whole else "client_gone")

    def on_silence(self) -> None:
        """Note that the gateway sends no more of this request, which goes on."""
        if self.status and self._answer.stream is None:
            # An engine sends the head of a whole answer when it has all of it.
            self._finish()
            return
        self._let_go_of_body()
        if not self.status:
            self.plan.on_head(0)
        unwatched = self._shared.unwatched
        if unwatched is None or not unwatched.keep(self):
            self.end_unwatched()

    def on_over(self) -> None:
        """Learn that the request is over, and not how: its client left, or has all of it."""
        if self.status and self._answer.stream is None:
            self._finish()
        elif self.status or self.exchange.headless:
            self.end_unwatched()
        else:
            self.close("client_gone")

    def end_unwatched(self) -> None:
        """End: it is taken to be over. What it shows of its worker is not known."""
        self._watched = False
        self._finish()

    def close(self, kind: End) -> None:
        """End the request in that way; once."""
        if not self.scope.over:
            self.scope.kind = kind
            self.scope.end()

    # the clock's side

    def expire(self) -> None:
        """Give up: no worker was found in time. Of a request on its way the gateway has a clock."""
        problem = Problem(504, f"not done in {self._options.deadline_s:g} s", "deadline")
        self._refuse(problem, "failed")

    def comment(self, *, due: bool) -> bool:
        """Return False: no response can be begun here."""
        del due
        return False

    def crash(self, error: Exception) -> None:
        """End the request for an error of ours."""
        self.scope.crash(error)

    def _take(self, target: Target | Problem | Wait | None) -> None:
        """Tell the gateway of `target`, or do what the plan says instead."""
        if isinstance(target, Target):
            try:
                endpoint = self._shared.addresses.find(target.origin)
            except (KvMeshError, ValueError) as error:
                self._leave_out(target, error)
                return
            if endpoint is None:
                self.scope.start(self._resolve(target))
            else:
                self._send(target, endpoint)
        elif target is None:
            self._refuse(self._verdict(), "failed")
        elif not isinstance(target, Wait):
            self._refuse(target, "refused")

    async def _resolve(self, target: Target) -> None:
        try:
            endpoint = await self._shared.addresses.resolve(target.origin)
        except KvMeshError as error:
            self._leave_out(target, error)
        else:
            self._send(target, endpoint)

    def _leave_out(self, target: Target, error: KvMeshError | ValueError) -> None:
        """Ask for another worker: this one has no address that a gateway could use."""
        self._attempts += 1
        self._failure = UpstreamFailure("before_send", "refused", str(error), target.origin)
        allowed = self._failed_at(self._failure)
        if allowed and self._attempts <= self._options.max_retries:
            self._take(self.plan.next_target())
        else:
            self._refuse(self._verdict(), "failed")

    def _verdict(self) -> Problem:
        failure = self._failure
        if failure is None:
            return NO_WORKER
        return Problem(503, failure.describe(_CHOSEN), "no_worker", retry_after_s=1)

    def _send(self, target: Target, endpoint: bytes) -> None:
        exchange = self.exchange
        request = exchange.request
        self._attempts += 1
        self.origin = target.origin
        self._answer.check = target.check
        if self.scope.trace is not None:
            self.scope.trace.sent(target.origin)
        self._stop_clock()
        body = target.body
        if body is None and request.body is not exchange.sent_body:
            body = request.body
        headers, removed = changes_of(target, exchange, self._shared.pool.own_headers)
        if body is not None:
            headers.append((b"content-length", b"%d" % len(body)))
        # What a plan says in headers or in the body is for the chosen one alone.
        if target.alternatives and target.body is None and not target.headers:
            found = map(self._shared.addresses.known, target.alternatives)
            endpoint = b",".join((endpoint, *(one for one in found if one is not None)))
        exchange.answered = True
        exchange.follower = self
        exchange.asked.go(Way(endpoint, headers, removed, body))
        if exchange.quiet and not self.scope.over:
            self._expect_nothing()

    def _expect_nothing(self) -> None:
        """Infer what the gateway does not send: no tokens, and from some gateways no response
        head.
        """
        shared = self._shared
        if shared.unwatched is not None:
            shared.unwatched.begin(self)
        if self.exchange.headless:
            # Without a head it would be taken to hang.
            self.plan.on_head(0)

    def _let_go_of_body(self) -> None:
        self.exchange.request.release_body()
        self.exchange.sent_body = b""

    def _move(self, served: str) -> None:
        """Book the request where the gateway's retry has sent it, and blame whom it left."""
        addresses = self._shared.addresses
        if self._failed or addresses.known(self.origin) == served.encode():
            return
        origin = addresses.origin_of(served)
        if origin is None:
            return
        text = f"{self.origin}: the gateway went on to {served}"
        failure = UpstreamFailure("before_send", "refused", text, self.origin)
        if not self._failed_at(failure):
            return
        self.bound = origin
        self._failure = failure
        target = self.plan.next_target()
        if isinstance(target, Target):
            self._answer.check = target.check
            self._attempts += 1
            self._shared.counts.moved += 1
            self.origin = origin

    def _blame(self, failure: UpstreamFailure) -> None:
        if not self._failed:
            self._failed = True
            self._failure = failure
            if failure.stage != "before_send":
                self._shared.pool.note_death(failure, key_of(self.exchange.request.body))
            self._failed_at(failure)

    def _failed_at(self, failure: UpstreamFailure) -> bool:
        if self.scope.trace is not None:
            self.scope.trace.failed(failure.message)
        return self.plan.on_attempt_failed(failure)

    def _refuse(self, problem: Problem, kind: End) -> None:
        self.scope.kind = kind
        self.exchange.fail(problem)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._shared.pool.wheel.discard(self._clock)
            self._clock = None

    def _over(self) -> None:
        """Release all that the request holds, and report its end to the plan."""
        plan, scope, stream = self.plan, self.scope, self._answer.stream
        error = stream.error if stream is not None and stream.errors else self._error_body
        if scope.trace is not None and self._failure is not None:
            scope.trace.failure = self._failure.message
        self._answer.check = None
        del self.plan  # a cycle: the plan knows the forwarding
        self.exchange.follower = None
        self._stop_clock()
        outcome = Outcome(scope.kind, scope.status, self._attempts, self._failure, error)
        if not self._watched:
            outcome = msgspec.structs.replace(outcome, watched=False)
        plan.on_finish(outcome)
