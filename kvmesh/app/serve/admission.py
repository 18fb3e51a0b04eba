"""Requests that wait at the router: who is told when, and how the bounds change at run time."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from kvmesh._native import Placed
from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import SharesChanged
from kvmesh.bounds import Count, Figure, Seconds
from kvmesh.core.admission.queue import (
    UNAVAILABLE,
    AdmissionOptions,
    AdmissionStatistics,
    QueueFairness,
    QueuePolicy,
    Refusal,
)
from kvmesh.core.admission.shares import TenantShare
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.members.worker_info import NO_THRESHOLDS, BusyThresholds
from kvmesh.core.routing.late_binding import CHECK_EVERY_S, PAUSE_S
from kvmesh.errors import KvMeshError, NoWorkerError
from kvmesh.settings.requests import AdmissionSettings, ProgramSettings, ProgramTurns
from kvmesh.tasks import report
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.wire.problem import Problem

Notify = Callable[[Placed | Problem], None]

TURNS_EVERY_S: Final = 0.25
"""While only turns of programs are held: siblings may have said since that one may be taken."""


class AdmissionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be changed at run time, as `/admin/admission` shows and takes it; 0 is off."""

    max_backlog_ms: Figure
    queue_policy: QueuePolicy
    max_queued: Count
    max_queued_per_tenant: Count
    max_wait_s: Seconds
    quantum_tokens: Count
    busy_decode_blocks: Figure
    busy_prefill_tokens: Count
    queue_fairness: QueueFairness = "tokens"
    program_turns: ProgramTurns = "on"

    def wrong(self) -> str:
        """Return what cannot be; "" when all can."""
        least = {"max_queued": 1, "max_queued_per_tenant": 1, "quantum_tokens": 1}
        for name in self.__struct_fields__:
            value, bound = getattr(self, name), least.get(name, 0)
            if isinstance(value, int | float) and not bound <= value < float("inf"):
                return f"{name} is {value}: use a number >= {bound}"
        if self.max_wait_s <= 0.0:
            return "max_wait_s is 0: use a number > 0"
        return ""


def problem_of(verdict: Refusal | NoWorkerError) -> Problem:
    """Return what a client is told whose request may not even wait."""
    if isinstance(verdict, NoWorkerError):
        return Problem.from_error(verdict)
    code = "queue_full" if verdict.status == UNAVAILABLE else "tenant_queue_full"
    if verdict.shed:
        code = "request_shed"
    return Problem(
        verdict.status,
        verdict.reason,
        verdict.code or code,
        retry_after_s=verdict.retry_after_s,
        final=verdict.final,
    )


class AdmissionView(msgspec.Struct, frozen=True):
    """The bounds in force, and what became of requests under them at this replica.

    A change is taken by all `replicas` within some seconds. `tenants`, for those who may change it:
    who waits, and who had most, some of them.
    """

    limits: AdmissionLimits
    replicas: list[str]
    statistics: AdmissionStatistics
    tenants: list[TenantShare] = []


class AdmissionGate:
    """Looks on the event loop whether the turn of requests that `dispatch` holds has come, and
    tells them.

    `waiting` are those, by request id: where there are none, `load_fell` has nothing to do.
    `follows`: programs are followed, so that requests shall say whose turn they are. `publish`
    reaches the other replicas, where there may be any.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        settings: AdmissionSettings,
        clock: Callable[[], float],
        publish: Callable[[Message], None] | None = None,
        programs: ProgramSettings | None = None,
    ) -> None:
        self._programs = programs or ProgramSettings(program_turns="off")
        self._governor = dispatch.turns.governor
        self.follows = False
        self._workers = dispatch.scheduler.workers
        self._ledger = dispatch.scheduler.ledger
        self._publish = publish
        self._binding = dispatch.binding
        self.statistics = dispatch.binding.queue.statistics
        self.shares = dispatch.scheduler.ledger.shares
        self._may_weigh_all = dispatch.log.may_weigh_all
        self._clock = clock
        self._sheds_negative = settings.shed_negative
        self.waiting: dict[str, tuple[Scope, Notify]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._checked_s = 0.0
        self._closing_s = float("inf")
        notify = {**vars(settings), **vars(self._programs)}
        self.limits = AdmissionLimits(**{n: notify[n] for n in AdmissionLimits.__struct_fields__})
        self.change(self.limits)

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
                fairness=limits.queue_fairness,
                sheds_negative=self._sheds_negative,
            )
        )
        thresholds = BusyThresholds(
            active_decode_blocks=limits.busy_decode_blocks or None,
            active_prefill_tokens=limits.busy_prefill_tokens or None,
        )
        limited = thresholds != NO_THRESHOLDS
        self._workers.thresholds = thresholds if limited else NO_THRESHOLDS
        self._change_turns(limits)
        self.load_fell()

    def _change_turns(self, limits: AdmissionLimits) -> None:
        """Follow programs, and hold their turns, as the limits say: what is held and need not be
        goes at the next look.
        """
        governor, held = self._governor, limits.program_turns == "on"
        self.follows = governor is not None and limits.program_turns != "off"
        if governor is not None:
            governor.change(msgspec.structs.replace(governor.options, turns=held))

    def wait(self, request_id: str, scope: Scope, notify: Notify) -> None:
        """Call `notify` once, when a request that is held now may go, or never will.

        A request whose `scope` ends while it waits loses its place.
        """
        self.waiting[request_id] = scope, notify
        scope.held.append(partial(self.leave, request_id))
        self._publish_updates()
        self.load_fell()

    def leave(self, request_id: str) -> None:
        """Forget a request that ended while it waited; no error when it does not wait."""
        self.waiting.pop(request_id, None)
        self._binding.cancel(request_id)
        self._publish_updates()

    def load_fell(self) -> None:
        """Check soon whether a held request may go."""
        if self.waiting:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._check_queue(max(0.0, self._checked_s + PAUSE_S - self._clock()))

    def close_in(self, grace_s: float) -> None:
        """Answer 503 to all who still wait in `grace_s` seconds: the process ends."""
        self._closing_s = self._clock() + grace_s

    def _check_queue(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._check)

    def _check(self) -> None:
        self._timer = None
        self._checked_s = now = self._clock()
        for answer in (self._answer_ready, self._answer_late):
            try:
                answer(now)
            except Exception as error:  # noqa: BLE001  the gate goes on: others wait, too
                report("admission queue", error)
        self._publish_updates()
        if self.waiting:
            self._check_queue(self._pause_s(now))

    def _pause_s(self, now: float) -> float:
        """Return when to look again although nothing happens."""
        if self._binding.waiting or self._governor is None:
            return CHECK_EVERY_S
        due_s = self._governor.next_s(now) - now
        return min(max(CHECK_EVERY_S, due_s), TURNS_EVERY_S)

    def _publish_updates(self) -> None:
        if self._ledger.updates and self._publish is not None:
            self._publish(SharesChanged())

    def _answer_ready(self, now: float) -> None:
        binding = self._binding
        for released in binding.release(now, lambda: self._may_weigh_all(now)):
            self._report(released.request_id, released.verdict)

    def _answer_late(self, now: float) -> None:
        binding = self._binding
        longest_s = binding.queue.options.max_wait_s
        waited = f"no worker was free for {longest_s:g} s, or while its client waits"
        closing = now >= self._closing_s
        if closing:
            waited = "this router is shutting down; ask another"
        problem = Problem(
            UNAVAILABLE, waited, "queue_timeout", retry_after_s=binding.queue.retry_after_s()
        )
        late = binding.expire(now)
        for request_id in [*self.waiting] if closing else late:
            binding.cancel(request_id)
            self._report(request_id, problem)

    def _report(self, request_id: str, verdict: Placed | Exception | Problem) -> None:
        waiting = self.waiting.pop(request_id, None)
        if waiting is None:
            return
        scope, notify = waiting
        match verdict:
            case Placed() | Problem():
                scope.enter(notify, verdict)
            case KvMeshError():
                scope.enter(notify, Problem.from_error(verdict))
            case _:
                scope.crash(verdict)
        if isinstance(verdict, Exception):
            verdict.__traceback__ = None
