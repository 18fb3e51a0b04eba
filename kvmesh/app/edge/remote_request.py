"""The forwarding plan of one request in an edge process: the index process decides and books."""

from collections.abc import Callable
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
from kvmesh.app.serve.answer_watch import AnswerWatch
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.transport.http.forward.plan import Outcome, Target, Wait, nobody_cares, nobody_waits
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
        "_alone", "_answer", "_counted", "_excluded", "_fixed_headers", "_guessed", "_link", "_n",
        "_request", "_told", "_visible_id", "_waiting", "_watch", "_wheel", "_worker",
        "deadline_s", "fail_attempt", "proceed", "spoke",
    )  # fmt: skip

    def __init__(
        self,
        link: IndexLink,
        request: RouteRequest,
        visible_id: bytes,
        wheel: DeadlineWheel,
        fixed_headers: Headers,
    ) -> None:
        self._link = link
        self._request = request
        self._visible_id = visible_id
        self._wheel = wheel
        self._fixed_headers = fixed_headers
        self._n = 0
        self._answer: Go | Refuse | None = None
        self._told: Headers = ()
        self._watch: AnswerWatch | None = None
        self._worker: WorkerId | None = None
        self._alone = False
        self._counted = False
        self._guessed = False
        self._waiting = False
        self._excluded: set[WorkerId] = set()
        self.proceed: Callable[[], None] = nobody_waits
        self.fail_attempt: Callable[[UpstreamFailure], None] = nobody_cares
        self.deadline_s = NEVER
        self.spoke = -1

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
        self._watch = AnswerWatch(headers)
        if self._n:
            self._link.send(Answering(self._n, status))
        return self._told

    def on_body(self, data: bytes) -> None:
        """See the answer pass."""
        watch = self._watch
        if watch is not None and (tokens := watch.feed(data)) and self._n:
            self._link.send(Progress(self._n, tokens))

    def on_finish(self, outcome: Outcome) -> None:
        """Tell of the end."""
        self._wheel.discard(self)
        self._let_go()
        if self._n:
            watch = self._watch if outcome.kind == "finished" else None
            self._link.send(
                RequestEnded(self._n, outcome, watch.usage() if watch is not None else None)
            )
            self._link.leave(self._n)
            self._n = 0
        self.proceed, self.fail_attempt = nobody_waits, nobody_cares

    def on_answer(self, answer: Go | Refuse | Queued) -> None:
        """Go on as the index process says."""
        self._wheel.discard(self)
        if not isinstance(answer, Queued):
            self._answer = answer
            self._waiting = False
            self.proceed()

    def on_abandon(self, failure: UpstreamFailure) -> None:
        """Leave a worker that hangs, as the index process says."""
        self.fail_attempt(failure)

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
            self._link.send(ask(self._n, self._request, self._visible_id))
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
            self.proceed()

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
