from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.core.workers.info import LoadReport, WorkerInfo
from kvmesh.core.workers.sequences import ActiveSequences
from kvmesh.library.kv_metrics import KvMetricsAggregator


def test_every_members_last_report_is_an_endpoint() -> None:
    membership = Membership()
    workers = WorkerRegistry(membership, ActiveSequences(16))
    for name in ("b", "a", "silent"):
        membership.add(name, 0.0)
    workers.report(WorkerId("a"), LoadReport(3, 2, 25, 100))
    workers.describe(WorkerId("b"), WorkerInfo(total_blocks=50))
    workers.report(WorkerId("b"), LoadReport(used_blocks=10))

    endpoints = KvMetricsAggregator(workers).get_metrics().endpoints

    assert [one.worker_id for one in endpoints] == ["a", "b", "silent"]
    a, b, silent = endpoints
    assert (a.gpu_cache_usage_perc, a.num_requests_waiting, a.num_requests_running) == (0.25, 2, 3)
    assert (b.gpu_cache_usage_perc, b.kv_active_blocks, b.kv_total_blocks) == (0.2, 10, 50)
    assert (silent.gpu_cache_usage_perc, silent.kv_total_blocks) == (0.0, 0)
