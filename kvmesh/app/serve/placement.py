"""One request booked at one worker, until it is released."""

from typing import Final

from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.chat.prompt_form import REASONS
from kvmesh.core.dispatch.dispatch import Dispatched
from kvmesh.core.health.blame import Blame
from kvmesh.core.health.outcomes import Attempt, Verdict, failed_attempt
from kvmesh.core.routing.decision import Decision
from kvmesh.core.workers.info import Trust
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Header, Headers

PANIC_HEADER: Final[Header] = (b"x-kvmesh-panic", b"1")
_TRUST_HEADERS: Final = {trust: (b"x-kvmesh-trust", trust.value.encode()) for trust in Trust}
_TRUST_AT: Final = 2
_UNFORESEEN_HEADERS: Final = {
    reason: (_TRUST_HEADERS[Trust.APPROX], (b"x-kvmesh-unforeseen", reason.encode()))
    for reason in REASONS
}
"""In place of the trust in a worker, where what it reuses of the request is not foretold."""


class Placement:
    """An attempt at the worker of `decision`, which was booked at `sent_s`."""

    __slots__ = ("_context", "_one", "_open", "_request_id", "decision", "sent_s")

    def __init__(self, context: RoutingContext, one: Dispatched, decision: Decision) -> None:
        request = one.request
        self.decision = decision
        self.sent_s = one.sent_s
        self._one = one
        self._context = context
        self._request_id = request.request_id
        self._open = True

    @property
    def worker(self) -> WorkerId:
        """Return the worker."""
        return self.decision.worker

    def waited_s(self) -> float:
        """Return how long ago the request was sent."""
        return self._context.clock() - self.sent_s

    def headers(self) -> Headers:
        """Return what is told to the client of the decision."""
        decision = self.decision
        own = told_headers(self._context, decision.worker, decision.overlap_blocks)
        if decision.unforeseen:
            own[_TRUST_AT : _TRUST_AT + 1] = _UNFORESEEN_HEADERS[decision.unforeseen]
        if decision.arm is not None:
            own.append((b"x-kvmesh-policy", decision.arm.header))
        return own

    def fail(self, failure: UpstreamFailure, blame: Blame) -> Attempt:
        """Release the worker and return what the failure shows, with the verdict of `blame`."""
        context, worker = self._context, self.worker
        attempt = failed_attempt(
            failure.name,
            self.waited_s(),
            status=failure.status,
            retry_after_s=failure.retry_after_s,
        )
        health = context.workers.membership.health
        attempt = blame.judge(
            attempt, sent=failure.stage != "before_send", suspect=health.is_suspect(worker)
        )
        self.release(attempt)
        context.ask_suspects()
        context.counters.failures.add(worker, attempt.kind)
        context.log.warning(
            "worker failed a request",
            worker=worker,
            request_id=self._request_id,
            stage=failure.stage,
            kind=attempt.kind,
            verdict=attempt.verdict.name.lower(),
            error=failure.message,
        )
        return attempt

    def release(self, attempt: Attempt) -> bool:
        """Give the worker back, and tell everybody what its attempt showed; once.

        Return whether this was that once.
        """
        if not self._open:
            return False
        self._open = False
        context, request_id = self._context, self._request_id
        context.open_requests.discard(request_id)
        if context.outbox is not None:
            context.outbox.ended(request_id, attempt)
        booking = context.routing.release(self._one, attempt, context.clock())
        served = attempt.verdict is Verdict.SERVED and not self._one.request.unforeseen
        if context.released is not None and booking is not None and served:
            context.released(booking)
        if context.gate.waiting:
            context.gate.load_fell()
        return True


def told_headers(context: RoutingContext, worker: WorkerId, overlap_blocks: int) -> list[Header]:
    """Return what is told to the client of any decision."""
    workers = context.workers
    own: list[Header] = [
        (b"x-kvmesh-worker", worker.encode()),
        (b"x-kvmesh-overlap-blocks", b"%d" % overlap_blocks),
        _TRUST_HEADERS[workers.info(worker).trust],
        *context.fixed_headers,
    ]
    if workers.panic:
        own.append(PANIC_HEADER)
    return own
