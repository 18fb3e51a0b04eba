"""What a meta-router shows of itself: whether it is ready, its status, what is wrong."""

import time

from kvmesh.actors.meta_router import MetaRouter
from kvmesh.app.front.front import Routes, answer_json
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.members.failure_care import FailureCare
from kvmesh.app.members.warning_lines import UrlRefusals, by_reason
from kvmesh.app.mesh.meta_mesh import MetaMesh
from kvmesh.app.mesh.static_replicas import StaticReplicas
from kvmesh.app.meta.site_part import SitePart
from kvmesh.app.serve.formula_watch import FormulaWatch
from kvmesh.app.views.overview import SitesStatus
from kvmesh.app.views.tenant_view import TenantStatus
from kvmesh.transport.http.server.exchange import Exchange

UNAVAILABLE = 503


class MetaPages:
    """Answers /ready and /v1/status."""

    def __init__(
        self,
        meta: MetaRouter,
        feed: StaticReplicas | MetaMesh,
        care: FailureCare,
        refusals: UrlRefusals,
        watch: FormulaWatch,
        sites: SitePart | None,
    ) -> None:
        self._meta = meta
        self._feed = feed
        self._care = care
        self._refusals = refusals
        self._watch = watch
        self._sites = sites

    def mount(self, admin: Routes, viewers: Viewers) -> None:
        """Serve the status at the port for operators."""
        admin.add("GET", "/v1/status", lambda exchange: self._status(exchange, viewers))

    def sites(self) -> SitesStatus | None:
        """Return the other sites, None without any."""
        return None if self._sites is None else self._sites.status()

    def faults(self) -> tuple[str, ...]:
        """Return the warnings that are about no replica or worker."""
        return (
            *self._meta.link_health.warnings(),
            *by_reason(self._meta.given_up(time.monotonic()), "gets no requests"),
            *self._meta.warnings(time.monotonic()),
            *self._refusals.warnings(),
            *self._watch.warnings(),
            *self._feed.warnings(),
            *(() if self._sites is None else self._sites.warnings()),
        )

    def warnings(self) -> tuple[str, ...]:
        """Return all that is wrong, one line each."""
        failing = (
            (worker, f"say routers of bucket {bucket}, whose /ready says why")
            for worker, bucket in self._meta.left_out()
        )
        return (
            *self.faults(),
            *self._care.warnings(),
            *by_reason(failing, "gets no requests"),
        )

    def ready(self, exchange: Exchange) -> None:
        """Answer whether requests may come, and what is wrong."""
        ready = self._meta.ready(time.monotonic())
        body: dict[str, object] = {
            "ready": ready,
            "reason": "ready" if ready else self._feed.why_not() or "no ready replica",
        }
        if warnings := self.warnings():
            body["warnings"] = warnings
        answer_json(exchange, body, status=200 if ready else UNAVAILABLE)

    def _status(self, exchange: Exchange, viewers: Viewers) -> None:
        now = time.monotonic()
        viewer = viewers.of(exchange.request)
        if viewer is not None:
            answer_json(exchange, TenantStatus("meta-router", self._meta.ready(now), viewer.tenant))
            return
        table = self._meta.table
        buckets = {one: [r.name for r in table.ready(one, now)] for one in table.buckets()}
        status: dict[str, object] = {
            "ready_replicas": buckets,
            "replicas": self._meta.replicas(now),
            "statistics": self._meta.statistics(),
            "refused": self._refusals.guard.refused(now),
        }
        if (sites := self.sites()) is not None:
            status["sites"] = sites
        answer_json(exchange, status)
