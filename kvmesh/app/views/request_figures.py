"""Figures of a replica's requests: how they ended, what caches gave, how long all took."""

from typing import Final

from kvmesh._native import Totals
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.figure import Figure, Shown, Table
from kvmesh.core.admission.queue import AdmissionStatistics
from kvmesh.core.admission.shares import LedgerStatistics
from kvmesh.core.cost.own import OwnStatistics
from kvmesh.core.insight.decision_log import DecisionLogStatistics
from kvmesh.core.members.fetch_times import PLACE_NAMES
from kvmesh.core.routing.choice.slo_tracker import SloStatistics
from kvmesh.core.routing.shadow_policy import ShadowReport
from kvmesh.transport.http.forward.resume import StreamKeep

# How a figure is read, then what it is.
# fmt: off
REQUESTS: Final = Table[RoutingContext](
    Figure("counter", "kvmesh_requests", lambda one: dict(one.counters.ends.items()),
           "Requests by how they ended and the class of the client's status.",
           ("outcome", "status")),
    Figure("counter", "kvmesh_retries", lambda one: {
               "allowed": one.budget.spent, "refused": one.budget.refused},
           "Retries that the budget allowed or refused; free for what no worker saw.", ("result",)),
    Figure("gauge", "kvmesh_retry_budget", lambda one: one.budget.left(),
           "Retries that the budget has saved up."),
    Figure("counter", "kvmesh_attempts_failed", lambda one: one.counters.attempts_failed,
           "Attempts at a worker that failed."),
    Figure("counter", "kvmesh_prefill_splits",
           lambda one: {why or "split": count for why, count in one.counters.splits.items()},
           "With prefill workers: chats and completions by why one worker did all of it, or split.",
           ("way",)),
    Figure("gauge", "kvmesh_open_requests", lambda one: len(one.open_requests),
           "Requests booked and not yet over."),
    Figure("gauge", "kvmesh_open_websockets", lambda one: len(one.sockets.open),
           "WebSockets open, or being opened."),
    Figure("gauge", "kvmesh_booked_requests",
           lambda one: one.scheduler.sequences.statistics().active_requests,
           "Requests booked by this replica and its peers.",
           shown=Shown("active_requests", dashboard="Requests", top="requests", narrow="p2")),
    Figure("counter", "kvmesh_fetched_tokens", lambda one: {
               place: float(tokens) for place, tokens in
               zip(PLACE_NAMES, one.scheduler.fetches.tokens, strict=True) if tokens},
           "Prompt tokens that chosen workers were expected to bring to their devices, by where "
           "they lay (peer: another worker's cache).", ("place",)),
    Figure("gauge", "kvmesh_panic", lambda one: one.workers.panic,
           "1 while no engine answers its probes in time and requests go there all the same."),
    Figure("counter", "kvmesh_prompt_tokens", lambda one: {
               "all": one.routing.tokens.prompt,
               "saved": one.routing.tokens.saved,
               "reported": one.routing.tokens.reported,
               "predicted_cached": one.routing.tokens.predicted,
               "cached": one.routing.tokens.cached},
           "Prompt tokens of all answers (all), and those not computed since they were cached "
           "(saved): by the engine's word, or as predicted where it does not report its cache use. "
           "Of answers whose engine does (reported): predicted_cached, and cached by its word; "
           "saved less cached is what is predicted alone.", ("kind",)),
    Figure("counter", "kvmesh_saved_seconds", lambda one: one.routing.tokens.saved_s,
           "Engine time that computing the saved prompt tokens would have taken, at each worker's "
           "learned speed."),
    Figure("counter", "kvmesh_unforeseen_requests", lambda one: dict(one.routing.unforeseen),
           "Served requests whose engine's cache use cannot be predicted, by why; they are no "
           "evidence for or against an index.", ("reason",)),
    Figure("histogram", "kvmesh_decision_seconds", lambda one: dict(one.routing.phases.named()),
           "Time to decide, by phase: tokenize and decide of all requests; hash, find and score of "
           "one in 32.", ("phase",)),
)

STREAMS: Final = Table[StreamKeep](
    Figure("counter", "kvmesh_streams_cut",
           lambda one: {"continued": one.continued, "lost": one.lost},
           "Streams whose next hop was lost, or left, in the middle of the answer: continued "
           "elsewhere, or lost.", ("result",)),
    Figure("counter", "kvmesh_streams_not_kept", lambda one: one.given_up,
           "Streams that cannot go on elsewhere since --keep-stream-bytes were kept already."),
    Figure("gauge", "kvmesh_stream_kept_bytes", lambda one: one.used,
           "Bytes set aside for streams under way, of --keep-stream-bytes."),
    Figure("counter", "kvmesh_streams_resumed", lambda one: one.resumed,
           "Streams whose clients had lost them and asked for the rest."),
    Figure("gauge", "kvmesh_stream_named_bytes", lambda one: one.named.used,
           "Bytes kept of streams that clients named, here and at siblings, for a minute behind "
           "their last news; at most a quarter of --keep-stream-bytes."),
    Figure("counter", "kvmesh_stream_news_missed", lambda one: one.named.missed,
           "News of named streams that could not be used: some before was lost, or the stream "
           "is not known here."),
)

TOTALS: Final = Table[Totals](
    Figure("counter", "kvmesh_overlap_tokens", lambda one: {
               "prompt": one.prompt_tokens, "best": one.best_tokens,
               "predicted": one.predicted_tokens, "lost": one.best_tokens - one.predicted_tokens},
           "Prompt tokens of finished requests that were cached: at the worker that held most of "
           "those considered (best), at the chosen one (predicted), and what was given up between "
           "them for load (lost).",
           ("kind",)),
    Figure("counter", "kvmesh_output_tokens", lambda one: one.output_tokens,
           "Tokens generated, by the engines' word, else as many as their streams had."),
    Figure("histogram", "kvmesh_request_prompt_tokens", lambda one: one.prompt_sizes,
           "Prompt tokens of a finished request, by the engine's word, else as counted here."),
    Figure("histogram", "kvmesh_request_output_tokens", lambda one: one.output_sizes,
           "Tokens of its answer."),
    Figure("histogram", "kvmesh_time_to_first_token_seconds", lambda one: one.ttft_s,
           "From the decision to the first token."),
    Figure("histogram", "kvmesh_inter_token_latency_seconds", lambda one: one.itl_s,
           "Mean time between the tokens of one answer after its first."),
    Figure("histogram", "kvmesh_request_duration_seconds", lambda one: one.duration_s,
           "From the decision to the end of a finished request."),
)

INSIGHT: Final = Table[DecisionLogStatistics](
    Figure("counter", "kvmesh_insight_records", lambda one: {
               ("decision", "read"): one.read, ("decision", "dropped"): one.dropped,
               ("end", "read"): one.read_ends, ("end", "dropped"): one.dropped_ends},
           "Decisions and ends that were read for shadows, hot prefixes, workers' first tokens and "
           "the trace, and those dropped because requests came faster: these figures are then of a "
           "sample.", ("stage", "result")),
)

FORMULAS: Final = Table[OwnStatistics](
    Figure("counter", "kvmesh_formula_decisions", lambda one: {
               "decided": one.decisions - one.faults, "failed": one.faults},
           "Times a cost formula of one's own was asked; where it failed the default decided.",
           ("kind",)),
    Figure("gauge", "kvmesh_formula_off", lambda one: one.off,
           "1 while a cost formula is not asked, because it failed five times in a row."),
    labels=("formula",),
)

SHADOWS: Final = Table[ShadowReport](
    Figure("counter", "kvmesh_shadow_decisions", lambda one: {
               "judged": one.decisions, "agreed": one.agreed},
           "Decisions a shadow policy judged, and those where it would have taken the same worker.",
           ("kind",)),
    Figure("counter", "kvmesh_shadow_overlap_blocks", lambda one: {
               "prompt": one.request_blocks, "achieved": one.achieved_blocks,
               "would_be": one.would_be_blocks},
           "Blocks cached at the worker taken (achieved), and at the one it would have taken.",
           ("kind",)),
    Figure("counter", "kvmesh_shadow_wait_seconds", lambda one: {
               "achieved": one.achieved_wait_ms / 1000.0,
               "would_be": one.would_be_wait_ms / 1000.0},
           "Prefill queue in front of the request there (achieved), and where it would have gone.",
           ("kind",)),
    labels=("policy",),
)

SHARES: Final = Table[LedgerStatistics](
    Figure("gauge", "kvmesh_tenant_accounts", lambda one: one.tenants,
           "Tenants whose service is counted."),
    Figure("gauge", "kvmesh_tenant_spread_tokens", lambda one: one.apart,
           "How far the waiting tenant with least service is behind that with most."),
    Figure("counter", "kvmesh_tenant_service_tokens", lambda one: {
               "here": one.charged, "siblings": one.received},
           "Tokens charged to tenants, output twice, by who charged: this replica or siblings.",
           ("where",)),
    Figure("counter", "kvmesh_tenant_passed_over", lambda one: one.passed,
           "Times a tenant that waits at siblings was not given way to any longer."),
)

ADMISSION: Final = Table[AdmissionStatistics](
    Figure("gauge", "kvmesh_queue_requests", lambda one: one.queued,
           "Requests held until a worker can begin.", shown=Shown("queued", bucket="sum")),
    Figure("gauge", "kvmesh_queue_tenants", lambda one: one.tenants,
           "Tenants with a request held."),
    Figure("counter", "kvmesh_queue_ended", lambda one: {
               "released": one.released, "refused": one.refused, "expired": one.expired,
               "cancelled": one.cancelled},
           "Requests by how admission ended.", ("how",)),
    Figure("summary", "kvmesh_queue_wait_seconds", lambda one: (one.released, one.waited_s),
           "How long released requests were held."),
)

# How a figure is read, then what it is.
# fmt: off
SLO: Final = Table[SloStatistics](
    Figure("counter", "kvmesh_slo_requests", lambda one: one.results,
           "Requests with targets by what became of them: met, missed_ttft, missed_tpot, refused "
           "at once since they would have been missed, unserved (failed, or the client left). "
           "Goodput is the rate of met.", ("result",)),
    Figure("counter", "kvmesh_slo_foretold_misses", lambda one: one.foretold_misses,
           "Misses that were expected of the answered ones: the sum of the chances at which they "
           "were sent. Far from those that came, predictions are off."),
    Figure("gauge", "kvmesh_slo_open_requests", lambda one: one.open,
           "Requests with targets that are not over."),
    Figure("gauge", "kvmesh_slo_prediction_ratio", lambda one: {
               "ttft": one.ttft_bias, "tpot": one.tpot_bias},
           "Actual over predicted times, typically (geometric mean); forecasts allow for it.",
           ("time",)),
    Figure("gauge", "kvmesh_slo_prediction_spread", lambda one: {
               "ttft": one.ttft_spread, "tpot": one.tpot_spread},
           "Standard deviation of the logarithm of that ratio.", ("time",)),
)
