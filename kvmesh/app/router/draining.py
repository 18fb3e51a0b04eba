"""`/admin/drain`: a worker is given nothing new, or is used again, at an operator's word."""

from typing import Protocol

from kvmesh.app.front.admin_guard import AdminGuard
from kvmesh.app.front.drain_wish import ACCEPTED, PATH, read_wish
from kvmesh.app.front.front import NOT_FOUND, Routes, answer_json
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.membership import DRAINING
from kvmesh.errors import RequestError
from kvmesh.observe import get_logger
from kvmesh.transport.http.server.exchange import Exchange


class Drain(Protocol):
    """Has all replicas of a bucket give a worker nothing new, or use it again."""

    def __call__(self, worker: WorkerId, *, draining: bool) -> None:
        """Tell them."""
        ...


class Draining:
    """Answers for one router. Where the door asks for keys (`guard` None) the key's role was
    checked before; else only who may change a router may drain workers.
    """

    def __init__(
        self,
        context: RoutingContext,
        drain: Drain,
        guard: AdminGuard | None,
    ) -> None:
        self._context = context
        self._drain = drain
        self._guard = guard

    def mount(self, routes: Routes) -> None:
        """Serve the path."""
        routes.add("GET", PATH, self._list)
        routes.add("POST", PATH, self._change)

    def _list(self, exchange: Exchange) -> None:
        """Answer which workers drain."""
        context, now = self._context, self._context.clock()
        why_not = context.workers.membership.why_not
        names = [one.worker for one in context.router.workers()]
        answer_json(exchange, {"draining": [one for one in names if why_not(one, now) == DRAINING]})

    def _change(self, exchange: Exchange) -> None:
        wish = read_wish(exchange.request, self._guard)
        worker = WorkerId(wish.worker)
        if self._context.router.heartbeats.get(worker) is None:
            text = f"{PATH}: there is no worker {wish.worker[:80]!r}: /v1/overview names all"
            raise RequestError(text, status=NOT_FOUND, param="worker")
        self._drain(worker, draining=wish.draining)
        get_logger().info("worker told to drain", worker=worker, draining=wish.draining)
        answer_json(exchange, wish, status=ACCEPTED)
