"""Which pages of other origins may call this front door from a browser: none unless it is told so.

Never with credentials: such a page shows a key of its own; a cookie, or a password that the browser
adds, is nothing to it. Source: https://fetch.spec.whatwg.org/#http-cors-protocol.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from kvmesh._native import render
from kvmesh.app.front.same_origin import SITE
from kvmesh.core.admission.access import LOGIN_PATHS
from kvmesh.errors import ConfigError
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.request_reader import Screen
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

ANY: Final = "*"
METHODS: Final = b"GET, HEAD, POST, DELETE"
MAX_AGE_S: Final = 600
"""How long a browser may remember what it was told before."""

_ASKED: Final = b"access-control-request-headers"
_NAMES: Final = re.compile(
    rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*"
)
_MOST_ASKED: Final = 1024
_VARY: Final = (b"vary", b"origin")
_VARY_ASKED: Final = (
    b"vary",
    b"origin, access-control-request-method, access-control-request-headers",
)


class CorsGuard:
    """Stands in front of a handler, and of what asks for keys: a browser asks first, without one.

    `origins` are `https://app.example`, `*` for all. What changes the mesh (`/admin/…`) and the
    login stay closed to other origins. Raises `ConfigError` for what is no origin.
    """

    def __init__(
        self, handler: Callable[[Exchange], None], origins: Sequence[str], screen: Screen | None
    ) -> None:
        self._handler = handler
        self._screen = screen
        self._any = ANY in origins
        self._origins = frozenset(check_origin(one) for one in origins)
        self._vary = b"" if self._any else render([_VARY])

    def __call__(self, exchange: Exchange) -> None:
        """Serve the exchange, or answer what a browser asks before it sends it."""
        request = exchange.request
        allowed = self._allowed(request)
        if not allowed:
            exchange.added = self._vary
            self._handler(exchange)
            return
        if request.method == "OPTIONS" and request.header(b"access-control-request-method"):
            exchange.respond(204, b"", headers=_preflight(request, allowed))
            return
        exchange.added = render(allowed)
        if request.header(SITE) is not None:
            # To the next hop, which knows no origins, it would be a page of another site's.
            request.replace_headers([one for one in request.headers if one[0] != SITE])
        request.vetted = True
        self._handler(exchange)

    def screen(self, request: Request) -> Problem | None:
        """Return what `screen` does, in a way that the page may read."""
        problem = None if self._screen is None else self._screen(request)
        allowed = self._allowed(request)
        if problem is None or not allowed:
            return problem
        return msgspec.structs.replace(problem, also=tuple(allowed))

    def _allowed(self, request: Request) -> Headers:
        """Return the headers that let the page of a request read the answer; none: it may not."""
        origin = request.header(b"origin")
        if origin is None or request.path.startswith("/admin/") or request.path in LOGIN_PATHS:
            return ()
        if self._any:
            return ((b"access-control-allow-origin", b"*"), _EXPOSED)
        if origin.decode("latin-1").lower() not in self._origins:
            return ()
        return ((b"access-control-allow-origin", origin), _EXPOSED, _VARY)


_EXPOSED: Final = (b"access-control-expose-headers", b"*")


def _preflight(request: Request, allowed: Headers) -> Headers:
    headers = [one for one in allowed if one not in (_EXPOSED, _VARY)]
    headers += [
        (b"access-control-allow-methods", METHODS),
        (b"access-control-max-age", b"%d" % MAX_AGE_S),
        _VARY_ASKED,
    ]
    asked = request.header(_ASKED)
    # Named one by one: a star does not let the authorization header pass.
    if asked and len(asked) <= _MOST_ASKED and _NAMES.fullmatch(asked.strip()):
        headers.append((b"access-control-allow-headers", asked.strip()))
    return headers


def check_origin(text: str) -> str:
    """Return an origin as browsers write it. Raises `ConfigError` for what is none."""
    if text == ANY:
        return text
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--cors-origin {text!r}: {error}") from error
    bare = text == f"{parts.scheme}://{parts.netloc}" and "@" not in parts.netloc
    if not (bare and parts.hostname and parts.scheme in {"http", "https"}):
        raise ConfigError(
            f"--cors-origin {text!r}: write https://host or http://host:port, nothing behind it, "
            "or *"
        )
    usual = {"http": 80, "https": 443}[parts.scheme]
    host = parts.netloc.lower()
    return f"{parts.scheme}://{host.removesuffix(f':{port}') if port == usual else host}"
