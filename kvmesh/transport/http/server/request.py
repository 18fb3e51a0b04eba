"""One whole request, as handlers see it, and the headers it goes on with."""

from typing import Final

from kvmesh.transport.http.server.budget import BodyBudget
from kvmesh.transport.http.wire.headers import Headers, HeadPattern, end_to_end, render

_REPLACED: Final = frozenset(
    {
        b"accept-encoding",  # a compressed answer could not be scanned
        b"expect",
        b"host",
        b"x-forwarded-for",
        b"x-request-id",
    }
)


class Request:
    """A request without its framing (content-length, transfer-encoding): the body is whole.

    `target` is the raw origin-form, `path` and `query` are its halves. Header names are lower
    case, in the order sent. `client` is the peer's address without port. `keep_alive` is what the
    client asked for. `items` counts the values in a JSON body of more than `COUNT_ABOVE` bytes, 0
    of any other. `twin` stands for all requests of a connection with one and the same head;
    `block` of a twin is that head rendered for forwarding, once it was, `notes` what handlers read
    of it, by whatever they find it under.

    The body counts in `budget` until `uncharge`, and as long as one of `holders` reads it elsewhere
    (a thread, a question to an engine): then `owed_bytes` are given back by the last of them.
    """

    __slots__ = (
        "block", "body", "budget", "client", "headers", "holders", "http_1_0", "items",
        "keep_alive", "method", "notes", "owed_bytes", "path", "query", "secure", "target", "twin",
        "values_seen",
    )  # fmt: skip

    def __init__(self, method: str, target: bytes, headers: Headers, body: bytes = b"") -> None:
        self.method = method
        self.target = target
        path, _, query = target.decode("ascii").partition("?")
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.items = 0
        self.client = ""
        self.secure = False
        self.http_1_0 = False
        self.keep_alive = True
        self.budget: BodyBudget | None = None
        self.holders = self.owed_bytes = 0
        self.twin: Request | None = None
        self.block: bytes | None = None
        self.values_seen: dict[bytes, bytes] | None = None
        self.notes: dict[object, object] | None = None

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of header `name` (lower case), as it was at the first question."""
        first = self.twin or self
        seen = first.values_seen
        if seen is None:
            seen = first.values_seen = dict(reversed(first.headers))
        return seen.get(name)

    def replace_headers(self, headers: Headers) -> None:
        """Have other headers than were sent: whatever was made of those is forgotten."""
        self.headers = headers
        self.twin = self.block = self.values_seen = None

    def replace_body(self, body: bytes) -> None:
        """Have another body than was sent; it is charged in its place."""
        if self.budget is not None:
            self.budget.used += len(body) - len(self.body)
        self.body = body

    def release_body(self) -> None:
        """Drop the body: once an answer has begun nobody needs it, and streams are long.

        What can be made again goes with it.
        """
        if self.holders:
            self.uncharge()
        elif self.budget is not None:
            self.budget.used -= len(self.body)
            self.budget = None
        self.body = b""
        self.block = self.values_seen = None

    def uncharge(self) -> None:
        """Take the body off its budget, once: now, or when nobody holds it any more."""
        if self.budget is None:
            return
        if self.holders:
            self.owed_bytes = self.owed_bytes or len(self.body)
        else:
            self.budget.used -= len(self.body)
            self.budget = None

    def hold(self) -> None:
        """Keep the body on its budget until `let_go`, though the request may end before."""
        self.holders += 1

    def let_go(self) -> None:
        """Take back a `hold`: whoever called it has no reference to the body any more."""
        self.holders -= 1
        if self.owed_bytes and not self.holders and self.budget is not None:
            self.budget.used -= self.owed_bytes
            self.budget = None


class RepeatedHead:
    """A head that a connection may send again, and the twin of the requests that have it."""

    __slots__ = ("_pattern", "_twin")

    def __init__(self, pattern: HeadPattern, twin: Request) -> None:
        self._pattern = pattern
        self._twin = twin

    @classmethod
    def learn(cls, data: bytes, request: Request) -> "RepeatedHead | None":
        """Return the head of `data`, which was parsed as just `request`; None if unfit."""
        pattern = HeadPattern.learn(data, request.body)
        if pattern is None:
            return None
        twin = Request(request.method, request.target, request.headers)
        twin.http_1_0 = request.http_1_0
        request.twin = twin
        return cls(pattern, twin)

    def match(self, data: bytes, max_body: int) -> Request | None:
        """Return the request in `data` if it is one whole request with this head, else None."""
        body = self._pattern.match(data, max_body)
        if body is None:
            return None
        twin = self._twin
        request = Request.__new__(Request)
        request.method = twin.method
        request.target = twin.target
        request.path = twin.path
        request.query = twin.query
        request.headers = twin.headers
        request.http_1_0 = twin.http_1_0
        request.keep_alive = True
        request.body = body
        request.items = 0
        request.budget = None
        request.holders = request.owed_bytes = 0
        request.twin = twin
        request.block = None
        request.values_seen = request.notes = None
        request.client = ""
        request.secure = False
        return request


def forwarded_block(request: Request, replaced: Headers = ()) -> bytes:
    """Return the lines of the client's end-to-end headers with x-forwarded-for, -proto, -host.

    Left out besides: host, x-request-id, and what `replaced` names. Without `replaced` requests
    with the same head share one block.
    """
    drop = _REPLACED
    if replaced:
        names = {name for name, _ in replaced}
        if not names.isdisjoint([name for name, _ in request.headers]):
            return _render(request, drop | names)
    twin = request.twin or request
    if twin.block is None:
        twin.block = _render(request, drop)
    return twin.block


def _render(request: Request, drop: frozenset[bytes]) -> bytes:
    headers = end_to_end(request.headers, drop)
    before = request.header(b"x-forwarded-for")
    client = request.client.encode()
    headers.append((b"x-forwarded-for", b"%b, %b" % (before, client) if before else client))
    sent = {name for name, _ in headers}
    if b"x-forwarded-proto" not in sent:
        headers.append((b"x-forwarded-proto", b"https" if request.secure else b"http"))
    if b"x-forwarded-host" not in sent and (host := request.header(b"host")) is not None:
        headers.append((b"x-forwarded-host", host))
    return render(headers)
