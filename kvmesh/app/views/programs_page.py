"""`/v1/programs`: which agents there are, whose turn it is, what is kept for them."""

from typing import Final
from urllib.parse import parse_qs

import msgspec

from kvmesh.app.front.front import Routes, json_page
from kvmesh.app.front.page_time import PageTime
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.bounds import whole_number
from kvmesh.core.programs.governor import GovernorStatistics
from kvmesh.core.programs.standing import Pressure, Standing, pressures, standings
from kvmesh.errors import RequestError
from kvmesh.settings.requests import ProgramTurns
from kvmesh.transport.http.server.exchange import Exchange

PATH: Final = "/v1/programs"
SHOWN: Final = 100
MOST_SHOWN: Final = 1000


class ProgramsView(msgspec.Struct, frozen=True):
    """Programs as one replica knows them: `turns` is its setting, `workers` their
    caches. A tenant is shown its own `programs` alone, and neither counts nor caches. Of a whole
    bucket `router` is "": its replicas agree, and each tells how long it has held a turn itself.
    """

    router: str
    bucket: str
    turns: ProgramTurns
    programs: list[Standing]
    statistics: GovernorStatistics | None = None
    workers: list[Pressure] = []


class MeshPrograms(msgspec.Struct, frozen=True):
    """Programs of every bucket, by its name."""

    buckets: list[ProgramsView]


class ProgramsPage:
    """Answers for one replica."""

    def __init__(self, context: RoutingContext, viewers: Viewers) -> None:
        self._context = context
        self._viewers = viewers
        self._time = PageTime()

    def mount(self, routes: Routes) -> None:
        """Serve the path."""
        routes.add("GET", PATH, self._show)

    def _show(self, exchange: Exchange) -> None:
        """Answer how agents stand, those that wait first; `limit` of them."""
        most = shown_limit(exchange.request.query)
        viewer = self._viewers.of(exchange.request)
        tenant = None if viewer is None else viewer.tenant
        page = self._time.page((most, tenant), lambda: json_page(self._view(most, tenant)))
        exchange.respond(200, page)

    def _view(self, most: int, tenant: str | None) -> ProgramsView:
        context = self._context
        governor, limits, now = context.routing.turns.governor, context.gate.limits, context.clock()
        view = ProgramsView(
            router=context.router_id,
            bucket=context.bucket,
            turns=limits.program_turns,
            programs=[] if governor is None else standings(governor, now, most, tenant),
        )
        if tenant is None and governor is not None:
            view = msgspec.structs.replace(
                view, statistics=governor.statistics(), workers=pressures(governor, now)
            )
        return view


def shown_limit(query: str) -> int:
    """Return how many agents are asked for. Raises `RequestError`."""
    limits = parse_qs(query).get("limit")
    if limits is None:
        return SHOWN
    number = whole_number(limits[-1], 0, 1 << 53)
    if number is None:
        raise RequestError(f"limit={limits[-1]!r:.80}: use a whole number", param="limit")
    return min(number, MOST_SHOWN)
