"""What the streams of a picker share: who decides, its bounds, its counts."""

from collections.abc import Callable
from typing import Final

from kvmesh.app.picker.addresses import Addresses
from kvmesh.app.picker.counts import PickCounts
from kvmesh.app.picker.exchange import PickExchange
from kvmesh.errors import KvMeshError
from kvmesh.transport.grpc.extproc_messages import FULL_DUPLEX, Modes
from kvmesh.transport.http.server.limits import BodyBudget, HttpLimits
from kvmesh.transport.http.server.request_reader import Screen
from kvmesh.transport.http.server.scope import Report, RequestIds
from kvmesh.transport.http.wire.problem import Problem

NO_MEMBER: Final = Problem(
    503,
    "none of the endpoints that the gateway allows is a worker that is known here",
    "no_worker",
    retry_after_s=1,
)

GATEWAYS: Final = 1024
"""So many are remembered; all are forgotten at once."""

Handler = Callable[[PickExchange], None]


class PickDoor:
    """Takes requests as gateways ask about them, and has `handler` decide.

    `modes` are believed of a gateway that does not tell its own. `screen` is asked about a request
    whose body is still to come. `adapters` change a request before it is decided: they read what a
    gateway's headers say, and may refuse it by a `KvMeshError`.
    """

    def __init__(
        self,
        handler: Handler,
        addresses: Addresses,
        report: Report,
        counts: PickCounts,
        *,
        limits: HttpLimits | None = None,
        screen: Screen | None = None,
    ) -> None:
        self._handler = handler
        self.addresses = addresses
        self.report = report
        self.limits = limits or HttpLimits()
        self.budget = BodyBudget(self.limits.max_total_body_bytes)
        self.screen = screen
        self.modes = Modes(FULL_DUPLEX, FULL_DUPLEX)
        self.adapters: list[Callable[[PickExchange], None]] = []
        self.ids = RequestIds()
        self.counts = counts
        self._heads: set[str] = set()

    def reports_heads(self, gateway: str) -> bool:
        """Return whether a gateway that shows no bodies has shown the head of a response."""
        return gateway in self._heads

    def note_head(self, gateway: str) -> None:
        """Note that a gateway which shows no bodies shows heads."""
        if len(self._heads) >= GATEWAYS:
            self._heads.clear()
        self._heads.add(gateway)

    def decide(self, exchange: PickExchange, subset: tuple[str, ...] | None) -> None:
        """Have a request decided, at a worker of the `subset` that its gateway allows."""
        if subset is not None:
            exchange.request.allowed = self.addresses.within(subset)
            if exchange.request.allowed is not None and not exchange.request.allowed:
                exchange.fail(NO_MEMBER)
                return
        try:
            for adapt in self.adapters:
                adapt(exchange)
        except KvMeshError as error:
            exchange.fail(Problem.from_error(error))
            return
        if not exchange.scope.over:
            self._handler(exchange)
