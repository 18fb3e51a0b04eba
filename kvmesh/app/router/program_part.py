"""Programs at one router: the governor, what is shown of them, and who tells it of workers; what
sends prompts again of the router's own accord, and what marks pods with the cost of losing them.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import msgspec

from kvmesh.app.front.front import Routes
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.router.admin import Replicas, RouterAdmin, ShownMarks
from kvmesh.app.router.mesh_choice import is_alone
from kvmesh.app.router.router_options import governor_options
from kvmesh.app.serve.routing_context import RoutingContext, target_of
from kvmesh.app.serve.toucher import Toucher, toucher_of
from kvmesh.app.serve.warmer import Warmer, warmer_of
from kvmesh.app.views.program_figures import PRESSURES, PROGRAMS, TOUCHES, WARMED
from kvmesh.app.views.program_watch import ProgramWatch
from kvmesh.app.views.programs_page import ProgramsPage
from kvmesh.app.views.scaling_figures import (
    DRAINS,
    SCALING,
    drain_rows,
    read_drain_costs,
    read_saturation,
)
from kvmesh.bounds import listed
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.insight.scaling import PRICE, read_price
from kvmesh.core.programs.governor import Governor
from kvmesh.core.routing.program_fleet import GovernedFleet
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import RouterSettings
from kvmesh.tasks import Work, keep_running
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool

_BOTH: Final = 2


class ProgramPart:
    """The `governor` of a scheduler, which knows it from now on."""

    def __init__(self, settings: RouterSettings, scheduler: Scheduler) -> None:
        self._fleet = GovernedFleet(scheduler)
        self._settings = settings.program.expanded()
        self._warm_share = settings.warm_share
        self.governor = Governor(governor_options(self._settings), self._fleet)
        self.governor.shared = False  # until there is a plane to share it by
        scheduler.governor = self.governor
        self._marks = find_marks(settings)
        self._replicas: Replicas = tuple
        self._mark_pods: Work | None = None
        self.toucher: Toucher | None = None
        self.warmer: Warmer | None = None
        self._scheduler = scheduler
        self._lives: dict[WorkerId, int] = {}

    def keep(
        self,
        context: RoutingContext,
        replicas: Replicas,
        pool: UpstreamPool,
    ) -> RoutingContext:
        """Return the context of a router that keeps prompts to send them again, if it does: to
        touch contexts of paused agents, to warm workers that join, and to hand over what only a
        worker that leaves keeps.
        """
        beats, self._replicas = context.router.heartbeats, replicas

        def target(worker: WorkerId) -> Target | None:
            beat = beats.get(worker)
            return None if beat is None else target_of(beat)

        toucher = toucher_of(self._settings, self.governor, self._scheduler, target, pool)
        warmer = warmer_of(self._warm_share, context, replicas, pool)
        self.toucher, self.warmer = toucher, warmer
        if toucher is not None:
            context.routing.turns.touches = toucher.touches
        keepers = [one.keep for one in (toucher, warmer) if one is not None]
        if not keepers:
            return context
        if len(keepers) < _BOTH:
            return msgspec.structs.replace(context, keep=keepers[0])

        def keep(one: Dispatched, asked: Request) -> None:
            for keeper in keepers:
                keeper(one, asked)

        return msgspec.structs.replace(context, keep=keep)

    def running(self) -> list[Awaitable[None]]:
        """Return what runs as long as the router does."""
        found: list[Awaitable[None]] = []
        if self.toucher is not None:
            found.append(keep_running("touch contexts", self.toucher.run))
        if self.warmer is not None:
            found.append(keep_running("warm workers", self.warmer.run))
        if self._mark_pods is not None:
            found.append(keep_running("mark pods", self._mark_pods))
        return found

    def mount(
        self, context: RoutingContext, viewers: Viewers, admin: RouterAdmin, ports: Iterable[Routes]
    ) -> ProgramWatch:
        """Serve the page at each port and show the figures; return what keeps them."""
        for routes in ports:
            ProgramsPage(context, viewers).mount(routes)
        admin.parts["programs"] = self.governor.statistics
        watch = ProgramWatch(self.governor, context.bucket, _workers_of(context), context.clock)

        def costs() -> Mapping[WorkerId, float]:
            return read_drain_costs(context, watch.seen, self._alone_tokens())

        admin.sources.add(
            PROGRAMS.of(lambda: watch),
            PRESSURES.of_each(
                lambda: {(worker,): one for worker, one in watch.seen.workers.items()}
            ),
            SCALING.of(lambda: read_saturation(context, watch.seen)),
            DRAINS.of_each(lambda: drain_rows(costs())),
        )
        if (toucher := self.toucher) is not None:
            admin.sources.add(TOUCHES.of(toucher.figures))
        if (warmer := self.warmer) is not None:
            admin.sources.add(WARMED.of(warmer.figures))
        if (marks := self._marks) is not None:
            self._mark_pods = marks(context, self._replicas, costs, admin)
        return watch

    def _alone_tokens(self) -> Mapping[WorkerId, float]:
        return {} if self.warmer is None else self.warmer.alone_tokens

    def check(self, context: RoutingContext) -> None:
        """Give up what is reserved at workers that are gone, or that were started anew: their
        caches are, and look at shorter prompts where engines keep prompts in slots. Warn of new
        ones whose price is none. O(workers), once a second.
        """
        lives = {beat.worker: beat.epoch for beat in context.router.workers()}
        for beat in context.router.workers():
            if self._lives.get(beat.worker) != beat.epoch and read_price(beat.labels) is None:
                context.log.warning(
                    "price of a worker ignored: label it kvmesh/price/NUMBER",
                    worker=beat.worker,
                    labels=listed([one for one in beat.labels if one.startswith(PRICE)]),
                )
        for worker, epoch in self._lives.items():
            if lives.get(worker) != epoch:
                self.governor.removed(worker)
                if (touches := context.routing.turns.touches) is not None:
                    touches.removed(worker)
        self._lives = lives
        context.routing.turns.chains.look_at(slots=any(map(self._fleet.contexts, lives)))
        context.gate.load_fell()


def find_marks(settings: RouterSettings) -> ShownMarks | None:
    """Return what marks pods for --mark-pods, None without. Raises `ConfigError`."""
    if not settings.pool.mark_pods:
        return None
    if settings.processes > 1 and is_alone(settings):
        raise ConfigError(
            f"--mark-pods --processes {settings.processes}: without --nats-url each process knows "
            "its own requests alone, and each would mark the pods: leave --processes out, or give "
            "--nats-url"
        )
    try:
        from kvmesh.app.router.pod_marks import marks_of  # noqa: PLC0415  an extra
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--mark-pods needs {error.name}: pip install 'kvmesh[kubernetes]'"
        ) from error
    return marks_of(settings)


def _workers_of(context: RoutingContext) -> Callable[[], list[WorkerId]]:
    return lambda: [beat.worker for beat in context.router.workers()]
