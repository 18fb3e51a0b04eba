"""The forwarding plan of one request in an edge process: the index process decides and books."""

from typing import Final

from kvmesh.app.edge.index_link import IndexLink
from kvmesh.app.edge.messages import (
    Again,
    Answering,
    AttemptFailed,
    Go,
    Progress,
    Queued,
    Refuse,
    RequestEnded,
    Withdrawn,
    ask,
)
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.sse import Usage
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.errors import TransportError
from kvmesh.transport.http.forward.plan import Forwarding, Outcome, Target, Wait
from kvmesh.transport.http.upstream.messages import UpstreamFailure
from kvmesh.transport.http.wire.deadlines import NEVER, DeadlineWheel
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

ANSWER_S: Final = 1.0
"""The index process decides in microseconds: one silent for so long hangs, and is done without."""

_NO_WORKER: Final = Problem(
    503, "the router is starting, or has no worker for this", "no_worker", retry_after_s=1
)


class RemoteRequest:
    """Asks through `link`; without an answer takes the least loaded worker last heard of.

    The booking is the index process's: it is released by `Ended` or `Withdrawn`, one of which is
    sent exactly once, or when the link is lost.
    """

    __slots__ = (
        "_alone",
        "_answer",
        "_counted",
        "_excluded",
        "_fixed_headers",
        "_forwarding",
        "_guessed",
        "_link",
        "_n",
        "_request",
        "_told",
        "_waiting",
        "_wheel",
        "_worker",
        "deadline_s",
        "scope",
        "spoke",
    )  # fmt: skip

    def __init__(
        self,
        link: IndexLink,
        request: RouteRequest,
        forwarding: Forwarding,
        wheel: DeadlineWheel,
        fixed_headers: Headers,
    ) -> None:
        self._link = link
        self._request = request
        self._forwarding = forwarding
        self.scope = forwarding.scope
        self._wheel = wheel
        self._fixed_headers = fixed_headers
        self._n = 0
        self._answer: Go | Refuse | None = None
        self._told: Headers = ()
        self._worker: WorkerId | None = None
        self._alone = False
        self._counted = False
        self._guessed = False
        self._waiting = False
        self._excluded: set[WorkerId] = set()
        self.deadline_s = NEVER
        self.spoke = -1
        self.scope.held.append(self._give_back)

    def next_target(self) -> Target | Problem | Wait | None:
        """Ask for the next worker and wait, or go where the answer says."""
        answer, self._answer = self._answer, None
        match answer:
            case Go(_, worker, origin, headers, told):
                self._worker, self._told = worker, told
                return Target(origin, headers=headers)
            case Refuse(_, problem):
                return problem
            case None:
                alone = self._alone or not (self._n or self._link.can_decide())
                return self._guess() if alone else self._ask()

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Tell of the failure; whether another may be tried is the index process's to say."""
        if self._worker is not None:
            self._excluded.add(self._worker)
        self._let_go()
        if self._n:
            self._link.send(AttemptFailed(self._n, failure))
        return True

    def on_head(self, status: int, headers: Headers) -> Headers:
        """Tell that the worker answers, and the client who it was."""
        del headers
        if self._n:
            self._link.send(Answering(self._n, status))
        return self._told

    def on_tokens(self, tokens: int) -> None:
        """Tell of the tokens so far."""
        if self._n:
            self._link.send(Progress(self._n, tokens))

    def on_finish(self, outcome: Outcome) -> None:
        """Tell of the end."""
        if self._n:
            finished = outcome.kind == "finished"
            self._end(outcome, self._forwarding.usage() if finished else None)

    def _end(self, outcome: Outcome, usage: Usage | None) -> None:
        n, self._n = self._n, 0
        self._link.leave(n)
        self._link.send(RequestEnded(n, outcome, usage))

    def _give_back(self) -> None:
        """Let go of all that is held, and tell of an end that was not told yet."""
        self._wheel.discard(self)
        self._let_go()
        if self._n:
            self._end(Outcome(self.scope.kind, self.scope.status, 0), None)

    def on_answer(self, answer: Go | Refuse | Queued) -> None:
        """Go on as the index process says; what it says unasked is that its own half has failed."""
        self._wheel.discard(self)
        if isinstance(answer, Queued):
            return
        if not self._waiting:
            raise TransportError("the index process has given this request up")
        self._answer = answer
        self._waiting = False
        self._forwarding.proceed()

    def on_abandon(self, failure: UpstreamFailure) -> None:
        """Leave a worker that hangs, as the index process says."""
        self._forwarding.fail_attempt(failure)

    def on_index_lost(self) -> None:
        """Go on alone: a request that waits takes what is known, one on its way stays there."""
        self._part()

    def on_deadline(self, now: float) -> None:
        """Go on alone: the index process hangs."""
        del now
        self._link.send(Withdrawn(self._n))
        self._link.leave(self._n)
        self._part()

    def _ask(self) -> Wait:
        if self._n:
            self._link.send(Again(self._n))
        else:
            self._n = self._link.enter(self)
            self._link.send(ask(self._n, self._request, self.scope.request_id))
        self._waiting = True
        self._wheel.add(self)
        self.deadline_s = self._wheel.now_s + ANSWER_S
        return Wait.WAIT

    def _part(self) -> None:
        self._wheel.discard(self)
        self._n = 0
        self._alone = True
        if self._waiting:
            self._waiting = False
            self._forwarding.proceed()

    def crash(self, error: Exception) -> None:
        """End the request for an error of ours."""
        self.scope.crash(error)

    def _guess(self) -> Target | Problem | None:
        """Return the least loaded worker of those last heard of."""
        link, request = self._link, self._request
        known = link.fleet.choose(request.model, request.pinned_worker, self._excluded)
        if known is None:
            return None if self._excluded else _NO_WORKER
        link.unguided += not self._counted
        self._alone = self._counted = True
        self._worker, self._guessed = known.worker, True
        self._told = (
            (b"x-kvmesh-worker", known.worker.encode()),
            (b"x-kvmesh-overlap-blocks", b"0"),
            (b"x-kvmesh-index", b"away"),
            *self._fixed_headers,
        )
        if known.dp_rank is None:
            return Target(known.url)
        return Target(known.url, headers=((b"x-data-parallel-rank", b"%d" % known.dp_rank),))

    def _let_go(self) -> None:
        if self._guessed and self._worker is not None:
            self._guessed = False
            self._link.fleet.release(self._worker)
