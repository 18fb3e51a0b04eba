"""A request's body while it comes: put together, counted, charged."""

from typing import Final

from kvmesh.transport.http.server.arriving_body import ArrivingBody
from kvmesh.transport.http.server.limits import COUNT_ABOVE, BodyBudget, HttpLimits
from kvmesh.transport.http.server.refusals import body_too_long, why_too_much
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.problem import Problem

MEMORY_FULL: Final = Problem(
    503, "too many large requests at once", code="too_many_bodies", retry_after_s=1
)


class Arriving:
    """The bytes of one body so far, on the `budget` until `give` or `drop`."""

    __slots__ = ("_budget", "_charged", "_limits", "_long", "_only")

    def __init__(self, limits: HttpLimits, budget: BodyBudget) -> None:
        self._limits = limits
        self._budget = budget
        self._charged = 0
        self._only = b""
        self._long: ArrivingBody | None = None

    def add(self, data: bytes) -> Problem | None:
        """Take a piece; return why it is too much."""
        self._charged += len(data)
        self._budget.used += len(data)
        if self._charged > self._limits.max_body_bytes:
            return body_too_long(self._limits)
        if self._budget.exceeded:
            return MEMORY_FULL
        long = self._long
        if long is not None:
            long.add(data)
        elif self._only or len(data) > COUNT_ABOVE:
            long = self._long = ArrivingBody(self._only or data)
            if self._only:
                long.add(data)
                self._only = b""
        else:
            self._only = data
        if long is not None and self._charged > COUNT_ABOVE:
            return why_too_much(long.count(), self._limits)
        return None

    def give(self, request: Request) -> None:
        """Give the body to its request, which is charged from now on."""
        long = self._long
        if long is None:
            request.body = self._only
        else:
            request.items = long.count().items if self._charged > COUNT_ABOVE else 0
            request.body = long.take()
        request.budget = self._budget
        self._charged = 0
        self._only, self._long = b"", None

    def drop(self) -> None:
        """Drop a body that is not needed any more."""
        self._budget.used -= self._charged
        self._charged = 0
        self._only, self._long = b"", None
