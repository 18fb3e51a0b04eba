"""What a replica's /metrics shows of its requests and workers: a sidecar loads none of it."""

from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.figure import Source
from kvmesh.app.views.request_figures import (
    ADMISSION,
    INSIGHT,
    REQUESTS,
    SHADOWS,
    SHARES,
    SLO,
    STREAMS,
    TOTALS,
)
from kvmesh.app.views.worker_figures import ACCESSES, ENGINES, PREDICTIONS, WORKERS, WorkerFacts
from kvmesh.library.kv_metrics import KvMetricsAggregator


def routing_sources(context: RoutingContext) -> tuple[Source, ...]:
    """Return what one replica knows of its requests and workers."""
    scheduler, predictions = context.scheduler, context.routing.predictions
    accesses = context.routing.accesses
    endpoints = KvMetricsAggregator(scheduler.workers)
    return (
        REQUESTS.of(lambda: context),
        STREAMS.of(lambda: context.counters.streams),
        TOTALS.of(lambda: context.decisions.totals),
        INSIGHT.of(context.decisions.statistics),
        ADMISSION.of(context.gate.statistics),
        SHARES.of(scheduler.ledger.statistics),
        SHADOWS.of_each(
            lambda: {(one.policy,): one for one in context.decisions.shadows.reports()}
        ),
        WORKERS.of_each(
            lambda: {
                (beat.worker,): WorkerFacts(context, beat) for beat in context.router.workers()
            }
        ),
        ENGINES.of_each(
            lambda: {(one.worker_id,): one for one in endpoints.get_metrics().endpoints}
        ),
        PREDICTIONS.of_each(
            lambda: {(worker,): predictions.report(worker) for worker in predictions.workers()}
        ),
        ACCESSES.of_each(
            lambda: {(worker,): one for worker, one in sorted(accesses.reports.items())}
        ),
        SLO.of(scheduler.slo.statistics),
    )
