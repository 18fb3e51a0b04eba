"""WebSockets at a front door: which requests ask for one, and which of them may have it."""

from typing import Final

from kvmesh.app.front.same_origin import is_foreign
from kvmesh.core.admission.paths import ROWS
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.problem import Problem
from kvmesh.transport.http.wire.websocket import UPGRADE, asks_for, why_not

SOCKET_PATHS: Final = frozenset(row.path for row in ROWS if row.owner == "websocket")
"""What engines serve over WebSocket alone."""

_PLAIN: Final = "{path} is served over WebSocket alone: open it with GET and upgrade: websocket"
_FOREIGN: Final = (
    "a page of another site may not open a WebSocket here: allow its origin with --cors-origin"
)


def is_websocket(request: Request) -> bool:
    """Return whether a request is one for a WebSocket, or has to be."""
    if request.header(b"upgrade") is not None and asks_for(request.headers):
        return True
    return request.path in SOCKET_PATHS and request.method == "GET"


def why_no_websocket(request: Request) -> Problem | None:
    """Return why a request `is_websocket` of may have none.

    Browsers ask nobody before they open one for a page of another origin (no CORS), and tell whose
    page it is by Origin alone.
    """
    if request.header(b"upgrade") is None or not asks_for(request.headers):
        return Problem(426, _PLAIN.format(path=request.path), "not_websocket", also=UPGRADE)
    if not request.vetted and is_foreign(request):
        return Problem(403, _FOREIGN, "foreign_page")
    return why_not(request.method, request.headers, http_1_0=request.http_1_0)
