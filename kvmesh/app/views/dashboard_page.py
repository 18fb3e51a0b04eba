"""The dashboard's files, the JSON they read, and where both are served."""

from collections.abc import Callable
from hashlib import blake2b
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs, unquote

import msgspec

from kvmesh.app.front.browser_login import NO_LOGIN
from kvmesh.app.front.front import Routes, answer_json, json_page
from kvmesh.app.front.page_time import PageTime
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.views.figure_table import COLUMNS
from kvmesh.app.views.live import HELLO_DECISIONS, MAX_DECISIONS, LiveFeed, View
from kvmesh.app.views.tenant_view import overview_for, rows_for
from kvmesh.core.admission.access import SESSION
from kvmesh.core.insight.record_search import search_for
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.exchange import Exchange

OPENAPI: Final = "/openapi.json"
DECISIONS: Final = "/v1/decisions/"
FIGURES: Final = "/dashboard/figures.js"
_DIRECTORY: Final = files("kvmesh.app.views") / "dashboard"
_SCRIPTS: Final = (
    *("charts", "curves", "dashboard", "detail", "fleet", "parts", "policies", "prefixes"),
    *("problems", "programs", "requests", "session", "settings", "sites", "tiles", "traffic"),
    *("tuning", "workers"),
)
_JAVASCRIPT: Final = b"text/javascript; charset=utf-8"
_FILES: Final = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    "/dashboard": ("index.html", b"text/html; charset=utf-8"),
    "/dashboard/dashboard.css": ("dashboard.css", b"text/css; charset=utf-8"),
    "/dashboard/icon.svg": ("icon.svg", b"image/svg+xml"),
    **{f"/dashboard/{name}.js": (f"{name}.js", _JAVASCRIPT) for name in _SCRIPTS},
}
_SAFE: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


class ViewPages:
    """Answers for one view: decisions, overview, live events, and the page that shows them."""

    def __init__(self, view: View, viewers: Viewers | None = None) -> None:
        self._viewers = viewers or Viewers("")
        self._time = PageTime()
        self.live = LiveFeed(view, self._viewers, self._time)
        self._view = view

    def mount(self, routes: Routes, *, page: bool = True) -> None:
        """Serve all of it, without the `page` what it reads."""
        routes.add("GET", "/v1/overview", self._overview)
        routes.add("GET", "/v1/events", self.live.serve)
        routes.add("GET", "/v1/decisions", self._list)
        routes.add_prefix(DECISIONS, self._detail)
        routes.add("GET", OPENAPI, _show_document)
        if not page:
            return
        # Where keys are asked for, their guard answers this itself.
        routes.add("GET", SESSION, lambda exchange: answer_json(exchange, NO_LOGIN))
        for path, (name, kind) in _FILES.items():
            routes.add("GET", path, file_route((_DIRECTORY / name).read_bytes(), kind))
        routes.add("GET", FIGURES, file_route(figures_script(), _JAVASCRIPT))

    def _overview(self, exchange: Exchange) -> None:
        """Answer the present; `since` (Unix seconds), `after` (a cursor), `limit` (decisions)."""
        since = query_number(exchange, "since", 0)
        after = query_number(exchange, "after", 0)
        limit = min(query_number(exchange, "limit", HELLO_DECISIONS), MAX_DECISIONS)

        viewer = self._viewers.of(exchange.request)

        async def look() -> Callable[[], bytes]:
            await self._view.refresh(watched=True)
            return overview

        def overview() -> bytes:
            if viewer is None:
                return json_page(self._view.overview(since, limit, after))
            whole = self._view.overview(since, MAX_DECISIONS, after)
            return json_page(overview_for(whole, viewer, limit))

        self._time.answer(exchange, (exchange.request.path, since, after, limit, viewer), look)

    def _list(self, exchange: Exchange) -> None:
        """Answer the newest decisions; `limit` of them, of those that `find` and `tenant` mean."""
        limit = min(query_number(exchange, "limit", HELLO_DECISIONS), MAX_DECISIONS)
        query = parse_qs(exchange.request.query, keep_blank_values=True)
        viewer = self._viewers.of(exchange.request)
        tenant = query.get("tenant", [None])[-1] if viewer is None else viewer.tenant
        search = search_for(query.get("find", [""])[-1], tenant)

        async def look() -> Callable[[], bytes]:
            find_rows = await self._view.latest(limit, search)
            if viewer is None:
                return lambda: json_page({"decisions": find_rows()})
            return lambda: json_page({"decisions": rows_for(find_rows(), viewer)})

        self._time.answer(exchange, (exchange.request.path, limit, viewer, search), look)

    def _detail(self, exchange: Exchange) -> None:
        """Answer everything about one request."""
        request = exchange.request
        if request.method not in {"GET", "HEAD"}:
            raise RequestError(f"{request.method} {request.path}: use GET", status=405)
        request_id = unquote(request.path.removeprefix(DECISIONS))
        viewer = self._viewers.of(request)

        async def look() -> Callable[[], bytes]:
            found = await self._view.find(request_id, viewer)
            if found is None:
                raise RequestError(
                    f"request {request_id!r} is not known: routers keep the newest"
                    " requests, and lose them when they restart",
                    status=404,
                )
            return lambda: msgspec.json.format(found, indent=2) + b"\n"

        self._time.answer(exchange, (request.path, viewer), look)


def _show_document(exchange: Exchange) -> None:
    """Answer the OpenAPI document, whose module is loaded by who asks for it first."""
    from kvmesh.app.views.openapi import document  # noqa: PLC0415

    exchange.respond(200, document())


def figures_script() -> bytes:
    """Return the module that tells the page which figures it shows of which rows, and how."""
    shown = {rows: [one for one in all_ if one.dashboard] for rows, all_ in COLUMNS.items()}
    return b"export const FIGURES = " + msgspec.json.encode(shown) + b";\n"


def file_route(content: bytes, kind: bytes) -> Callable[[Exchange], None]:
    """Return the route of a file that browsers may keep while its tag is the same."""
    tag = b'"%b"' % blake2b(content, digest_size=12).hexdigest().encode()
    headers = (*_SAFE, (b"etag", tag))

    def answer(exchange: Exchange) -> None:
        if exchange.request.header(b"if-none-match") == tag:
            exchange.respond(304, b"", headers=headers)
        else:
            exchange.respond(200, content, content_type=kind, headers=headers)

    return answer


def query_number(exchange: Exchange, name: str, default: int) -> int:
    """Return a whole number of the query. Raises `RequestError`."""
    values = parse_qs(exchange.request.query).get(name)
    if not values:
        return default
    text = values[-1]
    if not (text.isascii() and text.isdigit() and len(text) <= 18):  # noqa: PLR2004  fits in 63 bits
        raise RequestError(f"{name}={text!r}: use a whole number", param=name)
    return int(text)
