"""Requests that wait at the router: who is told when, and how the bounds change at run time."""

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from kvmesh.core.admission.queue import (
    UNAVAILABLE,
    AdmissionOptions,
    AdmissionStatistics,
    QueuePolicy,
    Refusal,
)
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.late_binding import LOOK_EVERY_S, PAUSE_S, LateBinding
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.workers.info import NO_THRESHOLDS, BusyThresholds
from kvmesh.errors import NoWorkerError
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.wire.problem import Problem

Told = Callable[[Decision | Problem], None]


class AdmissionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be changed at run time, as `/admin/admission` shows and takes it; 0 is off."""

    max_backlog_ms: float
    queue_policy: QueuePolicy
    max_queued: int
    max_queued_per_tenant: int
    max_wait_s: float
    quantum_tokens: int
    busy_decode_blocks: float
    busy_prefill_tokens: int

    def wrong(self) -> str:
        """Return what cannot be; "" when all can."""
        least = {"max_queued": 1, "max_queued_per_tenant": 1, "quantum_tokens": 1}
        for name in self.__struct_fields__:
            value, bound = getattr(self, name), least.get(name, 0)
            if isinstance(value, int | float) and not bound <= value < float("inf"):
                return f"{name} is {value}: use a number >= {bound}"
        return "" if self.max_wait_s > 0 else "max_wait_s is 0: use a number > 0"


class AdmissionGate:
    """Lets requests to the scheduler, at once or when their turn comes; on the event loop.

    `weigh_all` says whether the next decision shall carry every candidate.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        settings: AdmissionSettings,
        clock: Callable[[], float],
        weigh_all: Callable[[float], bool],
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._weigh_all = weigh_all
        self._told: dict[str, tuple[Scope, Told]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looked_s = 0.0
        self._closing_s = float("inf")
        names = AdmissionLimits.__struct_fields__
        self._binding = LateBinding(scheduler, AdmissionOptions())
        self.limits = AdmissionLimits(**{name: getattr(settings, name) for name in names})
        self.change(self.limits)

    @property
    def active(self) -> bool:
        """Return whether requests must come through `ask`."""
        return self._binding.holding

    def change(self, limits: AdmissionLimits) -> None:
        """Go by other limits from now on. Requests held already keep their place."""
        self.limits = limits
        self._binding.change(
            AdmissionOptions(
                policy=limits.queue_policy,
                max_backlog_ms=limits.max_backlog_ms,
                max_queued=limits.max_queued,
                max_queued_per_tenant=limits.max_queued_per_tenant,
                max_wait_s=limits.max_wait_s,
                quantum_tokens=limits.quantum_tokens,
            )
        )
        thresholds = BusyThresholds(
            active_decode_blocks=limits.busy_decode_blocks or None,
            active_prefill_tokens=limits.busy_prefill_tokens or None,
        )
        limited = thresholds != NO_THRESHOLDS
        self._scheduler.workers.thresholds = thresholds if limited else NO_THRESHOLDS
        self.load_fell()

    def ask(self, request: RouteRequest, scope: Scope, told: Told) -> Decision | Problem | None:
        """Return where the request goes, or why nowhere; None: `told` is called once, later.

        A request whose `scope` ends while it waits loses its place.
        """
        now = self._clock()
        self._scheduler.trace = self._weigh_all(now)
        try:
            answer = self._binding.ask(request, now)
        except NoWorkerError as error:
            return Problem.from_error(error)
        if answer is None:
            self._told[request.request_id] = scope, told
            scope.holds(partial(self._leave, request.request_id))
            self.load_fell()
            return None
        if isinstance(answer, Refusal):
            code = "queue_full" if answer.status == UNAVAILABLE else "tenant_queue_full"
            return Problem(answer.status, answer.reason, code, retry_after_s=answer.retry_after_s)
        return answer

    def _leave(self, request_id: str) -> None:
        """Forget a request that ended while it waited; no error when it does not wait."""
        if self._told.pop(request_id, None) is not None:
            self._binding.cancel(request_id)

    def load_fell(self) -> None:
        """Look soon whether somebody's turn has come."""
        if self._told:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._look_in(max(0.0, self._looked_s + PAUSE_S - self._clock()))

    def close_in(self, grace_s: float) -> None:
        """Answer 503 to all who still wait in `grace_s` seconds: the process ends."""
        self._closing_s = self._clock() + grace_s

    def statistics(self) -> AdmissionStatistics:
        """Return sizes and counts."""
        return self._binding.statistics()

    def _look_in(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        try:
            self._answer_ready()
        finally:
            if self._told:
                self._look_in(LOOK_EVERY_S)

    def _answer_ready(self) -> None:
        self._looked_s = now = self._clock()
        binding = self._binding
        for released in binding.release(now, lambda: self._weigh_all(now)):
            verdict = released.verdict
            self._tell(
                released.request_id,
                Problem.from_error(verdict) if isinstance(verdict, NoWorkerError) else verdict,
            )
        waited = f"no worker was free for {binding.options.max_wait_s:g} s"
        late = binding.expire(now)
        if now >= self._closing_s:
            waited = "this router is shutting down; ask another"
            late = [*self._told]
        problem = Problem(
            UNAVAILABLE, waited, "queue_timeout", retry_after_s=binding.retry_after_s()
        )
        for request_id in late:
            binding.cancel(request_id)
            self._tell(request_id, problem)

    def _tell(self, request_id: str, answer: Decision | Problem) -> None:
        waiting = self._told.pop(request_id, None)
        if waiting is not None:
            scope, told = waiting
            scope.enter(told, answer)
