"""Keeps one router's rates, history and problems, whether anybody looks or not."""

import asyncio
import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final

from kvmesh.actors.members.registry import ENGINE_HANGS
from kvmesh.actors.members.static_registry import TOO_LATE
from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.serve.routing_context import Ended, RoutingContext
from kvmesh.app.traffic.problems import (
    ReplicaState,
    WorkerState,
    replica_problems,
    traffic_problems,
    warning_problems,
    worker_problems,
)
from kvmesh.app.traffic.rows import (
    MOST_ROWS,
    ModelRow,
    TenantRow,
    TrafficRow,
    model_rows,
    tenant_rows,
    traffic_row,
)
from kvmesh.core.flows.flow import EndedRequest, Flow, FlowTable, SlidingFlow, error_class
from kvmesh.core.flows.history import History, Past, counted
from kvmesh.core.flows.problem_log import ProblemLog, ProblemRow
from kvmesh.core.insight.decision_record import DecisionRecord
from kvmesh.core.members.membership import DRAINING

COUNT_EVERY_S: Final = 0.25
LOOK_EVERY_S: Final = 1.0
SLICE: Final = 256
"""Requests counted in one turn of the event loop: some 1 ms."""

WINDOW_S: Final = 15.0
"""Of all traffic."""

NAMED_WINDOW_S: Final = 60.0
"""Of one model or tenant."""

_HANGS: Final = frozenset({ENGINE_HANGS, TOO_LATE})
"""Why a worker is not ready whose engine takes connections, or may, and answers no probe."""


class TrafficWatch:
    """Counts requests that ended, and looks once a second at what is wrong.

    `replicas`, `warnings` and `programs_waiting` tell what others know.
    """

    def __init__(self, context: RoutingContext) -> None:
        self._context = context
        now = context.clock()
        # One offset for the whole life, as the seconds of an overview have.
        self._offset_s = time.time() - now
        self._all = SlidingFlow(WINDOW_S, now)
        self._models = FlowTable(NAMED_WINDOW_S, MOST_ROWS, now)
        self._tenants = FlowTable(NAMED_WINDOW_S, MOST_ROWS, now)
        self._history = History()
        self._problems = ProblemLog()
        self._uncounted = Flow()
        self._looked_s = now
        self.replicas: Callable[[], Iterable[ReplicaState]] = tuple
        self.warnings: Callable[[], Iterable[str]] = tuple
        self.programs_waiting: Callable[[], int] = int

    async def run(self) -> None:
        """Count and look again and again, until cancelled."""
        while True:
            await self.catch_up()
            now = self._context.clock()
            if now - self._looked_s >= LOOK_EVERY_S:
                self.look(now)
            await asyncio.sleep(COUNT_EVERY_S)

    async def catch_up(self) -> None:
        """Count what ended; others get their turn between."""
        ended = self._context.counters.ended
        while ended:
            now = self._context.clock()
            for _ in range(min(SLICE, len(ended))):
                self._count(ended.popleft(), now)
            await asyncio.sleep(0)

    def look(self, now: float) -> None:
        """Enter the last second into the history, and see what is wrong. O(workers)."""
        context = self._context
        workers, row = self.workers(now), self.traffic(now)
        flow, self._uncounted = self._uncounted, Flow()
        elapsed_s, self._looked_s = now - self._looked_s, now
        gauges = {
            "seconds": max(0.0, elapsed_s),
            "looks": 1.0,
            "held": row.held,
            "programs_waiting": self.programs_waiting(),
            "queued": row.queued,
            "active_requests": self._active(),
            "workers": len(workers),
            "usable_workers": sum(one.usable for one in workers),
        }
        self._history.add(counted(flow) | gauges, now + self._offset_s)
        found = chain(
            worker_problems(workers),
            replica_problems(self.replicas()),
            traffic_problems(row, context.bucket),
            warning_problems(self.warnings(), context.router_id, context.bucket),
        )
        self._problems.look(found, now)

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

    def past(self, span_s: float) -> Past:
        """Return what was counted in the last `span_s` seconds."""
        now = self._context.clock() + self._offset_s
        return self._history.past(self._context.bucket, span_s, now)

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
            why_not=why_not or (health.words(worker, now) if stage != "in" else ""),
            stage=stage,
            trust=context.workers.info(worker).trust.value,
            hung=why_not in _HANGS or health.hangs(worker),
            leaving=why_not == DRAINING,
        )

    def _active(self) -> int:
        loads = self._context.scheduler.sequences.loads
        return sum(loads(one.worker).active_requests for one in self._context.router.workers())

    def _count(self, one: Ended, now: float) -> None:
        ended = ended_request(one)
        self._uncounted.add(ended)
        self._all.add(ended, now)
        self._models.add(one.model, ended, now)
        self._tenants.add(one.tenant, ended, now)


def ended_request(one: Ended) -> EndedRequest:
    """Return what counts of a request that ended: tokens by its engine's word, where that gave one.

    Time per token is only told where the answer ended whole.
    """
    error, record = error_class(one.kind, one.status), one.record
    if record is None:
        return EndedRequest(error)
    usage = record.reported
    output = (usage.completion_tokens if usage is not None else 0) or record.output_tokens
    prompt = (usage.prompt_tokens if usage is not None else 0) or record.prompt_tokens
    first_s, ended_s = record.first_token_s, record.ended_s
    decoded = not error and output > 1 and first_s is not None and ended_s is not None
    served = record.state == "finished"
    return EndedRequest(
        error,
        prompt_tokens=prompt if served else 0,
        output_tokens=output,
        ttft_ms=record.ttft_ms,
        decode_ms=_ms(record) if decoded else 0.0,
        decode_tokens=output - 1 if decoded else 0,
        reported_tokens=usage.prompt_tokens if usage is not None and _told(record) else 0,
        cached_tokens=(usage.cached_tokens or 0) if usage is not None else 0,
    )


def _told(record: DecisionRecord) -> bool:
    return record.reported is not None and record.reported.cached_tokens is not None


def _ms(record: DecisionRecord) -> float:
    """Return the time from the first token to the end."""
    assert record.first_token_s is not None
    assert record.ended_s is not None
    return max(0.0, record.ended_s - record.first_token_s) * 1000.0
