"""Keeps one router's rates and problems, whether anybody looks or not."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import ceil
from typing import Final

from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat
from kvmesh.actors.registry import ENGINE_HANGS
from kvmesh.actors.static_registry import DOWN, TOO_LATE
from kvmesh.app.serve.routing_context import Ended, RoutingContext
from kvmesh.app.views.problems import (
    ReplicaState,
    WorkerState,
    replica_problems,
    traffic_problems,
    warning_problems,
    worker_problems,
)
from kvmesh.app.views.traffic_rows import (
    MOST_ROWS,
    ModelRow,
    TenantRow,
    TrafficRow,
    model_rows,
    tenant_rows,
    traffic_row,
)
from kvmesh.core.insight.flow import Flow, FlowTable, SlidingFlow, error_class
from kvmesh.core.insight.mark_log import MarkLog, SeenMember
from kvmesh.core.insight.problem_log import ProblemLog, ProblemRow
from kvmesh.core.members.health import Health
from kvmesh.core.members.membership import DRAINING
from kvmesh.tasks import to_next

COUNT_EVERY_S: Final = 0.25
CHECK_EVERY_S: Final = 1.0
SLICE: Final = 256
"""Requests counted in one turn of the event loop: some 0.5 ms."""

MOST_COUNTED: Final = 512
"""Requests counted at a time, so 2048 a second: they take 2 us each."""

_ERROR: Final = 400

WINDOW_S: Final = 15.0
"""Of all traffic."""

NAMED_WINDOW_S: Final = 60.0
"""Of one model or tenant."""

_HANGS: Final = frozenset({ENGINE_HANGS, TOO_LATE})
"""Why a worker is not ready whose engine takes connections, or may, and answers no probe."""

SILENT: Final = "took its last request and gave no answer; it answers its health check"


class TrafficWatch:
    """Counts requests that ended, and looks once a second at what is wrong, and what changed.

    `replicas`, `warnings` and `siblings` tell what others know. `on_ended` is given all requests
    that ended, at each look.
    """

    def __init__(self, context: RoutingContext) -> None:
        self._context = context
        now = context.clock()
        self._all = SlidingFlow(WINDOW_S, now)
        self._models = FlowTable(NAMED_WINDOW_S, MOST_ROWS, now)
        self._tenants = FlowTable(NAMED_WINDOW_S, MOST_ROWS, now)
        self._problems = ProblemLog()
        self._checked_s = now
        self.replicas: Callable[[], Iterable[ReplicaState]] = tuple
        self.warnings: Callable[[], Iterable[str]] = tuple
        self.siblings: Callable[[], Iterable[RouterHeartbeat]] = tuple
        self.marks = MarkLog(context.bucket)
        self.marks.add("restart", context.router_id, "started", now)
        self._admission = context.router.admission
        self.on_ended: Callable[[Sequence[Ended]], Awaitable[None]] = _ignore

    async def run(self) -> None:
        """Count and check at intervals, until cancelled."""
        while True:
            await self.catch_up()
            now = self._context.clock()
            if now - self._checked_s >= CHECK_EVERY_S:
                self.check(now)
            await asyncio.sleep(to_next(COUNT_EVERY_S))

    async def catch_up(self) -> None:
        """Count what ended; others get their turn between. Of more than `MOST_COUNTED` requests
        that went well a sample stands for all, those that did not are all counted.
        """
        ended = self._context.counters.ended
        there = [ended.popleft() for _ in range(len(ended))]
        await self.on_ended(there)
        if not there:
            return
        good = [one for one in there if one[3] == "finished" and one[4] < _ERROR]
        bad = [one for one in there if one[3] != "finished" or one[4] >= _ERROR]
        sample = good[:: ceil(len(good) / MOST_COUNTED)] if good else good
        for part, weight in ((bad, 1.0), (sample, len(good) / max(1, len(sample)))):
            for first in range(0, len(part), SLICE):
                self._count(part[first : first + SLICE], weight)
                await asyncio.sleep(0)

    def check(self, now: float) -> None:
        """See what is wrong. O(workers)."""
        context = self._context
        self._checked_s = now
        found = chain(
            worker_problems(self.workers(now)),
            replica_problems(self.replicas()),
            traffic_problems(self.traffic(now), context.bucket),
            warning_problems(self.warnings(), context.router_id, context.bucket),
        )
        self._problems.check(found, now)
        self.mark(now)

    def mark(self, now: float) -> None:
        """Note what changed. O(workers)."""
        self.marks.look(chain(self._seen_workers(now), self._seen_siblings()), now)
        if (admission := self._context.router.admission) != self._admission:
            self._admission = admission
            self.marks.add("setting", admission.by, "bounds of admission changed", now)

    def _seen_workers(self, now: float) -> Iterator[SeenMember]:
        why_not = self._context.workers.membership.why_not
        for beat in self._context.router.workers():
            why, life = why_not(beat.worker, now), beat.incarnation or beat.epoch
            up = beat.answering and why not in {DOWN, ENGINE_HANGS}
            yield SeenMember(str(beat.worker), life, beat.version, up=up, draining=why == DRAINING)

    def _seen_siblings(self) -> Iterator[SeenMember]:
        for beat in self.siblings():
            if beat.router != self._context.router_id:
                yield SeenMember(beat.router, beat.epoch, beat.version, draining=beat.draining)

    def traffic(self, now: float) -> TrafficRow:
        """Return the traffic of the last seconds."""
        context = self._context
        queued = sum(one.load.waiting_requests for one in context.router.workers())
        held = len(context.gate.waiting) + context.patience.waiting
        return traffic_row(self._all.rates(now), queued=queued, held=held)

    def models(self, now: float) -> list[ModelRow]:
        """Return the busiest models of the last minute."""
        return model_rows(self._models.rows(now))

    def tenants(self, now: float) -> list[TenantRow]:
        """Return the busiest tenants of the last minute."""
        return tenant_rows(self._tenants.rows(now))

    def problems(self, now: float) -> list[ProblemRow]:
        """Return what is wrong."""
        return self._problems.rows(now)

    def workers(self, now: float) -> list[WorkerState]:
        """Return how each worker stands."""
        return [self._worker(beat, now) for beat in self._context.router.workers()]

    def _worker(self, beat: WorkerHeartbeat, now: float) -> WorkerState:
        context, worker = self._context, beat.worker
        membership = context.workers.membership
        health, why_not = membership.health, membership.why_not(worker, now) or ""
        stage = health.standing(worker, now)
        return WorkerState(
            worker=worker,
            bucket=context.bucket,
            usable=not why_not,
            why_not=why_not or _why_distrusted(health, worker, now),
            stage=stage,
            trust=context.trust(worker).value,
            hung=why_not in _HANGS or health.hangs(worker),
            leaving=why_not == DRAINING,
        )

    def _count(self, part: Sequence[Ended], weight: float) -> None:
        """Count requests, each `weight` times: first those of one model and tenant together."""
        groups: dict[tuple[str, str], Flow] = {}
        for one in part:
            flow = groups.get(one[1:3])
            if flow is None:
                flow = groups[one[1:3]] = Flow()
            count_ended(flow, one)
        now = self._context.clock()
        for (model, tenant), sums in groups.items():
            flow = Flow()
            flow.add(sums, weight)
            self._all.add(flow, now)
            self._models.add(model, flow, now)
            self._tenants.add(tenant, flow, now)


async def _ignore(ended: Sequence[Ended]) -> None:
    """Do nothing about requests that ended."""


def _why_distrusted(health: Health, worker: str, now: float) -> str:
    """Return what speaks against a worker that gets requests all the same; "" for nothing."""
    if health.standing(worker, now) != "in":
        return health.words(worker, now)
    return SILENT if health.hangs(worker) else ""


def count_ended(flow: Flow, one: Ended) -> None:
    """Count a request: tokens by its engine's word, where that gave one.

    Prompts and the time per token are only those of answers that ended whole.
    """
    record, kind, status = one[0], one[3], one[4]
    flow.requests += 1
    if error := error_class(kind, status):
        flow.errors[error] = flow.errors.get(error, 0.0) + 1
    if record is None:
        return
    usage, output, prompt = record.reported, record.output_tokens, record.prompt_tokens
    if usage is not None:
        output = usage.completion_tokens or output
        prompt = usage.prompt_tokens or prompt
    flow.output_tokens += output
    first_s, ended_s = record.first_token_s, record.ended_s
    if first_s is not None:
        flow.first_tokens += 1
        flow.ttft_ms += max(0.0, first_s - record.decided_s) * 1000.0
    if error:
        return
    flow.prompt_tokens += prompt
    if output > 1 and first_s is not None and ended_s is not None:
        flow.decode_ms += max(0.0, ended_s - first_s) * 1000.0
        flow.decode_tokens += output - 1
