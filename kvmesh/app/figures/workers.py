"""Figures of one worker, and of how workers or replicas fail."""

from typing import Final

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.care.failure_care import CareStatistics
from kvmesh.app.figures.figure import Shown, Table, counter, gauge, only_shown
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.health.record import STANDINGS
from kvmesh.core.insight.predictions import PredictionReport
from kvmesh.core.workers.info import Trust
from kvmesh.library.kv_metrics import EndpointMetrics

_STAGES: Final[tuple[str, ...]] = STANDINGS


class WorkerFacts:
    """One worker as its router knows it now; `load` is what its engine said last."""

    def __init__(self, context: RoutingContext, beat: WorkerHeartbeat) -> None:
        self.worker = worker = WorkerId(beat.worker)
        self.log = context.decisions
        self.scheduler = scheduler = context.router.scheduler
        self.loads = scheduler.sequences.loads(worker)
        self.load = beat.load
        membership = scheduler.workers.membership
        self.usable = membership.why_not(worker, context.clock()) is None
        self.trust = scheduler.workers.info(worker).trust


WORKERS: Final = Table[WorkerFacts](
    gauge(
        "kvmesh_worker_cached_blocks",
        "KV blocks a worker is known to hold.",
        lambda one: one.scheduler.overlaps.cached_blocks(one.worker),
        shown=Shown(
            "cached_blocks", dashboard="Blocks cached", top="cached", narrow="p2", replicas="max"
        ),
    ),
    gauge(
        "kvmesh_worker_active_requests",
        "Requests booked at a worker.",
        lambda one: one.loads.active_requests,
        shown=Shown("active_requests", dashboard="Requests", top="requests", bucket="sum"),
    ),
    only_shown(
        "Requests that wait by the engine's word.",
        lambda one: one.load.waiting_requests,
        Shown("waiting_requests", top="waiting"),
    ),
    gauge(
        "kvmesh_worker_prefill_tokens",
        "Uncached prompt tokens queued.",
        lambda one: one.loads.prefill_tokens,
        shown=Shown("prefill_tokens", dashboard="To prefill", top="prefill", narrow="p2"),
    ),
    only_shown(
        "Median of the last times to the first token.",
        lambda one: one.log.ttft_ms(one.worker),
        Shown("ttft_ms", dashboard="First token", top="TTFT", format="ms"),
    ),
    gauge(
        "kvmesh_worker_prefill_seconds_per_token",
        "Learned time to prefill an uncached token.",
        lambda one: one.scheduler.speeds.ms_per_token(one.worker) / 1000.0,
    ),
    only_shown(
        "Learned time to prefill an uncached token.",
        lambda one: one.scheduler.speeds.ms_per_token(one.worker),
        Shown(*("ms_per_token", "Prefill, ms/1k", "ms/token"), format="ms_per_token", narrow="p3"),
    ),
    only_shown(
        "KV blocks in use by the engine's word.",
        lambda one: one.load.used_blocks,
        Shown("used_blocks", bucket="sum"),
    ),
    only_shown(
        "KV blocks there are by the engine's word.",
        lambda one: one.load.total_blocks,
        Shown("total_blocks", bucket="sum"),
    ),
    only_shown(
        "Requests that run by the engine's word.",
        lambda one: one.load.running_requests,
        Shown("running_requests"),
    ),
    only_shown(
        "KV blocks of the requests booked at a worker.",
        lambda one: one.loads.active_blocks,
        Shown("active_blocks"),
    ),
    gauge("kvmesh_worker_usable", "1 while a worker may get requests.", lambda one: one.usable),
    gauge(
        "kvmesh_worker_trust",
        "1 for how far a worker's KV events are believed, 0 for the rest.",
        lambda one: {trust.value: float(trust is one.trust) for trust in Trust},
        "trust",
    ),
    labels=("worker",),
)

ENGINES: Final = Table[EndpointMetrics](
    gauge(
        "kvmesh_worker_gpu_cache_usage_perc",
        "KV cache in use by the engine's word, 0 to 1.",
        lambda one: one.gpu_cache_usage_perc,
    ),
    gauge(
        "kvmesh_worker_requests_waiting",
        "Requests waiting by the engine's word.",
        lambda one: one.num_requests_waiting,
    ),
    labels=("worker",),
)

PREDICTIONS: Final = Table[PredictionReport](
    counter(
        "kvmesh_worker_predictions",
        "Answers whose engine told its reuse, by how the prediction held "
        "(unlike: the engine counts other prompt tokens).",
        lambda one: {
            "hit": one.hits,
            "over": one.over,
            "under": one.under,
            "unlike": one.unlike,
        },
        "result",
    ),
    counter(
        "kvmesh_worker_prediction_tokens",
        "Prompt tokens predicted to be cached, and reused by the engine's word.",
        lambda one: {"predicted": one.predicted_tokens, "cached": one.cached_tokens},
        "kind",
    ),
    counter(
        "kvmesh_worker_prediction_resyncs",
        "How often a worker was asked for all it holds because predictions missed.",
        lambda one: one.doubts,
    ),
    gauge(
        "kvmesh_worker_doubted", "1 while predictions about a worker miss.", lambda one: one.doubted
    ),
    labels=("worker",),
)


def _care(what: str) -> Table[CareStatistics]:
    """Return the figures of members that fail; names and labels begin with `what` fails."""
    return Table[CareStatistics](
        counter(
            f"kvmesh_{what}_failures",
            f"Failed attempts at a {what}, by status or way of failing.",
            lambda one: one.failures,
            *(what, "kind"),
        ),
        gauge(
            f"kvmesh_{what}_stage",
            f"1 for where its requests put a {what}, 0 for the rest.",
            lambda one: {
                (member, stage): float(stage == standing)
                for member, standing in one.standings.items()
                for stage in _STAGES
            },
            *(what, "stage"),
        ),
        gauge(
            f"kvmesh_{what}_failure_share",
            f"Share of a {what}'s recent attempts that failed beyond the others' share.",
            lambda one: one.failure_shares,
            what,
        ),
        counter(
            f"kvmesh_{what}_ejections",
            f"Times that a {what} was ejected.",
            lambda one: one.ejections,
        ),
        gauge(
            f"kvmesh_{what}s_spared",
            f"Failing {what}s that get requests all the same, since more than a third fail.",
            lambda one: one.spared,
        ),
        counter(
            f"kvmesh_{what}_hung_attempts",
            f"Attempts given up because their {what} showed no sign of life.",
            lambda one: one.hung_attempts,
        ),
        gauge(
            f"kvmesh_waiting_for_{what}",
            f"Requests that wait while no {what} may be given one.",
            lambda one: one.waiting,
        ),
        counter(
            f"kvmesh_waited_for_{what}",
            f"Requests that waited while no {what} might be given one.",
            lambda one: one.waited,
        ),
    )


WORKER_CARE: Final = _care("worker")
REPLICA_CARE: Final = _care("replica")
