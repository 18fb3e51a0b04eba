"""What Prometheus reads of a meta-router."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvmesh.actors.members.meta_router import MetaRouter
from kvmesh.app.front.front import METRICS_TYPE, Routes
from kvmesh.app.serve.request_ends import RequestEnds
from kvmesh.app.views.mesh_metrics import silence_metrics
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpStatistics


class MetaMetrics:
    """Counts what came to the front door, and which replicas it may go to."""

    def __init__(
        self,
        meta: MetaRouter,
        http: Callable[[], HttpStatistics],
        ends: RequestEnds,
        clock: Callable[[], float],
    ) -> None:
        self._meta = meta
        self._ends = ends
        self._http = http
        self._clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def register(self, metrics: Collector) -> None:
        """Show further metrics."""
        self._registry.register(metrics)

    def mount(self, routes: Routes) -> None:
        """Serve /metrics."""
        routes.add("GET", "/metrics", self._serve)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as Prometheus reads them."""
        http, table, now = self._http(), self._meta.table, self._clock()
        yield CounterMetricFamily("kvmesh_meta_requests", "HTTP requests read.", http.requests)
        yield CounterMetricFamily(
            "kvmesh_meta_malformed_requests", "Requests refused unread.", http.malformed_requests
        )
        yield self._ends.metric(
            "kvmesh_meta_forwarded",
            "Requests forwarded by how they ended and the class of the client's status.",
        )
        yield GaugeMetricFamily("kvmesh_meta_open_requests", "Requests open.", http.open_requests)
        yield GaugeMetricFamily(
            "kvmesh_meta_connections", "Client connections.", http.open_connections
        )
        ready = GaugeMetricFamily(
            "kvmesh_meta_replica_ready",
            "1 for a replica that gets requests, else 0.",
            labels=["bucket", "replica"],
        )
        active = GaugeMetricFamily(
            "kvmesh_meta_replica_active_requests",
            "Requests of a replica, by its own word.",
            labels=["bucket", "replica"],
        )
        for replica in table.replicas():
            labels = [replica.bucket, replica.name]
            usable = table.membership.why_not(replica.name, now) is None
            ready.add_metric(labels, float(usable))
            active.add_metric(labels, replica.active_requests)
        yield ready
        yield active
        yield from silence_metrics(self._meta.hearing)

    def _serve(self, exchange: Exchange) -> None:
        exchange.respond(200, generate_latest(self._registry), content_type=METRICS_TYPE)
