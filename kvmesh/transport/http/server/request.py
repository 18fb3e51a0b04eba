"""One whole request, as handlers see it, and the headers it goes on with."""

from collections.abc import Callable
from typing import Final, cast

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.transport.http.server.budget import BodyBudget
from kvmesh.transport.http.wire.headers import (
    Headers,
    HeadPattern,
    end_to_end,
    render,
)

_REPLACED: Final = frozenset(
    {
        b"accept-encoding",  # a compressed answer could not be scanned
        b"expect",
        b"access-control-request-headers",
        b"access-control-request-method",
        b"host",
        b"origin",  # whose pages may read an answer is the front door's to say
        b"x-forwarded-for",
        b"x-request-id",
    }
)


class Request(msgspec.Struct, eq=False):
    """A request without its framing (content-length, transfer-encoding): the body is whole.

    `target` is the raw origin-form, `path` and `query` are its halves. Header names are lower
    case, in the order sent. `client` is the peer's address without port. `keep_alive` is what the
    client asked for. `items` counts the values in a JSON body of more than `COUNT_ABOVE` bytes, 0
    of any other. `twin` stands for all requests of a connection with one and the same head;
    `block` of a twin is that head rendered for forwarding, once it was, `notes` what handlers read
    of it, by whatever they find it under. `allowed`: the workers that alone may serve it, by the
    word of who brought it, None for any.

    A struct, because C makes and copies it: 0.1 us a request where a class took 1.

    The body counts in `budget` until `uncharge`, and as long as one of `holders` reads it elsewhere
    (a thread, a question to an engine): then `owed_bytes` are given back by the last of them.
    """

    method: str
    target: bytes
    headers: Headers
    body: bytes = b""
    path: str = ""
    query: str = ""
    items: int = 0
    client: str = ""
    secure: bool = False
    http_1_0: bool = False
    keep_alive: bool = True
    budget: BodyBudget | None = None
    holders: int = 0
    owed_bytes: int = 0
    twin: "Request | None" = None
    block: bytes | None = None
    values_seen: dict[bytes, bytes] | None = None
    notes: dict[object, object] | None = None
    allowed: frozenset[WorkerId] | None = None

    def __post_init__(self) -> None:
        self.path, _, self.query = self.target.decode("ascii").partition("?")

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


copied: Final = cast("Callable[[Request], Request]", getattr(Request, "__copy__"))  # noqa: B009  not in its stubs
"""`copy.copy` is 1 us of Python around this."""


class RepeatedHead:
    """A head that a connection may send again: `match_head` finds a request with it.

    Such a request is a copy of `first`, which has no body; all have its twin.
    """

    __slots__ = ("before", "behind", "first")

    def __init__(self, pattern: HeadPattern, first: Request) -> None:
        self.before = pattern.before
        self.behind = pattern.behind
        self.first = first

    @classmethod
    def learn(cls, data: bytes, request: Request) -> "RepeatedHead | None":
        """Return the head of `data`, which was parsed as just `request`; None if unfit."""
        pattern = HeadPattern.learn(data, request.body)
        if pattern is None:
            return None
        twin = Request(request.method, request.target, request.headers)
        twin.http_1_0 = request.http_1_0
        first = copied(twin)
        first.twin = request.twin = twin
        first.budget = request.budget
        return cls(pattern, first)


def forwarded_block(request: Request, replaced: Headers = ()) -> bytes:
    """Return the lines of the client's end-to-end headers with x-forwarded-for, -proto, -host.

    Left out besides: host, origin, x-request-id, and what `replaced` names. Without `replaced`
    requests with the same head share one block.
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
