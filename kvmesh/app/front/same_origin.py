"""Whether a browser sent a request for another site's page: then what it adds by itself counts not.

Cookies, and passwords that a browser asked its user for, are such additions; so is being this
machine. Source: https://www.w3.org/TR/fetch-metadata/, RFC 6454 §7.
"""

from typing import Final
from urllib.parse import urlsplit

from kvmesh.bounds import shown
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.request import Request

SITE: Final = b"sec-fetch-site"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
JSON_TYPE: Final = b"application/json"
"""No browser sends this for a page of another origin before it has asked by OPTIONS, which
`CorsGuard` answers. Source: https://fetch.spec.whatwg.org/#cors-safelisted-request-header.
"""
_OWN: Final = frozenset({b"same-origin", b"none"})
"""A page of ours, or the user: an address typed, a bookmark."""


def is_foreign(request: Request) -> bool:
    """Return whether a page of another origin made this request.

    Browsers tell by `Sec-Fetch-Site` on TLS and on this machine, elsewhere by `Origin` of all that
    is no plain GET. Who sends neither is no browser, or navigates, or loads what it cannot read.
    """
    site = request.header(SITE)
    if site is not None:
        return site not in _OWN
    origin = request.header(b"origin")
    if origin is None:
        return False
    try:
        host = urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        return True
    return host.lower() not in _hosts(request)


def refuse_forced(request: Request) -> None:
    """Raise `RequestError` 403 for what a page of another origin had its visitor's browser send.

    That a page may do without asking, by a form or a fetch of plain text: it cannot read the
    answer, but the work would be done. Clients that are no browsers name no origin, whatever their
    content type (curl's is that of a form).
    """
    if request.method in _READS:
        return
    kind = request.head.get(b"content-type") or b""
    if kind.partition(b";")[0].strip().lower() == JSON_TYPE or not is_foreign(request):
        return
    origin = shown((request.header(b"origin") or b"unknown").decode("latin-1"))
    raise RequestError(
        f"a page of another site (origin {origin}) may not send this: allow it with --cors-origin, "
        "or have it send content-type: application/json",
        status=403,
        code="foreign_page",
    )


def _hosts(request: Request) -> set[str]:
    """Return what the client may call this server: a proxy between says so."""
    found = (request.header(b"host"), request.header(b"x-forwarded-host"))
    return {one.decode("latin-1").strip().lower() for one in found if one}
