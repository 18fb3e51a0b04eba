"""/metrics: what Prometheus reads of a process. Names: docs/reference/metrics.md.

Labels are members and words from a fixed list: their number is bounded by the fleet's size.
"""

import contextlib

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from kvmesh.app.front.front import METRICS_TYPE, Routes
from kvmesh.app.front.page_time import PageTime
from kvmesh.app.process.place import Place
from kvmesh.app.process.shared_metrics import SharedMetrics
from kvmesh.app.views.figure import Source, Sources
from kvmesh.transport.http.server.exchange import Exchange


class MetricsPage:
    """Serves the figures of all `sources`, and those of the process itself."""

    def __init__(self, *sources: Source) -> None:
        self.sources = Sources(*sources)
        self._registry = CollectorRegistry()
        self._registry.register(self.sources)
        ProcessCollector(registry=self._registry)
        self._time = PageTime()
        self._shared: SharedMetrics | None = None

    def mount(self, routes: Routes) -> None:
        """Serve /metrics."""
        routes.add("GET", "/metrics", self._serve)

    def _serve(self, exchange: Exchange) -> None:
        if self._shared is not None:
            exchange.scope.start(self._serve_all(exchange, self._shared))
            return
        page = self._own()
        exchange.respond(200, page, content_type=METRICS_TYPE)

    async def share(self, place: Place, stack: contextlib.AsyncExitStack) -> None:
        """Be one of several processes, each of which serves the metrics of all."""
        self._shared = SharedMetrics(place, self._own)
        await self._shared.serve(stack)

    async def _serve_all(self, exchange: Exchange, shared: SharedMetrics) -> None:
        exchange.respond(200, await shared.page(), content_type=METRICS_TYPE)

    def _own(self) -> bytes:
        return self._time.page("", lambda: generate_latest(self._registry))
