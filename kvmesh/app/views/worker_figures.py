"""Figures of one worker, and of how workers or replicas fail."""

from typing import Final

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.members.failure_care import CareStatistics
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.figure import Figure, Shown, Table
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.predictions import AccessReport, PredictionReport
from kvmesh.core.members.fetch_times import PLACE_NAMES, PLACES
from kvmesh.core.members.health_record import STANDINGS
from kvmesh.core.members.worker_info import Trust
from kvmesh.library.kv_metrics import EndpointMetrics

_STAGES: Final[tuple[str, ...]] = STANDINGS


class WorkerFacts:
    """One worker as its router knows it now; `load` is what its engine said last."""

    def __init__(self, context: RoutingContext, beat: WorkerHeartbeat) -> None:
        self.worker = worker = WorkerId(beat.worker)
        self.log = context.decisions
        self.scheduler = scheduler = context.scheduler
        self.loads = scheduler.sequences.loads(worker)
        self.load = beat.load
        self._workers = scheduler.workers
        self._trust = context.trust
        self._clock = context.clock

    def usable(self) -> bool:
        """Return whether it may get requests."""
        return self._workers.membership.why_not(self.worker, self._clock()) is None

    def fetch_times(self) -> dict[str, float]:
        """Return the time to bring a token to the device, s, by where it lies, as far as seen."""
        now = self._clock()
        per_token = self.scheduler.speeds.ms_per_token(self.worker)
        times = self.scheduler.fetch_times
        reports = (times.report(self.worker, place, per_token, now) for place in range(PLACES))
        return {
            name: report.ms_per_token / 1000.0
            for name, report in zip(PLACE_NAMES, reports, strict=True)
            if report.samples
        }

    def trusts(self) -> dict[str, float]:
        """Return 1 for how far its KV events are believed, 0 for the rest."""
        trust = self._trust(self.worker)
        return {one.value: float(one is trust) for one in Trust}


# How a figure is read, then what it is.
# fmt: off
WORKERS: Final = Table[WorkerFacts](
    Figure("gauge", "kvmesh_worker_cached_blocks",
           lambda one: one.scheduler.overlaps.cached_blocks((one.worker,))[0],
           "KV blocks a worker is known to hold.",
           shown=Shown("cached_blocks", dashboard="Blocks cached", top="cached", narrow="p2",
                       replicas="max")),
    Figure("gauge", "kvmesh_worker_active_requests", lambda one: one.loads.active_requests,
           "Requests booked at a worker.",
           shown=Shown("active_requests", dashboard="Requests", top="requests", bucket="sum")),
    Figure("gauge", "", lambda one: one.load.waiting_requests,
           "Requests that wait by the engine's word.",
           shown=Shown("waiting_requests", top="waiting")),
    Figure("gauge", "kvmesh_worker_prefill_tokens", lambda one: one.loads.prefill_tokens,
           "Uncached prompt tokens queued.",
           shown=Shown("prefill_tokens", dashboard="To prefill", top="prefill", narrow="p2")),
    Figure("gauge", "", lambda one: one.log.ttft_ms(one.worker),
           "Median of the last times to the first token.",
           shown=Shown("ttft_ms", dashboard="First token", top="TTFT", format="ms")),
    Figure("gauge", "kvmesh_worker_prefill_seconds_per_token",
           lambda one: one.scheduler.speeds.ms_per_token(one.worker) / 1000.0,
           "Learned time to prefill an uncached token."),
    Figure("gauge", "", lambda one: one.scheduler.speeds.ms_per_token(one.worker),
           "Learned time to prefill an uncached token.",
           shown=Shown("ms_per_token", dashboard="Prefill, ms/1k", top="ms/token",
                       format="ms_per_token", narrow="p3")),
    Figure("gauge", "", lambda one: one.load.used_blocks,
           "KV blocks in use by the engine's word.", shown=Shown("used_blocks", bucket="sum")),
    Figure("gauge", "", lambda one: one.load.total_blocks,
           "KV blocks there are by the engine's word.", shown=Shown("total_blocks", bucket="sum")),
    Figure("gauge", "", lambda one: one.load.running_requests,
           "Requests that run by the engine's word.", shown=Shown("running_requests")),
    Figure("gauge", "", lambda one: one.loads.active_blocks,
           "KV blocks of the requests booked at a worker.", shown=Shown("active_blocks")),
    Figure("gauge", "kvmesh_worker_fetch_seconds_per_token", lambda one: one.fetch_times(),
           "Learned time to bring a token's KV cache to a worker's device, by where it lies (peer: "
           "another worker's cache); only what was seen.", ("place",)),
    Figure("gauge", "kvmesh_worker_usable", lambda one: one.usable(),
           "1 while a worker may get requests."),
    Figure("gauge", "kvmesh_worker_trust", lambda one: one.trusts(),
           "1 for how far a worker's foretold overlaps are believed, 0 for the rest.", ("trust",)),
    labels=("worker",),
)

ENGINES: Final = Table[EndpointMetrics](
    Figure("gauge", "kvmesh_worker_gpu_cache_usage_perc", lambda one: one.gpu_cache_usage_perc,
           "KV cache in use by the engine's word, 0 to 1."),
    Figure("gauge", "kvmesh_worker_requests_waiting", lambda one: one.num_requests_waiting,
           "Requests waiting by the engine's word."),
    Figure("gauge", "kvmesh_worker_requests_running", lambda one: one.num_requests_running,
           "Requests running by the engine's word."),
    labels=("worker",),
)

PREDICTIONS: Final = Table[PredictionReport](
    Figure("counter", "kvmesh_worker_predictions", lambda one: {
               "hit": one.hits, "over": one.over, "under": one.under, "unlike": one.unlike},
           "Answers whose engine reported its reuse, by how the prediction held "
           "(unlike: the engine counts other prompt tokens).", ("result",)),
    Figure("counter", "kvmesh_worker_prediction_tokens", lambda one: {
               "predicted": one.predicted_tokens, "cached": one.cached_tokens},
           "Prompt tokens predicted to be cached, and reused by the engine's word.", ("kind",)),
    Figure("counter", "kvmesh_worker_prediction_resyncs", lambda one: one.doubts,
           "How often a worker was asked for all it holds because predictions missed."),
    Figure("gauge", "kvmesh_worker_doubted", lambda one: one.doubted,
           "1 while predictions about a worker miss."),
    Figure("gauge", "kvmesh_worker_predictions_right_ratio",
           lambda one: one.right_share,
           "Share of the last 64 answers that reused what was predicted to within a block; below "
           "0.9 the worker's overlaps are called estimated."),
    labels=("worker",),
)

ACCESSES: Final = Table[AccessReport](
    Figure("counter", "kvmesh_worker_accessed_blocks",
           lambda one: one.blocks if one.reported else None,
           "KV blocks that a worker reused for prompts, by its answers' cached_tokens; none while "
           "no answer reported them.",
           shown=Shown("accessed_blocks", dashboard="Blocks accessed", narrow="p4",
                       replicas="sum", bucket="sum")),
    Figure("counter", "kvmesh_worker_accessed_tokens",
           lambda one: one.tokens if one.reported else None,
           "The same in prompt tokens.",
           shown=Shown("accessed_tokens", replicas="sum", bucket="sum")),
    Figure("counter", "kvmesh_worker_accesses", lambda one: {
               "told": one.reported, "untold": one.untold},
           "Served answers by whether they reported what was reused (untold: engines that do not "
           "report it).", ("usage",)),
    labels=("worker",),
)


def _care(what: str) -> Table[CareStatistics]:
    """Return the figures of members that fail; names and labels begin with `what` fails."""
    return Table[CareStatistics](
        Figure("counter", f"kvmesh_{what}_failures", lambda one: one.failures,
               f"Failed attempts at a {what}, by status or way of failing.", (what, "kind")),
        Figure("gauge", f"kvmesh_{what}_stage", lambda one: {
                   (member, stage): float(stage == standing)
                   for member, standing in one.standings.items() for stage in _STAGES},
               f"1 for where its requests put a {what}, 0 for the rest.", (what, "stage")),
        Figure("gauge", f"kvmesh_{what}_failure_share", lambda one: one.failure_shares,
               f"Share of a {what}'s recent attempts that failed beyond the others' share.",
               (what,)),
        Figure("counter", f"kvmesh_{what}_ejections", lambda one: one.ejections,
               f"Times that a {what} was ejected."),
        Figure("gauge", f"kvmesh_{what}s_spared", lambda one: one.spared,
               f"Failing {what}s that get requests all the same, since more than a third fail."),
        Figure("counter", f"kvmesh_{what}_hung_attempts", lambda one: one.hung_attempts,
               f"Attempts given up because their {what} showed no sign of life."),
        Figure("gauge", f"kvmesh_waiting_for_{what}", lambda one: one.waiting,
               f"Requests that wait while no {what} may be given one."),
        Figure("counter", f"kvmesh_waited_for_{what}", lambda one: one.waited,
               f"Requests that waited while no {what} might be given one."),
    )


WORKER_CARE: Final = _care("worker")
REPLICA_CARE: Final = _care("replica")
