"""What failed attempts of a request show: of the worker that failed, and of the request itself."""

from collections.abc import Callable
from typing import Final

from kvmesh._native import Placed
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.sse import error_status
from kvmesh.core.members.blame import Blame
from kvmesh.core.members.outcomes import UNKNOWN, Attempt, failed_attempt, status_attempt
from kvmesh.transport.http.forward.plan import Outcome
from kvmesh.transport.http.upstream.client import UpstreamFailure

NOBODY: Final[frozenset[WorkerId]] = frozenset()


class FailedAttempts:
    """Those of one request: `workers` are left out of its next decision, `blame` says whose doing
    it was.
    """

    def __init__(self, context: RoutingContext) -> None:
        self.workers = NOBODY
        self.blame = Blame()
        self._context = context

    def judge(self, placed: Placed, failure: UpstreamFailure) -> Attempt:
        """Count the failure; return what the attempt shows, with the verdict on it."""
        context = self._context
        context.counters.attempts_failed += 1
        return self.blame.judge(
            failed_attempt(
                failure.name,
                context.clock() - placed.sent_s,
                status=failure.status,
                retry_after_s=failure.retry_after_s,
            ),
            sent=failure.stage != "before_send",
            suspect=context.workers.membership.health.is_suspect(placed.record.worker),
        )

    def report(self, placed: Placed, failure: UpstreamFailure, attempt: Attempt, why: str) -> None:
        """Log it, look at the worker, which was released, and leave it out."""
        context, worker = self._context, placed.record.worker
        context.ask_suspects()
        context.counters.failures.add(worker, attempt.kind)
        context.log.warning(
            "worker failed a request",
            worker=worker,
            request_id=placed.request_id,
            stage=failure.stage,
            kind=attempt.kind,
            verdict=attempt.verdict.name.lower(),
            error=failure.message,
        )
        self.leave_out(placed, why)

    def leave_out(self, placed: Placed, why: str) -> None:
        """Have no other attempt go to this worker."""
        self.workers |= {placed.record.worker}
        self._context.decisions.attempt_failed(placed.record, why)


def judge_end(
    outcome: Outcome,
    placed: Placed | None,
    status: int,
    now: float,
    *,
    lost: bool,
    stalled: Callable[[], bool],
) -> Attempt:
    """Return what the end of a request that was not served shows of the worker at work last, which
    answered `status`, 0: nothing.

    `lost`: that one was lost with the end of its answer. `stalled`: its engine makes no progress.
    """
    if placed is None:
        return UNKNOWN
    waited_s = now - placed.sent_s
    if outcome.kind == "cut" and outcome.failure is not None:
        failure = outcome.failure
        kind = failure.name if failure.sickness else "cut"
        return failed_attempt(kind, waited_s, status=failure.status)
    if outcome.kind == "client_gone" and placed.waiting and not status and stalled():
        return failed_attempt("hung", waited_s)
    if outcome.kind != "finished" or lost or outcome.doubted or not outcome.watched:
        return UNKNOWN
    if outcome.error:
        # Its head says that it was begun, what it holds that it was not served.
        status = error_status(outcome.error)
        return status_attempt(status) if status else UNKNOWN
    return status_attempt(status)
