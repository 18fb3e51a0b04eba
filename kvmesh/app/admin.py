"""A router's cold paths: health, readiness, metrics, status."""

from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from kvmesh.app.front import Routes, answer_json
from kvmesh.app.prediction_metrics import prediction_metrics
from kvmesh.app.routed import RoutingContext
from kvmesh.app.token_check import TokenCheck
from kvmesh.core.decision import Trust
from kvmesh.core.events import WorkerId
from kvmesh.core.kv_metrics import KvMetricsAggregator
from kvmesh.transport.http.exchange import Exchange

METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
UNAVAILABLE = 503


class Part(Protocol):
    """What the admin paths ask of the mesh."""

    draining: bool

    def why_not(self) -> str:
        """Return why no request should come; "" when they may."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """Return what makes routing worse than it could be, one line each."""
        ...

    def describe(self) -> dict[str, object]:
        """Return the part's state."""
        ...


class Shown(Collector, Protocol):
    """A part with metrics and warnings."""

    def warnings(self) -> tuple[str, ...]:
        """Return what makes routing worse than it could be, one line each."""
        ...


class RouterAdmin:
    """Answers for one router replica. `check` tells whether its token ids are the engines'."""

    def __init__(self, context: RoutingContext, mesh: Part, check: TokenCheck) -> None:
        self._context = context
        self._mesh = mesh
        self._check = check
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._registry.register(check)
        self._warners: list[Callable[[], tuple[str, ...]]] = [mesh.warnings, check.warnings]

    def show(self, part: Shown) -> None:
        """Show the metrics and warnings of a further part."""
        self._registry.register(part)
        self._warners.append(part.warnings)

    def mount(self, routes: Routes) -> None:
        """Serve the admin paths."""
        routes.add("GET", "/health", lambda exchange: answer_json(exchange, {"status": "alive"}))
        routes.add("GET", "/ready", self._ready)
        routes.add("GET", "/metrics", self._metrics)
        routes.add("GET", "/v1/status", self._status)

    def _ready(self, exchange: Exchange) -> None:
        """Answer 200 when requests may come, else 503 with the reason; warnings, if any."""
        reason = self._mesh.why_not()
        ready = not reason
        answer: dict[str, object] = {"ready": ready, "reason": reason or "ready"}
        warnings = sorted({line for warner in self._warners for line in warner()})
        if warnings:
            answer["warnings"] = warnings
        answer_json(exchange, answer, status=200 if ready else UNAVAILABLE)

    def _metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, generate_latest(self._registry), content_type=METRICS_TYPE)

    def _status(self, exchange: Exchange) -> None:
        """Answer everything this replica knows of itself and its workers."""
        context = self._context
        now = context.clock()
        scheduler = context.router.scheduler
        membership = scheduler.workers.membership
        workers = [
            {
                "worker": beat.worker,
                "url": beat.url,
                "models": beat.models,
                "epoch": beat.epoch,
                "block_size": beat.block_size,
                "trust": scheduler.workers.info(beat.worker).trust.value,
                "usable": membership.why_not(beat.worker, now) is None,
                "why_not": membership.why_not(beat.worker, now),
                "load": beat.load,
                "active_requests": scheduler.sequences.loads(beat.worker).active_requests,
                "prefill_tokens": scheduler.sequences.loads(beat.worker).prefill_tokens,
                "active_blocks": scheduler.sequences.loads(beat.worker).active_blocks,
            }
            for beat in context.router.workers()
        ]
        answer_json(
            exchange,
            {
                "router": context.router_id,
                "bucket": context.bucket,
                "ready": not self._mesh.why_not(),
                "draining": self._mesh.draining,
                "mode": scheduler.options.mode,
                "cost": scheduler.options.cost,
                "block_size": scheduler.options.block_size,
                "requests": context.counters.as_dict(),
                "admission": {
                    "limits": context.gate.limits,
                    "statistics": context.gate.statistics(),
                },
                "scheduler": scheduler.statistics(),
                "sessions": scheduler.sessions and scheduler.sessions.statistics(),
                "mesh": self._mesh.describe(),
                "tokens": self._check.statistics(),
                "workers": workers,
                "predictions": {
                    worker: context.predictions.report(worker)
                    for worker in context.predictions.workers()
                },
            },
        )

    def collect(self) -> Iterator[Metric]:
        """Yield this replica's metrics as Prometheus reads them."""
        context = self._context
        requests = CounterMetricFamily(
            "kvmesh_requests", "Requests by how they ended.", labels=["outcome"]
        )
        counts = context.counters
        for outcome in ("finished", "client_gone", "cut", "refused", "unserved"):
            requests.add_metric([outcome], getattr(counts, outcome))
        yield requests
        yield CounterMetricFamily(
            "kvmesh_attempts_failed", "Attempts at a worker that failed.", counts.attempts_failed
        )
        tokens = CounterMetricFamily(
            "kvmesh_prompt_tokens",
            "Prompt tokens of answers whose engine reported its cache use.",
            labels=["kind"],
        )
        tokens.add_metric(["all"], counts.reported_tokens)
        tokens.add_metric(["predicted_cached"], counts.predicted_tokens)
        tokens.add_metric(["cached"], counts.cached_tokens)
        yield tokens
        yield from self._admission_metrics()
        yield from self._worker_metrics()
        yield from prediction_metrics(context.predictions)

    def _admission_metrics(self) -> Iterator[Metric]:
        counts = self._context.gate.statistics()
        yield GaugeMetricFamily(
            "kvmesh_queue_requests", "Requests held until a worker can begin.", counts.queued
        )
        yield GaugeMetricFamily(
            "kvmesh_queue_tenants", "Tenants with a request held.", counts.tenants
        )
        ended = CounterMetricFamily(
            "kvmesh_queue_ended", "Requests by how admission ended.", labels=["how"]
        )
        for how in ("released", "refused", "expired", "cancelled"):
            ended.add_metric([how], getattr(counts, how))
        yield ended
        yield SummaryMetricFamily(
            "kvmesh_queue_wait_seconds",
            "How long released requests were held.",
            counts.released,
            counts.waited_s,
        )

    def _worker_metrics(self) -> Iterator[Metric]:
        scheduler = self._context.router.scheduler
        sequences, workers = scheduler.sequences, scheduler.workers
        active = GaugeMetricFamily(
            "kvmesh_worker_active_requests", "Requests booked at a worker.", labels=["worker"]
        )
        prefill = GaugeMetricFamily(
            "kvmesh_worker_prefill_tokens", "Uncached prompt tokens queued.", labels=["worker"]
        )
        trust = GaugeMetricFamily(
            "kvmesh_worker_trust",
            "1 for how far a worker's KV events are believed, 0 for the rest.",
            labels=["worker", "trust"],
        )
        workers = self._context.router.scheduler.workers
        usage = GaugeMetricFamily(
            "kvmesh_worker_gpu_cache_usage_perc",
            "KV cache in use by the engine's word, 0 to 1.",
            labels=["worker"],
        )
        waiting = GaugeMetricFamily(
            "kvmesh_worker_requests_waiting",
            "Requests waiting by the engine's word.",
            labels=["worker"],
        )
        for said in KvMetricsAggregator(workers).get_metrics().endpoints:
            usage.add_metric([said.worker_id], said.gpu_cache_usage_perc)
            waiting.add_metric([said.worker_id], said.num_requests_waiting)
        for beat in self._context.router.workers():
            loads = sequences.loads(WorkerId(beat.worker))
            active.add_metric([beat.worker], loads.active_requests)
            prefill.add_metric([beat.worker], loads.prefill_tokens)
            for one in Trust:
                value = workers.info(beat.worker).trust is one
                trust.add_metric([beat.worker, one.value], float(value))
        yield active
        yield prefill
        yield usage
        yield waiting
        yield trust
