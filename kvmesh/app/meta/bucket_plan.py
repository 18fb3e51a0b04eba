"""One request on its way through a meta-router."""

import time
from functools import lru_cache

from kvmesh.actors.meta_router import MOST_REPLICAS, MetaRouter
from kvmesh.app.front.front import NOT_FOUND
from kvmesh.app.members.failure_care import FailureCare
from kvmesh.app.serve.request_ends import RequestEnds
from kvmesh.core.buckets.buckets import BucketRoute
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.core.members.outcomes import SUCCESS, UNKNOWN, failed_attempt
from kvmesh.errors import KvMeshError, NoWorkerError
from kvmesh.observe import get_logger
from kvmesh.transport.http.forward.plan import QUIET, Forwarding, Outcome, Target, Wait
from kvmesh.transport.http.forward.resume import Going
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem


@lru_cache(maxsize=MOST_REPLICAS)
def _target_of(url: str, bucket: str) -> Target:
    return Target(url, worker=f"a router of bucket {bucket}", gives_ids=True)


class BucketPlan:
    """The forwarding plan of one request: each attempt goes to another replica of its bucket, then
    to another bucket where nothing binds it to its own.

    While no replica may be given it, or none has a worker for it, it waits; then its `forwarding`
    proceeds. One that lost its replica waits, too, unless it may not be repeated, which
    `forwarding` knows.
    """

    __slots__ = (
        "_care", "_ends", "_failure", "_meta", "_request", "_route", "_status", "_tried",
        "forwarding", "sent_s",
    )  # fmt: skip

    def __init__(
        self,
        meta: MetaRouter,
        request: BucketRequest,
        care: FailureCare,
        ends: RequestEnds,
        forwarding: Forwarding,
    ) -> None:
        self.forwarding = forwarding
        self._meta = meta
        self._ends = ends
        self._request = request
        self._care = care
        self._route: BucketRoute | None = None
        self._tried: list[str] = []
        self._failure: UpstreamFailure | None = None
        self._status = 0
        self.sent_s = 0.0
        forwarding.scope.held.append(self._give_back)

    @property
    def worker(self) -> str:
        """Return the replica chosen last, for who watches that it does not hang."""
        assert self._route is not None
        return self._route.replica.name

    def takes(self, now: float) -> bool:
        """Return whether a replica may be given the request that has not failed it."""
        return self._meta.table.takes(self._request, now, self._tried)

    def next_target(self) -> Target | Problem | Wait | None:
        """Choose bucket and replica."""
        now, tried = time.monotonic(), self._tried
        try:
            route = self._meta.table.route(self._request, now, tried=tried, last=self._route)
        except NoWorkerError as error:
            failure, patience = self._failure, self._care.patience
            if (failure is None or failure.lost) and self._meta.awaits_replicas():
                scope, client_s = self.forwarding.scope, self.forwarding.patience_s()
                if patience.hold(scope, self._go_on, client_s):
                    return QUIET
            named = tried and failure is not None and failure.kind != "no_worker"
            return None if named else Problem.from_error(error)
        except KvMeshError as error:
            return Problem.from_error(error)
        self._route, self.sent_s = route, now
        tried.append(route.replica.name)
        self._care.hangs.waiting[self] = None
        return _target_of(route.replica.url, route.bucket)

    cached_tokens: None = None
    """How much of a prompt was cached is known to the replica alone."""

    def go_on(self, failure: UpstreamFailure, going: Going) -> bool:
        """Have another replica go on with a stream that the present one lost, or leaves."""
        del going  # any replica can take it
        self.lose(failure)
        return True

    def lose(self, failure: UpstreamFailure) -> None:
        """Take what it shows of the replica that its stream was cut: an error that it passed on is
        not its own doing, nor that it is being drained.
        """
        self._failure, now = failure, time.monotonic()
        self._care.streams.open.pop(self, None)
        if self._route is None:
            return
        replica = self._route.replica.name
        if failure.kind in {"left", "bad_answer"}:
            self._meta.note(replica, UNKNOWN, now)
            return
        self._meta.note(replica, failed_attempt("cut"), now)
        self._care.wake()
        self._care.failures.add(replica, "cut")
        get_logger().warning("replica lost a stream", replica=replica, error=failure.message)

    def _go_on(self) -> None:
        """Begin anew: those that could not be reached before may be there again."""
        self._tried.clear()
        self.forwarding.proceed()

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Take what that shows of the replica; another one is tried.

        That it has no worker is not its own doing.
        """
        self._failure = failure
        if self._route is None:
            return True
        replica, now = self._route.replica.name, time.monotonic()
        self._care.hangs.waiting.pop(self, None)
        if failure.status == NOT_FOUND:
            self._meta.note(replica, UNKNOWN, now)  # it does not know what is asked for
            return True
        if failure.kind == "no_worker":
            self._meta.table.workerless.refused(replica, self._request.model, now)
            self._meta.note(replica, UNKNOWN, now)
            return True
        attempt = failed_attempt(
            failure.kind,
            now - self.sent_s,
            status=failure.status,
            retry_after_s=failure.retry_after_s,
        )
        self._meta.note(replica, attempt, now)
        self._care.wake()
        self._care.failures.add(replica, attempt.kind)
        get_logger().warning(
            "replica failed a request",
            replica=replica,
            stage=failure.stage,
            kind=attempt.kind,
            error=failure.message,
        )
        return True

    due: None = None
    """How long the answer takes is the replica's to say: it may hold the request."""

    def on_head(self, status: int) -> Headers:
        """Trust the replica again. Its own headers already say who it is."""
        self._status = status
        self._care.hangs.waiting.pop(self, None)
        if self._route is not None and status in SUCCESS:
            self._meta.began(self._route.replica.name, time.monotonic())
            if self.forwarding.resumable not in {"", "no"}:
                self._care.streams.enter(self)
        return ()

    def on_tokens(self, tokens: int) -> None:
        """Nothing to do: the replica counts the tokens."""

    def on_finish(self, outcome: Outcome) -> None:
        """Take what the end shows of the replica: what its worker did is not its doing."""
        if self._route is None:
            return
        replica, now = self._route.replica.name, time.monotonic()
        if outcome.kind == "finished" and self._status in SUCCESS:
            self._meta.served(replica, now)
        else:
            cut = outcome.kind == "cut" and outcome.failure is not None
            self._meta.note(replica, failed_attempt("cut") if cut else UNKNOWN, now)

    def _give_back(self) -> None:
        """Count the end, and be watched no longer."""
        scope = self.forwarding.scope
        self._ends.add(scope.kind, scope.status)
        self._care.hangs.waiting.pop(self, None)
        self._care.streams.open.pop(self, None)
