"""What a replica takes its requests by."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, Protocol

import msgspec

from kvmesh.app.front.admin_guard import AdminGuard
from kvmesh.app.front.fleet_pages import FleetPages
from kvmesh.app.front.front import FrontDoor, Routes
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.prompts.reading import Reader
from kvmesh.app.router.engine_operations import EngineOperations
from kvmesh.app.router.registered_workers import RegisteredWorkers, WorkersPages
from kvmesh.app.serve.gateway import Gateway
from kvmesh.app.serve.prefill import Splits
from kvmesh.app.serve.resumed import ResumedStreams
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.figure import Source
from kvmesh.settings.roles import RouterSettings
from kvmesh.transport.http.forward.forwarding import Forward
from kvmesh.transport.http.forward.plan import ForwardOptions
from kvmesh.transport.http.forward.resume import STREAMS_PATH
from kvmesh.transport.http.forward.websocket import WebSocketForward
from kvmesh.transport.http.server.exchange import Exchange

DoorRole = Literal["router", "picker"]


class Serving(msgspec.Struct, frozen=True):
    """What a replica decides and forwards with, whatever brings its requests. `why_not` tells why
    none should come. `registered` are the workers that come by HTTP. `priority_of` knows the
    InferenceObjectives of a gateway's pool, by name.
    """

    context: RoutingContext
    reader: Reader
    options: ForwardOptions
    splits: Splits
    viewers: Viewers
    why_not: Callable[[], str]
    registered: RegisteredWorkers | None = None
    priority_of: Callable[[str], int | None] | None = None


class Door(Protocol):
    """Listeners, and what is served there. Its calls come in this order, each once.

    `role` is what the replica is on the mesh: to a "picker" no HTTP requests are forwarded. It
    wants to hear of so many `alternatives` to each decision.
    """

    role: DoorRole
    alternatives: int

    def mount(self, serving: Serving, routes: Routes) -> None:
        """Have requests served. `routes` are those of the HTTP port, which has the probes and views
        of the replica, too. Raises `ConfigError` for a file of keys that is none.
        """
        ...

    def figures(self) -> Iterable[Source]:
        """Return what is counted at the door."""
        ...

    async def open(self) -> str:
        """Listen; return the URL of the HTTP port.

        Raises `ConfigError` for unusable TLS files, `TransportError` for a taken port.
        """
        ...

    def open_requests(self) -> int:
        """Return how many requests are not over."""
        ...

    async def give_notice(self) -> None:
        """Take requests until those who send them had time to see that none should come."""
        ...

    async def drain(self) -> None:
        """Take nothing new, let open requests finish for --drain-s, cut the rest."""
        ...

    async def close(self) -> None:
        """Stop at once; safe to call twice."""
        ...


class HttpDoor:
    """Requests come by HTTP, and leave that way."""

    role: DoorRole = "router"
    alternatives = 0

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._front: FrontDoor | None = None

    def mount(self, serving: Serving, routes: Routes) -> None:
        """Serve requests on the routes; see `Door`."""
        settings, splits = self._settings, serving.splits
        gateway = Gateway[Exchange](
            serving.context,
            serving.reader,
            partial(Forward, pool=splits.pool),
            serving.options,
            splits,
            serving.viewers,
        )
        gateway.sockets = partial(WebSocketForward, pool=splits.pool)
        gateway.mount(routes)
        context = serving.context
        engines, owns = partial(_engines, context), context.holders.owns
        fleet = FleetPages(splits.pool, engines, serving.viewers, owns)
        fleet.mount(routes, gateway.serve)
        guard = None if settings.http.api_keys else AdminGuard(settings.admission)
        EngineOperations(serving.context, splits.pool, guard).mount(routes)
        WorkersPages(serving.context, serving.registered, guard, serving.viewers).mount(routes)
        resumed = ResumedStreams(
            serving.context, serving.reader, splits.pool, serving.options, serving.viewers
        )
        routes.add_prefix(STREAMS_PATH, resumed.serve)
        tenant_header = settings.admission.tenant_header
        limits = context.router.limits
        self._front = FrontDoor(
            settings.http, routes, tenant_header=tenant_header, usage_limits=limits
        )

    def figures(self) -> Iterable[Source]:
        """Return nothing: requests are counted where they are decided."""
        return ()

    async def open(self) -> str:
        """Listen; see `Door`."""
        return await self._opened().open()

    def open_requests(self) -> int:
        """Return how many requests are not over."""
        return self._opened().server.statistics().open_requests

    async def give_notice(self) -> None:
        """Announce the drain to meta-routers, and refuse new connections."""

    async def drain(self) -> None:
        """Stop accepting, let open streams finish for --drain-s, cut the rest."""
        await self._opened().drain()

    async def close(self) -> None:
        """Stop at once; safe to call twice."""
        await self._opened().server.close()

    def _opened(self) -> FrontDoor:
        assert self._front is not None
        return self._front


def _engines(context: RoutingContext) -> dict[str, str]:
    """Return the URLs of the engines by worker."""
    return {one.worker: one.url for one in context.router.workers()}
