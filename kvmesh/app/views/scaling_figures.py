"""Figures for autoscalers: how full the workers are together, and which may leave first."""

from collections.abc import Mapping
from typing import Final

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.figure import Figure, Shown, Table
from kvmesh.app.views.program_rows import Programs
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.scaling import (
    Saturation,
    WorkerUse,
    drain_costs,
    read_price,
    saturation,
)


class Drain(msgspec.Struct, frozen=True):
    """What taking one worker away would cost, s of prefill by its price; `order` 1 is the first."""

    cost_s: float
    order: int


class MarkFigures(msgspec.Struct, frozen=True):
    """Engine pods that a replica marks with their drain cost, and its requests to the API server,
    by (list or patch, what came of it).
    """

    pods: int
    requests: dict[tuple[str, str], int]


def read_saturation(context: RoutingContext, programs: Programs) -> Saturation:
    """Return how full the workers are. Turns of `programs` that wait count with their contexts,
    other requests held with their prompts. O(workers + requests held).
    """
    held = context.routing.binding.waiting.values()
    return saturation(
        read_workers(context, programs),
        context.scaling,
        waiting_tokens=programs.unplaced_tokens,
        held_tokens=sum(request.prompt_tokens for request in held),
    )


def drain_rows(costs: Mapping[WorkerId, float]) -> Mapping[tuple[str, ...], Drain]:
    """Return what each worker would cost to lose, of costs with the cheapest first."""
    return {
        (worker,): Drain(cost_s, number) for number, (worker, cost_s) in enumerate(costs.items(), 1)
    }


def read_drain_costs(
    context: RoutingContext, programs: Programs, alone_tokens: Mapping[WorkerId, float]
) -> Mapping[WorkerId, float]:
    """Return what each worker would cost to lose, s, cheapest first; `alone_tokens` are expected to
    be asked for and kept by it alone. O(workers log workers).
    """
    uses = read_workers(context, programs)
    return drain_costs(
        [
            msgspec.structs.replace(one, alone_tokens=alone_tokens.get(one.worker, 0.0))
            for one in uses
        ]
    )


def read_workers(context: RoutingContext, programs: Programs) -> list[WorkerUse]:
    """Return what is known of each worker's load and memory now."""
    now = context.clock()
    return [_use(context, beat, programs, now) for beat in context.router.workers()]


def _use(
    context: RoutingContext, beat: WorkerHeartbeat, programs: Programs, now: float
) -> WorkerUse:
    scheduler, worker, load = context.scheduler, WorkerId(beat.worker), beat.load
    booked = scheduler.sequences.loads(worker)
    kept = programs.workers.get(worker)
    # The engine knows of requests of others; what was booked since it spoke it does not know.
    size = scheduler.options.block_size
    own = beat.block_size or size
    return WorkerUse(
        worker=worker,
        usable=scheduler.workers.membership.why_not(worker, now) is None,
        capacity_tokens=load.total_blocks * own,
        live_tokens=0 if kept is None else kept.working_set_tokens,
        used_tokens=max(load.used_blocks * own, booked.active_blocks * size),
        backlog_s=scheduler.wait_ms(worker, now) / 1000.0,
        per_token_s=scheduler.speeds.ms_per_token(worker) / 1000.0,
        requests=max(load.running_requests, booked.active_requests),
        slots=load.total_slots,
        price=read_price(beat.labels) or 0.0,
    )


# How a figure is read, then what it is.
# fmt: off
SCALING: Final = Table[Saturation](
    Figure("gauge", "kvmesh_saturation", lambda one: one.share,
           "How full the usable workers are together, by what fills them: predicted wait of a new "
           "request against a second, KV memory of requests that run, contexts of live "
           "programs against all KV memory, places for requests, requests held here. 1 is full.",
           ("cause",)),
    Figure("gauge", "kvmesh_wanted_workers", lambda one: one.wanted,
           "How many workers it would take for a saturation of 0.8, by cause. Those that"
           " hold requests back add up (held); of the others replicas say the same.", ("cause",)),
    Figure("gauge", "kvmesh_usable_workers", lambda one: one.workers,
           "Workers that may get requests."),
    Figure("gauge", "", lambda one: max(one.share.values(), default=None),
           "How full the usable workers are together, by what fills them most.",
           shown=Shown("saturation", dashboard="Full", format="percent", narrow="p3",
                       bucket="max")),
    Figure("gauge", "", lambda one: max(one.wanted.values(), default=None),
           "How many workers it would take, by what takes most.",
           shown=Shown("wanted_workers", bucket="max")),
)

DRAINS: Final = Table[Drain](
    Figure("gauge", "kvmesh_worker_drain_cost_seconds", lambda one: one.cost_s,
           "What taking a worker away now would cost the others: time to prefill again the contexts"
           " that are expected back, and the prompts that wait there; by its price against the mean"
           " (label kvmesh/price/NUMBER).",
           shown=Shown("drain_cost_s", format="s")),
    Figure("gauge", "kvmesh_worker_drain_order", lambda one: one.order,
           "In which order to take workers away: 1 is the cheapest.",
           shown=Shown("drain_order", dashboard="Leaves as", narrow="p4",
                       replicas="max")),
    labels=("worker",),
)

MARKS: Final = Table[MarkFigures](
    Figure("gauge", "kvmesh_marked_pods", lambda one: one.pods,
           "Engine pods that this replica marks with their drain cost; 0 where a sibling does."),
    Figure("counter", "kvmesh_pod_mark_requests", lambda one: one.requests,
           "Requests to the API server for --mark-pods, list or patch, by what came of it: done; "
           "gone, the pod was deleted meanwhile; refused with a status; failed without an answer.",
           ("request", "result")),
)
