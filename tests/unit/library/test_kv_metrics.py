import random

import pytest

from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import LoadReport, WorkerInfo
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.library.kv_metrics import EndpointMetrics, KvMetricsAggregator
from kvmesh.library.listener import MeshView


def test_every_members_last_report_is_an_endpoint() -> None:
    membership = Membership()
    workers = WorkerRegistry(membership, new_sequences(16))
    for name in ("b", "a", "silent"):
        membership.add(name, 0.0)
    reported = LoadReport(3, 2, 25, 100, total_slots=256, prefix_hit_rate=0.75)
    workers.report(WorkerId("a"), reported)
    workers.describe(WorkerId("b"), WorkerInfo(total_blocks=50))
    workers.report(WorkerId("b"), LoadReport(used_blocks=10))

    metrics = KvMetricsAggregator(workers).get_metrics()

    assert [one.worker_id for one in metrics.endpoints] == ["a", "b", "silent"]
    a, b, silent = metrics.endpoints
    assert (a.gpu_cache_usage_perc, a.num_requests_waiting, a.num_requests_running) == (0.25, 2, 3)
    assert (a.request_active_slots, a.request_total_slots) == (3, 256)
    assert a.gpu_prefix_cache_hit_rate == 0.75
    assert (b.gpu_cache_usage_perc, b.kv_active_blocks, b.kv_total_blocks) == (0.2, 10, 50)
    assert (silent.gpu_cache_usage_perc, silent.kv_total_blocks) == (0.0, 0)
    assert [metrics.get_worker_load(name) for name in ("a", "b", "silent")] == [0.25, 0.2, 0.0]
    assert metrics.get_worker_load("left") == 1.0


class Mesh:
    """A mesh of two workers, one of which tells its size; a token takes 0.5 ms to prefill."""

    def __init__(self) -> None:
        membership = Membership()
        sequences = new_sequences(16)
        self.scheduler = Scheduler(
            RouterOptions(), random.Random(1), membership=membership, sequences=sequences
        )
        for name in ("w0", "w1"):
            membership.add(name, 0.0)
        self.scheduler.workers.describe(WorkerId("w0"), WorkerInfo(total_blocks=100))
        self.scheduler.workers.report(
            WorkerId("w0"), LoadReport(prefilled_tokens=10_000, prefill_busy_us=5_000_000)
        )
        self.now = 0.0

    def view(self) -> MeshView:
        return MeshView(self.scheduler, KvIndex(), ROOT, self.now)

    def book(self, name: str, tokens: int, *, streams: bool = True) -> None:
        hashes = BlockHashes([1] * tokens, 16)
        worker = WorkerId(name)
        request = RouteRequest(
            f"{name}-{tokens}", hashes, tokens, mode="direct", pinned_worker=worker, streams=streams
        )
        self.scheduler.schedule(request, self.now)

    def endpoints(self) -> tuple[EndpointMetrics, ...]:
        return KvMetricsAggregator(self).get_metrics().endpoints


def test_what_is_booked_in_a_mesh_counts_before_an_engine_reports_it() -> None:
    mesh = Mesh()

    mesh.book("w0", 320)
    waiting, idle = mesh.endpoints()
    mesh.scheduler.first_token("w0-320", 0.0)
    running, _ = mesh.endpoints()

    assert (waiting.num_requests_waiting, waiting.num_requests_running) == (1, 0)
    assert (waiting.prefill_tokens, waiting.kv_active_blocks) == (320, 20)
    assert waiting.gpu_cache_usage_perc == 0.2
    assert (running.num_requests_waiting, running.num_requests_running) == (0, 1)
    assert (running.request_active_slots, running.load) == (1, 0.2)
    assert idle == EndpointMetrics("w1", 0.0, 0, 0, 0, 0)


def test_what_an_engine_reports_counts_where_it_is_more() -> None:
    mesh = Mesh()

    mesh.book("w0", 320)
    mesh.scheduler.workers.report(
        WorkerId("w0"), LoadReport(5, 4, 90, 100, total_slots=8, prefix_hit_rate=0.5)
    )
    endpoint, _ = mesh.endpoints()

    assert (endpoint.num_requests_running, endpoint.num_requests_waiting) == (5, 4)
    assert (endpoint.kv_active_blocks, endpoint.gpu_cache_usage_perc, endpoint.load) == (
        90,
        0.9,
        0.9,
    )
    assert (endpoint.request_total_slots, endpoint.gpu_prefix_cache_hit_rate) == (8, 0.5)


def test_a_backlog_of_a_second_is_half_a_load_and_of_nine_nearly_all() -> None:
    mesh = Mesh()
    ms_per_token = mesh.scheduler.speeds.ms_per_token(WorkerId("w1"))

    mesh.book("w1", round(1000 / ms_per_token))
    _, second = mesh.endpoints()
    mesh.book("w1", round(8000 / ms_per_token))
    _, nine = mesh.endpoints()

    assert second.load == pytest.approx(0.5, abs=0.01)
    assert nine.load == pytest.approx(0.9, abs=0.01)


def test_prefills_that_nobody_sees_end_are_not_waited_for_for_ever() -> None:
    mesh = Mesh()

    mesh.book("w1", 320, streams=False)
    _, waiting = mesh.endpoints()
    mesh.now = 60.0
    _, later = mesh.endpoints()

    assert (waiting.num_requests_waiting, later.num_requests_waiting) == (1, 0)
    assert later.num_requests_running == 1


def test_a_worker_that_may_be_given_nothing_is_no_endpoint_of_a_mesh() -> None:
    mesh = Mesh()

    mesh.scheduler.workers.membership.observe("w0", 0, 0.0, draining=True)

    assert [one.worker_id for one in mesh.endpoints()] == ["w1"]
