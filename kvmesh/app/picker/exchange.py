"""One request that a gateway asks about, as handlers see it."""

from typing import Final, Protocol

import msgspec

from kvmesh.transport.grpc.extproc_messages import ResponseHeaders
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.scope import Report, Scope
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

JSON: Final = b"application/json"


class Question(Protocol):
    """The stream on which a gateway asks, as its request sees it."""

    def refuse(self, status: int, headers: Headers, body: bytes) -> None:
        """Have the gateway answer its client, and end the stream."""
        ...

    def go(self, way: "Way") -> None:
        """Have the gateway send the request on."""
        ...

    def drop(self) -> None:
        """End the stream if it is open, without an answer."""
        ...


class Way(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes, and with what.

    `endpoint` is `ip:port`, alternatives behind it. `headers` replace those of the same name,
    `removed` are taken off. `body` replaces the client's unless None.
    """

    endpoint: bytes
    headers: Headers
    removed: tuple[bytes, ...]
    body: bytes | None


class Follower(Protocol):
    """Who watches what becomes of a request that was sent on its way."""

    @property
    def scope(self) -> Scope:
        """Return the request's owner."""
        ...

    def on_head(self, head: ResponseHeaders) -> Headers:
        """Take the head of the response, return headers to set in it."""
        ...

    def on_body(self, data: bytes) -> None:
        """Take a piece of the response's body, which the client has got."""
        ...

    def on_end(self) -> None:
        """Learn that the response is complete."""
        ...

    def on_gone(self) -> None:
        """Learn that the gateway has left before the response was complete."""
        ...

    def on_silence(self) -> None:
        """Note that the gateway sends no more of this request, which goes on."""
        ...

    def on_over(self) -> None:
        """Learn that the request is over, and not how."""
        ...


class PickExchange:
    """A request and the way to answer it: `respond` or `fail`, or a `Pick`; once.

    `unread`: the gateway does not tell its body. `asked` is the stream it came on, `sent_headers`
    and `sent_body` are what the gateway has. `follower` watches the response once the
    request was sent. `quiet`: the gateway says that it will tell no body of the response;
    `headless`: nor has it told any head yet. `silent_s`: for how long the request may wait, of
    which a gateway shows its client nothing.
    """

    __slots__ = (
        "added", "answered", "asked", "follower", "headless", "quiet", "request", "request_id",
        "scope", "sent_body", "sent_headers", "silent_s", "unread",
    )  # fmt: skip

    def __init__(
        self, request: Request, asked: Question, request_id: bytes, report: Report
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.unread = self.quiet = self.headless = False
        self.silent_s = 0.0
        self.answered = False
        self.added = b""
        self.asked = asked
        self.sent_headers = request.headers
        self.sent_body = request.body
        self.follower: Follower | None = None
        self.scope = scope = Scope(request_id, report)
        scope.on_crash = self.fail
        scope.last = self._let_go

    def respond(
        self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Have the gateway answer at once. Raises `RuntimeError` twice."""
        if self.answered:
            raise RuntimeError(f"second answer ({status}) to one request")
        self.answered = True
        self.scope.status = status
        own = ((b"content-type", content_type), (b"x-request-id", self.request_id))
        if self.request.method == "HEAD":
            body = b""
        self.asked.refuse(status, (*own, *headers) if body else (own[1], *headers), body)
        self.scope.end()

    def fail(self, problem: Problem, headers: Headers = ()) -> None:
        """Answer with an error in OpenAI's shape, request id included."""
        if not self.answered:
            body = problem.body(self.request_id.decode("latin-1"))
            self.respond(problem.status, body, headers=(*problem.headers(), *headers))

    def take_back(self, problem: Problem) -> None:
        """Have the gateway answer a request that it has sent and that no response of began."""
        self.answered = False
        self.fail(problem)

    def report_head(self, message: ResponseHeaders) -> Headers:
        """Tell its follower of the response's head; return what is added to it."""
        follower = self.follower
        if follower is None:
            return ()
        try:
            return follower.on_head(message)
        except Exception as error:  # noqa: BLE001  an error of ours must not cost the client its answer
            follower.scope.crash(error)
            return ()

    def abandon(self) -> None:
        """End a request whose client left."""
        self.answered = True
        self.scope.kind = "client_gone"
        self.scope.end()

    def _let_go(self) -> None:
        """Give the body's bytes back, and leave no gateway waiting."""
        try:
            if not self.answered:
                self.answered = True
                self.asked.drop()
        finally:
            self.request.uncharge()
