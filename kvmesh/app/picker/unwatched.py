"""Picks whose responses a gateway does not show: kept booked until other evidence ends them."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from kvmesh._native import Booking
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES
from kvmesh.core.members.outcomes import SERVED, SUCCESS
from kvmesh.core.members.worker_info import LoadReport
from kvmesh.core.routing.unwatched import (
    Over,
    Prefilled,
    Unwatched,
    UnwatchedStatistics,
)
from kvmesh.tasks import guarded
from kvmesh.transport.http.forward.plan import Booked, ForwardPlan
from kvmesh.transport.http.server.scope import Scope

LOOK_S: Final = 0.02
"""Prefills are seen to end so late at most, which is what their speeds are learned from."""

FORGET_EVERY: Final = 1024
"""After so many reports workers that left are forgotten."""


class QuietPick(Protocol):
    """A pick, as far as it has to be kept without a gateway's help."""

    scope: Scope
    status: int

    @property
    def plan(self) -> ForwardPlan:
        """Return what decided."""
        ...

    def end_unwatched(self) -> None:
        """End: it is taken to be over."""
        ...


class UnwatchedPicks:
    """Infers prefill and end of picks of which gateways tell little, or nothing.

    `begin` is called with a pick whose gateway will tell no tokens, `keep` with one of which it
    will tell nothing else: then `end_unwatched` is called once, when it is taken to be over.
    """

    def __init__(self, context: RoutingContext) -> None:
        self._context = context
        self._unwatched = Unwatched(context.scheduler)
        self._followed: dict[str, Callable[[], object]] = {}
        self._plans: dict[str, Callable[[], object]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reports = 0
        context.workers.on_report = self._receive

    def begin(self, pick: QuietPick) -> None:
        """Infer the prefill of a request that was sent; its end will be told."""
        self._add(pick, reported=True)

    def keep(self, pick: QuietPick) -> bool:
        """Infer all of a request that may go on; False: nothing of it is booked."""
        booked = self._add(pick, reported=False)
        if booked is None:
            return False
        self._unwatched.lose(booked.request_id)
        if pick.status in SUCCESS:
            # No more is ever known of it, and that is no reason to doubt its worker.
            self._context.workers.note(booked.worker, SERVED, self._context.clock())
        return True

    def statistics(self) -> UnwatchedStatistics:
        """Return what was inferred."""
        return self._unwatched.statistics()

    def close(self) -> None:
        """End all that is kept; safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for ended in list(self._followed.values()):
            ended()

    def follow(self, name: str, ended: Callable[[], object]) -> bool:
        """Infer when any other booking is over, and call `ended` then; False: there is none."""
        return self._follow(name, ended, reported=False) is not None

    def drop(self, name: str) -> None:
        """Follow a booking no longer."""
        self._followed.pop(name, None)
        self._plans.pop(name, None)
        self._unwatched.forget(name)

    def _add(self, pick: QuietPick, *, reported: bool) -> Booking | None:
        plan = pick.plan
        name = plan.booked() if isinstance(plan, Booked) else ""
        known = name in self._followed
        ended = partial(pick.scope.enter, pick.end_unwatched)
        booking = self._follow(name, ended, reported=reported)
        if booking is not None and isinstance(plan, Booked) and not known:
            self._plans[name] = partial(pick.scope.enter, plan.note_prefill)
            pick.scope.held.append(partial(self.drop, name))
        return booking

    def _follow(self, name: str, ended: Callable[[], object], *, reported: bool) -> Booking | None:
        booking = self._context.scheduler.sequences.bookings.get(name)
        if booking is None:
            return None
        if not self._unwatched.follows(name):
            hashes = booking.hashes
            if hashes is None or isinstance(hashes, bytes):
                hashes = NO_HASHES
            if not self._unwatched.add(name, hashes, self._due_s(booking), reported=reported):
                return None
        if name not in self._followed:
            self._followed[name] = ended
            self._check_soon()
        return booking

    def _due_s(self, booking: Booking) -> float:
        """Return when the prefill of a booking, the newest of its worker, is expected to end:
        behind all that are booked there. O(1): a walk along them took half of what a pick costs.
        """
        scheduler, worker = self._context.scheduler, booking.worker
        loads = scheduler.sequences.loads(worker)
        tokens = max(0, loads.prefill_tokens - loads.unseen_tokens)
        per_token_s = scheduler.speeds.ms_per_token(worker) / 1000.0
        return self._context.clock() + per_token_s * (tokens + scheduler.speeds.steps.step_tokens)

    def _receive(self, worker: WorkerId, report: LoadReport) -> None:
        self._reports += 1
        if not self._reports % FORGET_EVERY:
            members = self._context.workers.membership.members()
            self._unwatched.retain({WorkerId(name) for name in members})
        requests = report.running_requests + report.waiting_requests
        self._unwatched.report(worker, requests, self._context.clock())

    def _check_soon(self) -> None:
        if self._timer is None and self._followed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LOOK_S, guarded("unwatched picks", self._check))

    def _check(self) -> None:
        self._timer = None
        try:
            for one in self._unwatched.check(self._context.clock()):
                if isinstance(one, Over):
                    ended = self._followed.get(one.request_id)
                    if ended is not None:
                        ended()
                else:
                    self._note_prefill(one)
        finally:
            self._check_soon()

    def _note_prefill(self, one: Prefilled) -> None:
        plan = self._plans.get(one.request_id)
        if one.seen and plan is not None:
            plan()
            return
        context = self._context
        now, scheduler = context.clock(), context.scheduler
        tell: Callable[[str, float], None] = (
            scheduler.first_token if one.seen else scheduler.assume_first_token
        )
        tell(one.request_id, now)
        if context.outbox is not None:
            context.outbox.first_token(one.request_id)
        if context.gate.waiting:
            context.gate.load_fell()
