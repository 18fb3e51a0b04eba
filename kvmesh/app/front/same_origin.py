"""Whether a browser sent a request for another site's page: then what it adds by itself counts not.

Cookies, and passwords that a browser asked its user for, are such additions; so is being this
machine. Source: https://www.w3.org/TR/fetch-metadata/, RFC 6454 §7.
"""

from typing import Final
from urllib.parse import urlsplit

from kvmesh.transport.http.server.request import Request

_OWN: Final = frozenset({b"same-origin", b"none"})
"""A page of ours, or the user: an address typed, a bookmark."""


def is_foreign(request: Request) -> bool:
    """Return whether a page of another origin made this request.

    Browsers tell by `Sec-Fetch-Site` on TLS and on this machine, elsewhere by `Origin` of all that
    is no plain GET. Who sends neither is no browser, or navigates, or loads what it cannot read.
    """
    site = request.header(b"sec-fetch-site")
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


def _hosts(request: Request) -> set[str]:
    """Return what the client may call this server: a proxy between says so."""
    found = (request.header(b"host"), request.header(b"x-forwarded-host"))
    return {one.decode("latin-1").strip().lower() for one in found if one}
