"""Programs at one router: the governor, what is shown of them, and who tells it of workers."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.front.front import Routes
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.router.admin import RouterAdmin
from kvmesh.app.router.router_options import governor_options
from kvmesh.app.serve.routing_context import RoutingContext, target_of
from kvmesh.app.serve.toucher import Toucher, toucher_of
from kvmesh.app.views.program_figures import PRESSURES, PROGRAMS, TOUCHES
from kvmesh.app.views.program_watch import ProgramWatch
from kvmesh.app.views.programs_page import ProgramsPage
from kvmesh.app.views.scaling_figures import DRAINS, SCALING, read_drains, read_saturation
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.governor import Governor
from kvmesh.core.routing.program_fleet import GovernedFleet
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.settings.requests import ProgramSettings
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.upstream.client import UpstreamPool


class ProgramPart:
    """The `governor` of a scheduler, which knows it from now on."""

    def __init__(self, settings: ProgramSettings, scheduler: Scheduler) -> None:
        self._fleet = GovernedFleet(scheduler)
        self.governor = Governor(governor_options(settings), self._fleet)
        self.governor.shared = False  # until there is a plane to share it by
        scheduler.governor = self.governor
        self.toucher: Toucher | None = None
        self._settings = settings
        self._scheduler = scheduler
        self._lives: dict[WorkerId, int] = {}

    def touch(
        self,
        context: RoutingContext,
        beats: Mapping[WorkerId, WorkerHeartbeat],
        pool: UpstreamPool,
    ) -> RoutingContext:
        """Return the context of a router that touches contexts of paused agents, if it does."""

        def target(worker: WorkerId) -> Target | None:
            beat = beats.get(worker)
            return None if beat is None else target_of(beat)

        toucher = toucher_of(self._settings, self.governor, self._scheduler, target, pool)
        self.toucher = toucher
        if toucher is None:
            return context
        context.routing.turns.touches = toucher.touches
        return msgspec.structs.replace(context, keep=toucher.keep)

    def mount(
        self, context: RoutingContext, viewers: Viewers, admin: RouterAdmin, ports: Iterable[Routes]
    ) -> ProgramWatch:
        """Serve the page at each port and show the figures; return what keeps them."""
        for routes in ports:
            ProgramsPage(context, viewers).mount(routes)
        admin.parts["programs"] = self.governor.statistics
        watch = ProgramWatch(self.governor, context.bucket, _workers_of(context), context.clock)
        admin.sources.add(
            PROGRAMS.of(lambda: watch),
            PRESSURES.of_each(
                lambda: {(worker,): one for worker, one in watch.seen.workers.items()}
            ),
            SCALING.of(lambda: read_saturation(context, watch.seen)),
            DRAINS.of_each(lambda: read_drains(context, watch.seen)),
        )
        if (toucher := self.toucher) is not None:
            admin.sources.add(TOUCHES.of(toucher.figures))
        return watch

    def check(self, context: RoutingContext) -> None:
        """Give up what is reserved at workers that are gone, or that were started anew: their
        caches are, and look at shorter prompts where engines keep prompts in slots. O(workers),
        once a second.
        """
        lives = {beat.worker: beat.epoch for beat in context.router.workers()}
        for worker, epoch in self._lives.items():
            if lives.get(worker) != epoch:
                self.governor.removed(worker)
                if (touches := context.routing.turns.touches) is not None:
                    touches.removed(worker)
        self._lives = lives
        context.routing.turns.chains.look_at(slots=any(map(self._fleet.contexts, lives)))
        context.gate.load_fell()


def _workers_of(context: RoutingContext) -> Callable[[], list[WorkerId]]:
    return lambda: [beat.worker for beat in context.router.workers()]
