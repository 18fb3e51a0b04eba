"""The engines' own load figures as a library: what each said last, for a formula of one's own.

metrics = KvMetricsAggregator(router.workers).get_metrics()   # a `KvRouter`, or a `Scheduler`
least = min(metrics.endpoints, key=lambda one: (one.num_requests_waiting, one.gpu_cache_usage_perc))
"""

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.registry import WorkerRegistry


class EndpointMetrics(msgspec.Struct, frozen=True):
    """One worker's figures. `gpu_cache_usage_perc` is 0..1, blocks are KV blocks; 0: not told."""

    worker_id: WorkerId
    gpu_cache_usage_perc: float
    num_requests_waiting: int
    num_requests_running: int
    kv_active_blocks: int
    kv_total_blocks: int


class KvMetrics(msgspec.Struct, frozen=True):
    """All workers' figures, sorted by name."""

    endpoints: tuple[EndpointMetrics, ...]


class KvMetricsAggregator:
    """Collects what the engines behind `workers` reported.

    Source: the names are those of NVIDIA Dynamo's `KvMetricsAggregator` binding.
    """

    def __init__(self, workers: WorkerRegistry) -> None:
        self._workers = workers

    def get_metrics(self) -> KvMetrics:
        """Return every member's last figures. O(workers)."""
        return KvMetrics(tuple(map(self._of, sorted(self._workers.membership.members()))))

    def _of(self, name: str) -> EndpointMetrics:
        worker = WorkerId(name)
        report, total = self._workers.last_report(worker), self._workers.capacity_blocks(worker)
        return EndpointMetrics(
            worker_id=worker,
            gpu_cache_usage_perc=report.used_blocks / total if total else 0.0,
            num_requests_waiting=report.waiting_requests,
            num_requests_running=report.running_requests,
            kv_active_blocks=report.used_blocks,
            kv_total_blocks=total,
        )
