"""Figures of a replica's requests: how they ended, what caches gave, how long all took."""

from typing import Final

from kvmesh.app.figures.figure import Figure, Shown, Table, counter, gauge, histogram
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.admission.queue import AdmissionStatistics
from kvmesh.core.insight.traffic_totals import TrafficTotals
from kvmesh.core.routing.shadow_policy import ShadowReport

REQUESTS: Final = Table[RoutingContext](
    counter(
        "kvmesh_requests",
        "Requests by how they ended and the class of the client's status.",
        lambda one: dict(one.counters.ends.items()),
        *("outcome", "status"),
    ),
    counter(
        "kvmesh_retries",
        "Retries that the budget allowed or refused; free for what no worker saw.",
        lambda one: {"allowed": one.budget.spent, "refused": one.budget.refused},
        "result",
    ),
    gauge(
        "kvmesh_retry_budget",
        "Retries that the budget has saved up.",
        lambda one: one.budget.left(),
    ),
    counter(
        "kvmesh_attempts_failed",
        "Attempts at a worker that failed.",
        lambda one: one.counters.attempts_failed,
    ),
    gauge(
        "kvmesh_open_requests",
        "Requests booked and not yet over.",
        lambda one: len(one.open_requests),
    ),
    gauge(
        "kvmesh_booked_requests",
        "Requests booked by this replica and its peers.",
        lambda one: one.router.scheduler.sequences.statistics().active_requests,
        shown=Shown("active_requests", dashboard="Requests", top="requests", narrow="p2"),
    ),
    gauge(
        "kvmesh_panic",
        "1 while no engine answers its probes in time and requests go there all the same.",
        lambda one: one.router.scheduler.workers.panic,
    ),
    counter(
        "kvmesh_prompt_tokens",
        "Prompt tokens of answers whose engine reported its cache use.",
        lambda one: {
            "all": one.counters.reported_tokens,
            "predicted_cached": one.counters.predicted_tokens,
            "cached": one.counters.cached_tokens,
        },
        "kind",
    ),
    histogram(
        "kvmesh_decision_seconds",
        "Time to decide, by phase: tokenize and decide of all requests; hash, find and score of "
        "one in 32.",
        lambda one: dict(one.phases.named()),
        "phase",
    ),
)

TOTALS: Final = Table[TrafficTotals](
    counter(
        "kvmesh_overlap_tokens",
        "Prompt tokens of finished requests that were cached: at the worker that held most (best), "
        "at the chosen one (predicted), and what was given up between them for load (lost).",
        lambda one: {
            "prompt": one.prompt_tokens,
            "best": one.best_tokens,
            "predicted": one.predicted_tokens,
            "lost": one.best_tokens - one.predicted_tokens,
        },
        "kind",
    ),
    counter(
        "kvmesh_output_tokens",
        "Tokens generated, by the engines' word.",
        lambda one: one.output_tokens,
    ),
    histogram(
        "kvmesh_time_to_first_token_seconds",
        "From the decision to the first token.",
        lambda one: one.ttft_s,
    ),
    histogram(
        "kvmesh_inter_token_latency_seconds",
        "Mean time between the tokens of one answer after its first.",
        lambda one: one.itl_s,
    ),
    histogram(
        "kvmesh_request_duration_seconds",
        "From the decision to the end of a finished request.",
        lambda one: one.duration_s,
    ),
)

SHADOWS: Final = Table[ShadowReport](
    counter(
        "kvmesh_shadow_decisions",
        "Decisions a shadow policy judged, and those where it would have taken the same worker.",
        lambda one: {"judged": one.decisions, "agreed": one.agreed},
        "kind",
    ),
    counter(
        "kvmesh_shadow_overlap_blocks",
        "Blocks cached at the worker taken (achieved), and at the one it would have taken.",
        lambda one: {
            "prompt": one.request_blocks,
            "achieved": one.achieved_blocks,
            "would_be": one.would_be_blocks,
        },
        "kind",
    ),
    counter(
        "kvmesh_shadow_wait_seconds",
        "Prefill queue in front of the request there (achieved), and where it would have gone.",
        lambda one: {
            "achieved": one.achieved_wait_ms / 1000.0,
            "would_be": one.would_be_wait_ms / 1000.0,
        },
        "kind",
    ),
    labels=("policy",),
)

ADMISSION: Final = Table[AdmissionStatistics](
    gauge(
        "kvmesh_queue_requests",
        "Requests held until a worker can begin.",
        lambda one: one.queued,
        shown=Shown("queued", bucket="sum"),
    ),
    gauge("kvmesh_queue_tenants", "Tenants with a request held.", lambda one: one.tenants),
    counter(
        "kvmesh_queue_ended",
        "Requests by how admission ended.",
        lambda one: {
            "released": one.released,
            "refused": one.refused,
            "expired": one.expired,
            "cancelled": one.cancelled,
        },
        "how",
    ),
    Figure(
        "kvmesh_queue_wait_seconds",
        "summary",
        "How long released requests were held.",
        lambda one: (one.released, one.waited_s),
    ),
)
