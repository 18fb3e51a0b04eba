"""A router's cold paths: health, readiness, metrics, status."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.front.front import Routes, answer_json
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.members.warning_lines import WORKERLESS, by_reason
from kvmesh.app.mesh.router_mesh import MeshPart
from kvmesh.app.process.place import own_place
from kvmesh.app.prompts.token_check import TokenCheck
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.figure import Source
from kvmesh.app.views.front_figures import TOKENS
from kvmesh.app.views.metrics_page import MetricsPage
from kvmesh.app.views.other_names import SEVERAL, Served
from kvmesh.app.views.policy_view import PolicyRow
from kvmesh.app.views.router_view import MOST_RECORDS
from kvmesh.app.views.routing_figures import routing_sources
from kvmesh.app.views.tenant_view import TenantStatus
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.decision_record import count_states
from kvmesh.tasks import Work
from kvmesh.transport.http.server.exchange import Exchange

UNAVAILABLE = 503
ANY_WORKERS = "workers=any"
UNSALTED = "tenants may share its cached blocks in spite of --tenant-secret-file"


class RouterAdmin:
    """Answers for one router replica. `check` tells whether its token ids are the engines'; `parts`
    are further fields of its status; `why_not` tells why no request should come.
    """

    def __init__(
        self,
        context: RoutingContext,
        mesh: MeshPart,
        check: TokenCheck,
        policy: Callable[[], PolicyRow],
    ) -> None:
        self._context = context
        self._mesh = mesh
        self._check = check
        self._policy = policy
        self.parts: dict[str, Callable[[], object]] = {}
        self.viewers = Viewers("")
        self.in_rows: Callable[[], tuple[str, ...]] = tuple
        self.why_not = mesh.why_not
        self._page = MetricsPage(
            *(*routing_sources(context), *mesh.figures(), TOKENS.of(check.statistics)),
            served=self._served,
        )
        self.sources = self._page.sources
        self._warners: list[Callable[[], tuple[str, ...]]] = [mesh.warnings, check.warnings]

    def show(self, source: Source, warnings: Callable[[], tuple[str, ...]]) -> None:
        """Show the figures and warnings of a further part."""
        self.sources.add(source)
        self._warners.append(warnings)

    def warn(self, warnings: Callable[[], tuple[str, ...]]) -> None:
        """Show the warnings of a further part."""
        self._warners.append(warnings)

    def warnings(self) -> list[str]:
        """Return what makes routing worse than it could be, one line each, sorted."""
        lines = {line for warner in self._warners for line in warner()}
        if self.viewers.apart:
            lines.update(by_reason(self._unsalted(), UNSALTED))
        return sorted(lines)

    def warnings_but_rows(self) -> list[str]:
        """Return the warnings without those that rows of workers tell."""
        left_out = frozenset(self.in_rows())
        return [line for line in self.warnings() if line not in left_out]

    def _served(self) -> Served:
        beats = self._context.router.workers()
        models = {model for beat in beats for model in {*beat.models}.difference(beat.adapters)}
        return Served(SEVERAL if len(models) > 1 else "".join(models), self._context.bucket)

    def _unsalted(self) -> Iterator[tuple[str, str]]:
        for beat in self._context.router.workers():
            if "/" in beat.unsalted:
                yield beat.worker, "its engine is of no kind known to take cache_salt"

    async def share(self, stack: contextlib.AsyncExitStack) -> None:
        """Show the metrics of all processes, where this is one of several."""
        if (place := own_place()) is not None:
            await self._page.share(place, stack)

    def mount_probes(self, routes: Routes) -> None:
        """Serve what balancers ask."""
        routes.add("GET", "/health", lambda exchange: answer_json(exchange, {"status": "alive"}))
        routes.add("GET", "/ready", self._ready)

    def mount(self, routes: Routes) -> None:
        """Serve the admin paths."""
        self._page.mount(routes)
        routes.add("GET", "/v1/status", self._status)

    def _ready(self, exchange: Exchange) -> None:
        """Answer 200 when requests may come, else 503 with the reason; warnings, if any.

        With the query `workers=any` the lack of a worker is no reason.
        """
        reason = self.why_not()
        ready = not reason
        if exchange.request.query == ANY_WORKERS:
            ready = ready or reason in WORKERLESS
        answer: dict[str, object] = {"ready": ready, "reason": reason or "ready"}
        if warnings := self.warnings():
            answer["warnings"] = warnings
        answer_json(exchange, answer, status=200 if ready else UNAVAILABLE)

    def _status(self, exchange: Exchange) -> None:
        """Answer everything this replica knows of itself and its workers; a tenant what it may."""
        context = self._context
        viewer = self.viewers.of(exchange.request)
        if viewer is not None:
            ready, tenant = not self.why_not(), viewer.tenant
            states = count_states(context.decisions.records.latest(MOST_RECORDS), tenant)
            own = TenantStatus(context.router_id, ready, tenant, states)
            answer_json(exchange, own)
            return
        now = context.clock()
        scheduler = context.scheduler
        membership = scheduler.workers.membership
        workers = [
            {
                "worker": beat.worker,
                "url": beat.url,
                "models": beat.models,
                "epoch": beat.epoch,
                "block_size": beat.block_size,
                "trust": context.trust(beat.worker).value,
                "usable": membership.why_not(beat.worker, now) is None,
                "why_not": membership.why_not(beat.worker, now),
                "load": beat.load,
                "active_requests": scheduler.sequences.loads(beat.worker).active_requests,
                "prefill_tokens": scheduler.sequences.loads(beat.worker).prefill_tokens,
                "active_blocks": scheduler.sequences.loads(beat.worker).active_blocks,
            }
            for beat in context.router.workers()
        ]
        answer_json(
            exchange,
            {
                "router": context.router_id,
                "bucket": context.bucket,
                "ready": not self.why_not(),
                "draining": self._mesh.draining,
                "mode": scheduler.options.mode,
                "cost": scheduler.policy.cost.name,
                "policy": self._policy(),
                "block_size": scheduler.options.block_size,
                "block_size_from": context.router.sizes.source,
                "block_sizes": context.router.sizes.followed,
                "requests": context.counters.as_dict(),
                "admission": {
                    "limits": context.gate.limits,
                    "statistics": context.gate.statistics(),
                },
                "scheduler": scheduler.statistics(),
                "slo": scheduler.slo.statistics(),
                "shadow_policies": context.decisions.shadows.reports(),
                "output_lengths": scheduler.lengths.statistics(),
                "sessions": scheduler.sessions and scheduler.sessions.statistics(),
                "mesh": self._mesh.describe(),
                "tokens": self._check.statistics(),
                "workers": workers,
                "refused": scheduler.workers.guard.refused(now),
                "predictions": {
                    worker: context.routing.predictions.report(worker)
                    for worker in context.routing.predictions.workers()
                },
                "accesses": context.routing.accesses.reports,
                **{name: read() for name, read in self.parts.items()},
            },
        )


Replicas = Callable[[], Iterable[RouterHeartbeat]]
Costs = Callable[[], Mapping[WorkerId, float]]
"""What losing each worker would cost, s."""

ShownMarks = Callable[[RoutingContext, Replicas, Costs, RouterAdmin], Work]
"""Shows what marks pods by these, and returns what is to run."""
