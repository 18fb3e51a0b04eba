"""What a handler needs of a request and the way to answer it, whatever brought it."""

from typing import Protocol, TypeVar

from kvmesh.transport.http.server.exchange import JSON
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem


class Incoming(Protocol):
    """One request: an `Exchange` of a HTTP connection, or what a gateway asks about."""

    request: Request
    request_id: bytes
    scope: Scope

    @property
    def silent_s(self) -> float:
        """Return for how long it may wait while its client is shown nothing, inf: its client is
        shown comments of a stream.
        """
        ...

    def respond(
        self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Answer at once, with a whole body."""
        ...

    def fail(self, problem: Problem, headers: Headers = ()) -> None:
        """Answer with an error in OpenAI's shape, request id included."""
        ...


E = TypeVar("E", bound=Incoming)
"""One kind of them, with what only its own handlers use."""
