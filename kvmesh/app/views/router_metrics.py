"""What Prometheus reads of a router. Every name is explained in docs/metrics.md.

Labels are workers, and words from a fixed list: their number is bounded by the fleet's size.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.mesh_metrics import approx_metrics
from kvmesh.app.views.prediction_metrics import prediction_metrics
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.histogram import Histogram
from kvmesh.core.overlap.approx import ApproxIndex
from kvmesh.core.workers.info import Trust
from kvmesh.library.kv_metrics import KvMetricsAggregator


class Measured(Protocol):
    """A part of the router that has metrics of its own: the mesh."""

    def metrics(self) -> Iterable[Metric]:
        """Return them."""
        ...


class RouterMetrics:
    """Collects everything one replica knows of requests, workers and its part of the mesh."""

    def __init__(self, context: RoutingContext, mesh: Measured, routed: ApproxIndex) -> None:
        self._context = context
        self._mesh = mesh
        self._routed = routed

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as Prometheus reads them."""
        context = self._context
        yield from _requests(context)
        yield from _tokens(context)
        yield from _durations(context)
        yield from _shadows(context)
        yield from _admission(context)
        yield from _workers(context)
        yield from prediction_metrics(context.routing.predictions)
        yield from approx_metrics(self._routed.statistics())
        yield from self._mesh.metrics()


def _requests(context: RoutingContext) -> Iterator[Metric]:
    counts = context.counters
    yield counts.ends.metric(
        "kvmesh_requests", "Requests by how they ended and the class of the client's status."
    )
    retries = CounterMetricFamily(
        "kvmesh_retries",
        "Retries that the budget allowed or refused; free for what no worker saw.",
        labels=["result"],
    )
    retries.add_metric(["allowed"], context.budget.spent)
    retries.add_metric(["refused"], context.budget.refused)
    yield retries
    yield GaugeMetricFamily(
        "kvmesh_retry_budget", "Retries that the budget has saved up.", context.budget.left()
    )
    yield CounterMetricFamily(
        "kvmesh_attempts_failed", "Attempts at a worker that failed.", counts.attempts_failed
    )
    yield GaugeMetricFamily(
        "kvmesh_open_requests", "Requests booked and not yet over.", len(context.open_requests)
    )
    sequences = context.router.scheduler.sequences.statistics()
    yield GaugeMetricFamily(
        "kvmesh_booked_requests",
        "Requests booked by this replica and its peers.",
        sequences.active_requests,
    )


def _tokens(context: RoutingContext) -> Iterator[Metric]:
    counts, totals = context.routing.tokens, context.decisions.totals
    tokens = CounterMetricFamily(
        "kvmesh_prompt_tokens",
        "Prompt tokens of answers whose engine reported its cache use.",
        labels=["kind"],
    )
    tokens.add_metric(["all"], counts.reported)
    tokens.add_metric(["predicted_cached"], counts.predicted)
    tokens.add_metric(["cached"], counts.cached)
    yield tokens
    overlap = CounterMetricFamily(
        "kvmesh_overlap_tokens",
        "Prompt tokens of finished requests that were cached: at the worker that held most (best), "
        "at the chosen one (predicted), and what was given up between them for load (lost).",
        labels=["kind"],
    )
    overlap.add_metric(["prompt"], totals.prompt_tokens)
    overlap.add_metric(["best"], totals.best_tokens)
    overlap.add_metric(["predicted"], totals.predicted_tokens)
    overlap.add_metric(["lost"], totals.best_tokens - totals.predicted_tokens)
    yield overlap
    yield CounterMetricFamily(
        "kvmesh_output_tokens", "Tokens generated, by the engines' word.", totals.output_tokens
    )


def _durations(context: RoutingContext) -> Iterator[Metric]:
    totals = context.decisions.totals
    yield _histogram(
        "kvmesh_time_to_first_token_seconds", "From the decision to the first token.", totals.ttft_s
    )
    yield _histogram(
        "kvmesh_inter_token_latency_seconds",
        "Mean time between the tokens of one answer after its first.",
        totals.itl_s,
    )
    yield _histogram(
        "kvmesh_request_duration_seconds",
        "From the decision to the end of a finished request.",
        totals.duration_s,
    )
    phases = HistogramMetricFamily(
        "kvmesh_decision_seconds",
        "Time to decide, by phase: tokenize and decide of all requests; hash, find and score of "
        "one in 32.",
        labels=["phase"],
    )
    for phase, histogram in context.routing.phases.named():
        phases.add_metric([phase], _buckets(histogram), histogram.total)
    yield phases


def _shadows(context: RoutingContext) -> Iterator[Metric]:
    decisions = CounterMetricFamily(
        "kvmesh_shadow_decisions",
        "Decisions a shadow policy judged, and those where it would have taken the same worker.",
        labels=["policy", "kind"],
    )
    blocks = CounterMetricFamily(
        "kvmesh_shadow_overlap_blocks",
        "Blocks cached at the worker taken (achieved), and at the one it would have taken.",
        labels=["policy", "kind"],
    )
    wait = CounterMetricFamily(
        "kvmesh_shadow_wait_seconds",
        "Prefill queue in front of the request there (achieved), and where it would have gone.",
        labels=["policy", "kind"],
    )
    for one in context.decisions.shadows.reports():
        decisions.add_metric([one.policy, "judged"], one.decisions)
        decisions.add_metric([one.policy, "agreed"], one.agreed)
        blocks.add_metric([one.policy, "prompt"], one.request_blocks)
        blocks.add_metric([one.policy, "achieved"], one.achieved_blocks)
        blocks.add_metric([one.policy, "would_be"], one.would_be_blocks)
        wait.add_metric([one.policy, "achieved"], one.achieved_wait_ms / 1000.0)
        wait.add_metric([one.policy, "would_be"], one.would_be_wait_ms / 1000.0)
    yield from (decisions, blocks, wait)


def _admission(context: RoutingContext) -> Iterator[Metric]:
    counts = context.gate.statistics()
    yield GaugeMetricFamily(
        "kvmesh_queue_requests", "Requests held until a worker can begin.", counts.queued
    )
    yield GaugeMetricFamily("kvmesh_queue_tenants", "Tenants with a request held.", counts.tenants)
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


def _workers(context: RoutingContext) -> Iterator[Metric]:
    scheduler, now = context.router.scheduler, context.clock()
    sequences, workers = scheduler.sequences, scheduler.workers
    yield GaugeMetricFamily(
        "kvmesh_panic",
        "1 while no engine answers its probes in time and requests go there all the same.",
        float(workers.panic),
    )
    active = _by_worker("kvmesh_worker_active_requests", "Requests booked at a worker.")
    prefill = _by_worker("kvmesh_worker_prefill_tokens", "Uncached prompt tokens queued.")
    usable = _by_worker("kvmesh_worker_usable", "1 while a worker may get requests.")
    blocks = _by_worker("kvmesh_worker_cached_blocks", "KV blocks a worker is known to hold.")
    speed = _by_worker(
        "kvmesh_worker_prefill_seconds_per_token", "Learned time to prefill an uncached token."
    )
    trust = GaugeMetricFamily(
        "kvmesh_worker_trust",
        "1 for how far a worker's KV events are believed, 0 for the rest.",
        labels=["worker", "trust"],
    )
    usage = _by_worker(
        "kvmesh_worker_gpu_cache_usage_perc", "KV cache in use by the engine's word, 0 to 1."
    )
    waiting = _by_worker("kvmesh_worker_requests_waiting", "Requests waiting by the engine's word.")
    for said in KvMetricsAggregator(workers).get_metrics().endpoints:
        usage.add_metric([said.worker_id], said.gpu_cache_usage_perc)
        waiting.add_metric([said.worker_id], said.num_requests_waiting)
    for beat in context.router.workers():
        worker = WorkerId(beat.worker)
        loads = sequences.loads(worker)
        active.add_metric([worker], loads.active_requests)
        prefill.add_metric([worker], loads.prefill_tokens)
        usable.add_metric([worker], float(workers.membership.why_not(worker, now) is None))
        blocks.add_metric([worker], scheduler.overlaps.cached_blocks(worker))
        speed.add_metric([worker], scheduler.speeds.ms_per_token(worker) / 1000.0)
        for one in Trust:
            trust.add_metric([worker, one.value], float(workers.info(worker).trust is one))
    yield from (active, prefill, usable, blocks, speed, usage, waiting, trust)


def _by_worker(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["worker"])


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, buckets=_buckets(histogram), sum_value=histogram.total)


def _buckets(histogram: Histogram) -> Sequence[tuple[str, float]]:
    return [
        ("+Inf" if bound == float("inf") else f"{bound:g}", float(count))
        for bound, count in histogram.cumulative()
    ]
