"""One whole request, as handlers see it, and the headers it goes on with."""

from collections.abc import Callable
from math import inf
from typing import Final

import msgspec

from kvmesh._native import Head, Names, render
from kvmesh.bounds import MAX_SECONDS, real_number
from kvmesh.core.blocks.events import WorkerId
from kvmesh.transport.http.server.limits import BodyBudget
from kvmesh.transport.http.wire.headers import (
    HOP_BY_HOP,
    PLAIN_CONNECTION,
    Header,
    Headers,
    end_to_end,
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
_NO_HEAD: Final = Head(())
_CONNECTION: Final = Names((b"connection",), b"")
_SECURE: Final = (b"x-forwarded-proto", b"https")
_BARE: Final = (b"x-forwarded-proto", b"http")
_NOT_FORWARDED: Final = Names(_REPLACED | HOP_BY_HOP, b"")

_PATIENCE: Final = (b"x-kvmesh-timeout-s", b"x-stainless-read-timeout", b"x-stainless-timeout")
"""Headers in which clients say how many seconds they wait; the SDKs of OpenAI and Anthropic send
the latter two with each request.
"""


class Request(msgspec.Struct, eq=False):
    """A request without its framing (content-length, transfer-encoding): the body is whole.

    `target` is the raw origin-form, `path` and `query` are its halves, made of it where they are
    not given. Headers are asked for at `head`; all of them are the `sent` ones, made at need.
    `client` is the peer's address without port. `keep_alive` is what the client asked for. `items`
    counts the values in a JSON body of more than `COUNT_ABOVE` bytes, 0 of any other. `allowed`:
    the workers that alone may serve it, by the word of who brought it, None for any. `vetted`: no
    page of another site forced it on a browser.

    A struct, because C makes and copies it: 0.1 us a request where a class took 1.

    The body counts in `budget` until `uncharge`, and as long as one of `holders` reads it elsewhere
    (a thread, a question to an engine): then `owed_bytes` are given back by the last of them.
    """

    method: str
    target: bytes
    sent: Headers | None
    body: bytes = b""
    path: str = ""
    query: str = ""
    head: Head = _NO_HEAD
    budget: BodyBudget | None = None
    items: int = 0
    client: str = ""
    secure: bool = False
    http_1_0: bool = False
    keep_alive: bool = True
    holders: int = 0
    owed_bytes: int = 0
    allowed: frozenset[WorkerId] | None = None
    vetted: bool = False

    def __post_init__(self) -> None:
        if not self.path:
            self.path, _, self.query = self.target.decode("ascii").partition("?")
        if self.sent is not None:
            self.head = Head(self.sent)

    @property
    def headers(self) -> Headers:
        """Return the headers: names are lower case, in the order sent."""
        sent = self.sent
        if sent is None:
            sent = self.sent = self.head.headers()
        return sent

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of header `name` (lower case)."""
        return self.head.get(name)

    def replace_headers(self, headers: Headers) -> None:
        """Have other headers than were sent."""
        self.sent = headers
        self.head = Head(headers)

    def change_headers(self, dropped: Names, added: Headers) -> None:
        """Have no header that `dropped` names any more, and `added` behind the others."""
        self.head = self.head.replaced(dropped, added)
        self.sent = None

    def replace_body(self, body: bytes) -> None:
        """Have another body than was sent; it is charged in its place."""
        if self.budget is not None:
            self.budget.used += len(body) - len(self.body)
        self.body = body

    def release_body(self) -> None:
        """Drop the body: once an answer has begun nobody needs it, and streams are long."""
        if self.holders:
            self.uncharge()
        elif self.budget is not None:
            self.budget.used -= len(self.body)
            self.budget = None
        self.body = b""

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


def forwarded_block(request: Request, replaced: Headers = ()) -> bytes:
    """Return the lines of the client's end-to-end headers with x-forwarded-for, -proto, -host.

    Left out besides: host, origin, x-request-id, and what `replaced` names.
    """
    head = request.head
    get = head.get
    plain = get(b"connection") is None or _is_plain(head)
    for name, _ in replaced:
        plain = plain and get(name) is None
    own: list[Header] = []
    find: Callable[[bytes], bytes | None] = get
    if not plain:
        own = end_to_end(request.headers, _REPLACED.union([name for name, _ in replaced]))
        find = dict(own).get
    before, client = get(b"x-forwarded-for"), request.client.encode()
    own.append((b"x-forwarded-for", b"%b, %b" % (before, client) if before else client))
    if find(b"x-forwarded-proto") is None:
        own.append(_SECURE if request.secure else _BARE)
    if find(b"x-forwarded-host") is None and (host := get(b"host")) is not None:
        own.append((b"x-forwarded-host", host))
    return head.render(_NOT_FORWARDED) + render(own) if plain else render(own)


def _is_plain(head: Head) -> bool:
    """Return whether its Connection headers name no other headers as of this hop only."""
    return all(value.lower() in PLAIN_CONNECTION for _, value in head.select(_CONNECTION))


def patience_s(request: Request) -> float:
    """Return for how many seconds the client waits for a byte, by the least of its headers; what is
    no such number is ignored. Infinite: it does not say.
    """
    given = [value for name in _PATIENCE if (value := request.header(name)) is not None]
    read = (real_number(one.decode("latin-1").strip(), 0.0, MAX_SECONDS) for one in given)
    return min((seconds for seconds in read if seconds), default=inf)
