"""The sidecar's port: /health and /ready for probes, /metrics for Prometheus."""

from typing import Final, Protocol

from kvmesh.app.front.front import Routes, answer_json
from kvmesh.app.process.build import own_build
from kvmesh.app.process.running import Stop
from kvmesh.app.views.figure import Labels
from kvmesh.app.views.metrics_page import MetricsPage
from kvmesh.app.views.process_figures import BUILD, INTERNAL_ERRORS
from kvmesh.app.views.sidecar_figures import SIDECAR, SIDECAR_RANKS, RankFacts, SidecarFacts
from kvmesh.observe import get_logger
from kvmesh.settings.http import SidecarHttpSettings
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.server import HttpServer

LIMITS: Final = HttpLimits(
    max_connections=256,
    max_header_bytes=16 * 1024,
    max_body_bytes=1024,
    max_total_body_bytes=64 * 1024,
    max_pipelined=4,
    idle_timeout_s=60.0,
    write_stall_s=10.0,
)
"""Probes and scrapes have no bodies; so many of them at once are no probes."""

UNAVAILABLE: Final = 503


class Watched(Protocol):
    """A sidecar: it runs until it shall stop, and says how it is."""

    async def serve(self, stop: Stop) -> None:
        """Run until `stop`."""
        ...

    def facts(self) -> SidecarFacts:
        """Return how it is now."""
        ...


class SidecarPages:
    """Runs a sidecar, and with a port in `settings` serves what it says of itself.

    The port is open before the engine answers: a probe learns what the start waits for.
    """

    def __init__(self, settings: SidecarHttpSettings, sidecar: Watched) -> None:
        self._settings = settings
        self._sidecar = sidecar

    async def serve(self, stop: Stop) -> None:
        """Run the sidecar until `stop`. Raises what it does; `TransportError` for a taken port."""
        if not self._settings.http_port:
            await self._sidecar.serve(stop)
            return
        server = HttpServer(self._routes(stop), limits=LIMITS)
        host, port = self._settings.http_host, self._settings.http_port
        await server.start(host, port)
        get_logger().info("sidecar's port serves", url=f"http://{host}:{port}")
        try:
            await self._sidecar.serve(stop)
        finally:
            await server.close()

    def _routes(self, stop: Stop) -> Routes:
        routes = Routes()
        routes.add("GET", "/health", lambda exchange: answer_json(exchange, {"status": "alive"}))
        routes.add("GET", "/ready", self._ready)
        metrics = MetricsPage(
            SIDECAR.of(self._sidecar.facts),
            SIDECAR_RANKS.of_each(self._ranks),
            INTERNAL_ERRORS.of(lambda: stop.errors),
            BUILD.of(own_build),
        )
        metrics.mount(routes)
        return routes

    def _ready(self, exchange: Exchange) -> None:
        facts = self._sidecar.facts()
        why = facts.why_not()
        body: dict[str, object] = {
            "ready": not why,
            "reason": why or "ready",
            "workers": [one.beat.worker for one in facts.ranks],
        }
        if warnings := facts.warnings():
            body["warnings"] = warnings
        answer_json(exchange, body, status=UNAVAILABLE if why else 200)

    def _ranks(self) -> dict[Labels, RankFacts]:
        return {(one.beat.worker,): one for one in self._sidecar.facts().ranks}
