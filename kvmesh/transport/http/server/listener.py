"""What the connections of one server share."""

from collections.abc import Callable
from typing import Protocol

import structlog

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.limits import BodyBudget, HttpLimits
from kvmesh.transport.http.server.request_reader import Screen
from kvmesh.transport.http.server.scope import RequestIds
from kvmesh.transport.http.wire.deadlines import DeadlineWheel
from kvmesh.transport.http.wire.headers import HttpDate

Handler = Callable[[Exchange], None]


class OpenConnection(Protocol):
    """A connection as its server sees it; the `last` answer says that it closes."""

    last: bool

    @property
    def busy(self) -> bool:
        """Return whether a request is being read or answered."""
        ...

    def shut(self, *, at_once: bool) -> None:
        """Close an idle connection; with `at_once` cut a busy one too."""
        ...


class Listener:
    """Settings, clocks and counters of one server."""

    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits,
        wheel: DeadlineWheel,
        screen: Screen | None = None,
        bodies: BodyBudget | None = None,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.wheel = wheel
        self.screen = screen
        self.bodies = bodies or BodyBudget(limits.max_total_body_bytes)
        self.date = HttpDate()
        self.request_ids = RequestIds()
        self.connections: set[OpenConnection] = set()
        self.last = False
        self.draining = False
        self.accepted = 0
        self.refused = 0
        self.turned_away = 0
        self.requests = 0
        self.problems = 0
        self.crashes = 0
        self.on_connection_gone: Callable[[], None] | None = None

    def report(self, error: Exception, request_id: bytes) -> None:
        """Log and count an error of ours."""
        self.crashes += 1
        structlog.get_logger().error(
            "request crashed", request_id=request_id.decode("latin-1"), exc_info=error
        )
