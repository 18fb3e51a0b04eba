"""How busy the engines are, as a library: figures for a formula of one's own.

metrics = KvMetricsAggregator(router.workers).get_metrics()   # a `KvRouter`, or a `Scheduler`
least = min(metrics.endpoints, key=lambda one: (one.num_requests_waiting, one.gpu_cache_usage_perc))

metrics = KvMetricsAggregator(await kvmesh.follow(nats_url, bucket)).get_metrics()   # a live mesh
metrics.get_worker_load("worker-0")   # 0..1
"""

from typing import Final

import msgspec

from kvmesh._native import WorkerState
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.library.listener import Listener, MeshView

HALF_LOADED_MS: Final = 1000.0
"""A backlog of prefill that takes so long makes a worker half loaded."""


class EndpointMetrics(msgspec.Struct, frozen=True):
    """One worker's figures. Shares are 0..1, blocks are KV blocks; 0: none, or not told.

    `num_requests_running` and `request_active_slots` are the same number. `load` is what
    `KvMetrics.get_worker_load` returns; `prefill_tokens` are uncached prompt tokens that wait.
    """

    worker_id: str
    gpu_cache_usage_perc: float
    num_requests_waiting: int
    num_requests_running: int
    kv_active_blocks: int
    kv_total_blocks: int
    request_active_slots: int = 0
    request_total_slots: int = 0
    gpu_prefix_cache_hit_rate: float = 0.0
    prefill_tokens: int = 0
    load: float = 0.0


class KvMetrics(msgspec.Struct, frozen=True):
    """All workers' figures, sorted by name."""

    endpoints: tuple[EndpointMetrics, ...]

    def get_worker_load(self, worker_id: str) -> float:
        """Return how busy a worker is: 0 idle, 1 full.

        It is the share of its KV cache in use or, where that is more, its backlog: prompts that
        take w seconds to prefill make it w / (w + 1), so one second counts half. A worker that is
        not among the endpoints, as it has just left, is full. O(workers).
        """
        return next((one.load for one in self.endpoints if one.worker_id == worker_id), 1.0)


class KvMetricsAggregator:
    """Collects how busy `source` knows its workers to be.

    Of a `WorkerRegistry` these are the last figures of the engines of all its members. Of a
    listener (`kvmesh.follow`): of the workers that may be given requests, and whatever routers and
    followers have booked there counts at once, before an engine reports it. A booked request waits
    until its first token; cache in use and requests are what is booked or reported, whichever is
    more.
    Source: the names are those of NVIDIA Dynamo's `KvMetricsAggregator` and `ForwardPassMetrics`.
    """

    def __init__(self, source: WorkerRegistry | Listener) -> None:
        self._source = source

    def get_metrics(self) -> KvMetrics:
        """Return the present figures. O(workers). Raises as `Listener.view`."""
        source = self._source
        if not isinstance(source, WorkerRegistry):
            return _of_mesh(source.view())
        members = sorted(source.membership.members())
        return KvMetrics(tuple(_reported(source.state(WorkerId(name))) for name in members))


def _reported(state: WorkerState) -> EndpointMetrics:
    report, total = state.report, state.capacity_blocks
    usage = report.used_blocks / total if total else 0.0
    return EndpointMetrics(
        worker_id=state.worker,
        gpu_cache_usage_perc=usage,
        num_requests_waiting=report.waiting_requests,
        num_requests_running=report.running_requests,
        kv_active_blocks=report.used_blocks,
        kv_total_blocks=total,
        request_active_slots=report.running_requests,
        request_total_slots=report.total_slots,
        gpu_prefix_cache_hit_rate=report.prefix_hit_rate,
        load=min(1.0, usage),
    )


def _of_mesh(view: MeshView) -> KvMetrics:
    scheduler, now = view.scheduler, view.now
    scheduler.sequences.settle(now, scheduler.speeds.ms_per_token)
    states = scheduler.workers.states(scheduler.workers.everyone(now))
    return KvMetrics(tuple(_booked(state, view) for state in states))


def _booked(state: WorkerState, view: MeshView) -> EndpointMetrics:
    report, loads, total = state.report, state.loads, state.capacity_blocks
    booked_waiting = loads.waiting_requests
    running = max(report.running_requests, loads.active_requests - booked_waiting)
    blocks = max(report.used_blocks, loads.active_blocks)
    usage = min(1.0, blocks / total) if total else 0.0
    wait_ms = loads.wait_ms(view.scheduler.speeds.ms_per_token(state.worker), view.now)
    return EndpointMetrics(
        worker_id=state.worker,
        gpu_cache_usage_perc=usage,
        num_requests_waiting=max(report.waiting_requests, booked_waiting),
        num_requests_running=running,
        kv_active_blocks=blocks,
        kv_total_blocks=total,
        request_active_slots=running,
        request_total_slots=report.total_slots,
        gpu_prefix_cache_hit_rate=report.prefix_hit_rate,
        prefill_tokens=loads.prefill_tokens,
        load=max(usage, wait_ms / (wait_ms + HALF_LOADED_MS)),
    )
