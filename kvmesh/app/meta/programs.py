"""`/v1/programs` of a meta-router: what the replicas of all buckets say of programs."""

from collections.abc import Callable, Iterable

import msgspec

from kvmesh.app.front.front import Routes, json_page
from kvmesh.app.front.page_time import PageTime
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.meta.view import MetaView, readable
from kvmesh.app.views.programs_page import PATH, MeshPrograms, ProgramsView, shown_limit
from kvmesh.core.admission.access import Viewer
from kvmesh.core.programs.standing import Standing
from kvmesh.transport.http.server.exchange import Exchange


class MetaPrograms:
    """Asks all replicas, and answers each agent once."""

    def __init__(self, view: MetaView, viewers: Viewers) -> None:
        self._view = view
        self._viewers = viewers
        self._time = PageTime()

    def mount(self, routes: Routes) -> None:
        """Serve the path."""
        routes.add("GET", PATH, self._show)

    def _show(self, exchange: Exchange) -> None:
        most, viewer = shown_limit(exchange.request.query), self._viewers.of(exchange.request)

        async def look() -> Callable[[], bytes]:
            bodies = await self._view.ask_all(f"{PATH}?limit={most}", viewer)
            return lambda: json_page(
                MeshPrograms(merge_programs(readable(bodies, ProgramsView), most, viewer))
            )

        self._time.answer(exchange, (most, viewer), look)


def merge_programs(
    reported: Iterable[ProgramsView], most: int, viewer: Viewer | None = None
) -> list[ProgramsView]:
    """Return one view of each bucket with every agent once: as the replica says that holds its
    turn, else the one where its state changed last. A `viewer` sees its own tenant's.
    """
    buckets: dict[str, ProgramsView] = {}
    agents: dict[str, dict[str, Standing]] = {}
    for view in reported:
        buckets.setdefault(view.bucket, msgspec.structs.replace(view, router=""))
        known = agents.setdefault(view.bucket, {})
        for one in view.programs:
            if viewer is not None and one.tenant != viewer.tenant:
                continue
            other = known.get(one.agent)
            if other is None or _knows_more(one, other):
                known[one.agent] = one
    return [
        msgspec.structs.replace(
            view,
            programs=sorted(agents[name].values(), key=lambda one: (one.held_s is None, one.agent))[
                :most
            ],
        )
        for name, view in sorted(buckets.items())
    ]


def _knows_more(one: Standing, other: Standing) -> bool:
    if (one.held_s is None) != (other.held_s is None):
        return one.held_s is not None
    return one.since_s < other.since_s
