"""Requests about what an engine keeps: to whom it belongs, and to which worker they go."""

from collections.abc import Callable
from typing import Final, Generic

import msgspec

from kvmesh.app.front.viewers import Viewers
from kvmesh.app.serve.response_holders import homes_of, lookup_of_response, named_response
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.admission.access import Viewer
from kvmesh.core.admission.paths import find_row
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.errors import KvMeshError, RequestError
from kvmesh.transport.http.server.incoming import E
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.problem import Problem

_UNSALTED: Final = frozenset({"/v1/files", "/v1/conversations"})
"""Where something is made without a prompt that would have to be salted."""


def is_kept_apart(request: Request) -> bool:
    """Return whether the owners of ids keep tenants apart at a request's path, without salts."""
    row = find_row(request.method, request.path)
    return row is not None and (row.owner in {"home", "lists"} or row.path in _UNSALTED)


class GoingHome(Generic[E]):
    """Sends requests to the worker that keeps what they name, where their client may see it."""

    def __init__(
        self,
        context: RoutingContext,
        pool: UpstreamPool,
        viewers: Viewers,
        send: Callable[[E, RouteRequest], None],
    ) -> None:
        self._context = context
        self._pool = pool
        self._viewers = viewers
        self._send = send

    def begin(self, exchange: E, request: RouteRequest) -> None:
        """Send a request, at once where that can be. Raises `RequestError`: 404 for what is not
        there, or is another tenant's, which its client cannot tell apart.
        """
        homes, holders = homes_of(exchange.request), self._context.holders
        response = lookup_of_response(named_response(request.stored))
        viewer = self._viewers.of(exchange.request) if homes or response else None
        if viewer is not None:
            if response and holders.is_foreign(viewer.tenant, response):
                raise _missing(response)
            if not all(holders.owns(viewer.tenant, one) for one in homes):
                exchange.scope.start(self._wait(exchange, request, viewer, homes))
                return
        self._go(exchange, request, response, homes)

    async def _wait(
        self, exchange: E, request: RouteRequest, viewer: Viewer, homes: tuple[str, ...]
    ) -> None:
        """Wait for what a sibling may have told: its client made it there just before."""
        try:
            for one in homes:
                if not await self._context.holders.wait_owned(viewer.tenant, one):
                    raise _missing(one)
            self._go(exchange, request, "", homes)
        except KvMeshError as error:
            exchange.fail(Problem.from_error(error))

    def _go(
        self, exchange: E, request: RouteRequest, response: str, homes: tuple[str, ...]
    ) -> None:
        context, lookup = self._context, response or next(iter(homes), "")
        if not lookup or lookup.endswith("/") or request.pinned_worker is not None:
            self._send(exchange, request)
            return
        holder = context.holders.find(lookup)
        if (
            holder is not None
            and holder in context.router.heartbeats
            and not request.unserved_by(context.workers.info(holder))
        ):
            self._send(exchange, msgspec.structs.replace(request, pinned_worker=holder))
        else:
            exchange.scope.start(self._find(exchange, request, lookup, final=bool(homes)))

    async def _find(self, exchange: E, request: RouteRequest, lookup: str, *, final: bool) -> None:
        """Forward a request to the engine that keeps what is at the path `lookup`; where all say
        that they do not, that is the answer if it is `final`, else one of them says so.
        """
        context = self._context
        workers = [
            one
            for one in context.router.workers()
            if not request.unserved_by(context.workers.info(one.worker))
        ]
        headers = tuple(one for one in exchange.request.headers if one[0] == b"authorization")
        holder, missing = await context.holders.ask(self._pool, lookup, workers, headers)
        if holder is not None:
            request = msgspec.structs.replace(request, pinned_worker=holder)
        try:
            if missing and final:
                raise _missing(lookup)
            self._send(exchange, request)
        except KvMeshError as error:
            exchange.fail(Problem.from_error(error))


def _missing(lookup: str) -> RequestError:
    return RequestError(f"there is no {lookup:.160}", status=404, code="not_found")
