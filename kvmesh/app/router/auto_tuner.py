"""`--auto-tune`: looks at the load again and again, and does what the tuner decides."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.router.search_child import SearchChild
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.policy_view import TuningRow
from kvmesh.core.insight.rollout import Rollout
from kvmesh.core.insight.trace_ring import TraceRing, TraceRow
from kvmesh.core.insight.tuner import TunerOptions
from kvmesh.core.insight.tuning_loop import (
    Around,
    LoopOptions,
    Order,
    Search,
    TuningLoop,
    log_of,
)
from kvmesh.core.insight.weight_search import LoggedFleet
from kvmesh.errors import KvMeshError
from kvmesh.lab import require_lab
from kvmesh.observe import get_logger
from kvmesh.settings.features import TuneSettings
from kvmesh.settings.roles import RouterSettings
from kvmesh.tasks import Jobs, keep_running

TRACE_S: Final = 600.0
"""Requests that a search plays, and that GET /admin/trace downloads: longer ago they are of a load
that may have changed."""

TRACE_BYTES: Final = 32 << 20
"""Beyond it only a part of the prefix families is kept."""

LOOK_S: Final = 2.0
LOOKS: Final = 10
"""Looks in the time a load is observed, at least."""

LEAST_LOOK_S: Final = 0.25


class AutoTuner:
    """One replica's tuner, with its trace. In a bucket the least name of the replicas tunes."""

    def __init__(
        self,
        options: LoopOptions,
        context: RoutingContext,
        rollout: Rollout,
        replicas: Callable[[], tuple[RouterHeartbeat, ...]],
        *,
        kv_events: bool,
    ) -> None:
        self._context = context
        self._replicas = replicas
        self._kv_events = kv_events
        self.ring = new_ring(context)
        self._loop = TuningLoop(
            options,
            context.scheduler,
            self.ring,
            context.decisions.shadows,
            rollout,
            context.clock(),
        )
        self._check_s = max(LEAST_LOOK_S, min(LOOK_S, options.tuner.observe_s / LOOKS))
        self._child = SearchChild()
        self._jobs = Jobs("auto-tune search")
        self._reported = 0
        self._offset_s = time.time() - context.clock()

    async def run(self) -> None:
        """Look at the load until cancelled; a search under way ends with it."""
        try:
            while True:
                await asyncio.sleep(self._check_s)
                self._do(self._loop.check(self._around(), self._context.clock()))
        finally:
            self._child.kill()
            await self._jobs.close()

    def view(self) -> TuningRow:
        """Return everything, for people."""
        status = self._loop.tuner.status()
        steps = tuple(
            msgspec.structs.replace(step, at_s=round(step.at_s + self._offset_s, 3))
            for step in status.steps
        )
        status = msgspec.structs.replace(status, steps=steps)
        context = self._context
        return TuningRow(context.bucket, context.router_id, status, self.ring.statistics())

    def warnings(self) -> tuple[str, ...]:
        """Return what waits for a person: a proposal, or what keeps the tuner from its work."""
        status = self._loop.tuner.status()
        if status.stage == "blocked":
            return (f"auto-tune: {status.words}",)
        if status.proposal:
            what = f"auto-tune proposes {status.proposal}"
            return (f"{what}; PUT /admin/policy takes it, /v1/status says why",)
        return ()

    def log(self) -> tuple[list[TraceRow], LoggedFleet]:
        """Return the requests of the last minutes that are whole, and what served them."""
        context = self._context
        return log_of(context.scheduler, self.ring, self._around(), context.clock())

    def _around(self) -> Around:
        return around(self._context, self._replicas(), kv_events=self._kv_events)

    def _do(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, Search):
                self._jobs.start(self._search(order))
            else:
                self._child.kill()
        self._report()

    async def _search(self, search: Search) -> None:
        found, why = None, "it was given up"
        try:
            found = await self._child.run(search)
        except KvMeshError as error:
            why = str(error)
        finally:
            # Whatever happened: else no search would ever begin again.
            if found is None:
                self._loop.tuner.search_failed(why, self._context.clock())
                self._report()
        if found is not None:
            self._do(self._loop.found(found, self._around(), self._context.clock()))

    def _report(self) -> None:
        """Log the steps that were not."""
        for step in self._loop.tuner.status().steps:
            if step.number > self._reported:
                self._reported = step.number
                get_logger().info("auto-tune", step=step.kind, text=step.text)


def around(
    context: RoutingContext, replicas: tuple[RouterHeartbeat, ...], *, kv_events: bool
) -> Around:
    """Return what a search is told beside its trace."""
    names = [one.router for one in replicas if one.ready]
    return Around(
        leads=context.router_id <= min(names, default=context.router_id),
        replicas=max(1, len(names)),
        max_backlog_ms=context.gate.limits.max_backlog_ms,
        kv_events=kv_events,
    )


def new_ring(context: RoutingContext) -> TraceRing:
    """Return a ring for what a search plays, which the log of decisions writes from now on."""
    size = context.scheduler.options.block_size
    ring = context.decisions.ring = TraceRing(size, window_s=TRACE_S, max_bytes=TRACE_BYTES)
    return ring


def make_tuner(
    settings: RouterSettings,
    context: RoutingContext,
    rollout: Rollout,
    replicas: Callable[[], tuple[RouterHeartbeat, ...]],
    options: LoopOptions | None = None,
) -> AutoTuner | None:
    """Return the tuner that the settings ask for, as careful as the `options` say; None: none.

    Raises `ConfigError` where its searches cannot run: they are those of kvmesh-lab.
    """
    if settings.tune.auto_tune == "off":
        return None
    require_lab(f"--auto-tune {settings.tune.auto_tune}")
    tune = loop_options(settings.tune) if options is None else options
    return AutoTuner(tune, context, rollout, replicas, kv_events=settings.kv_events)


def running(tuner: AutoTuner | None) -> list[Coroutine[Any, Any, None]]:
    """Return what a process runs for its tuner."""
    return [] if tuner is None else [keep_running("auto-tune", tuner.run)]


def loop_options(settings: TuneSettings) -> LoopOptions:
    """Return how weights are tuned by these settings."""
    if settings.auto_tune_observe_s is None:
        return LoopOptions()
    return LoopOptions(tuner=TunerOptions(observe_s=settings.auto_tune_observe_s))
