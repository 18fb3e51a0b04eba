"""Who may change a running router: whoever has the token, or else only this machine."""

import re
from hmac import compare_digest
from ipaddress import IPv6Address, ip_address
from typing import Final

from kvmesh.app.front.same_origin import is_foreign
from kvmesh.errors import RequestError
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.settings.secret_file import read_secret
from kvmesh.transport.http.server.request import Request

TOKEN_HEADER = b"x-kvmesh-admin-token"
UNAUTHORIZED = 401
FORBIDDEN = 403

FORWARDED: Final = b"forwarded"
LISTING: Final = frozenset({b"x-forwarded-for", b"x-real-ip"})
"""Headers of addresses with commas between them."""

_FOR: Final = re.compile(r'\bfor\s*=\s*("[^"]*"|[^;\s"]+)', re.IGNORECASE)


class AdminGuard:
    """Raises `ConfigError` when the token's file cannot be read or is empty."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._token = read_secret(settings.admin_token_file, "--admin-token-file")

    def check(self, request: Request, path: str) -> None:
        """Raise `RequestError` for one who may not change what `path` names."""
        if self._token:
            # With --api-keys the authorization header is taken off: it holds the client's key.
            sent = request.header(TOKEN_HEADER)
            if sent is None:
                sent = (request.header(b"authorization") or b"").removeprefix(b"Bearer ")
            if not compare_digest(sent, self._token):
                raise RequestError(
                    f"{path}: send the token of --admin-token-file as a bearer, or in the header"
                    f" {TOKEN_HEADER.decode()}",
                    status=UNAUTHORIZED,
                )
        elif is_foreign(request) or is_rebound(request):
            raise RequestError(
                f"{path}: without --admin-token-file no page of another site may change it",
                status=FORBIDDEN,
            )
        elif not all(map(is_loopback, hops(request))):
            raise RequestError(
                f"{path}: without --admin-token-file only this machine may change it",
                status=FORBIDDEN,
            )


def is_rebound(request: Request) -> bool:
    """Return whether a browser sent it for a page whose name is not this machine's: its owner may
    let that name be 127.0.0.1 (DNS rebinding), and then all is of one origin.
    """
    origin = request.header(b"origin")
    if origin is None:
        return False
    host = origin.decode("latin-1").partition("://")[2].lower()
    name = host if host.startswith("[") else host.partition(":")[0]
    return not (name == "localhost" or name.endswith(".localhost") or is_loopback(name))


def hops(request: Request) -> list[str]:
    """Return the addresses a request came by: its peer's, and those that proxies tell of.

    Every line of every such header counts, for a client may have sent the first one itself. What
    names no address, or more than one, stands for itself: it is nobody's loopback.
    """
    found = [request.client]
    for name, value in request.headers:
        if name in LISTING or name == FORWARDED:
            parts = [one.strip() for one in value.decode("latin-1").split(",")]
            found += [one if name in LISTING else forwarded_for(one) for one in parts if one]
    return found


def forwarded_for(element: str) -> str:
    """Return the node of one element of `Forwarded` (RFC 7239 §4), else the element.

    Quotes do not protect a comma or a second `for`: a client could open a quote that swallows what
    the proxy adds.
    """
    nodes = _FOR.findall(element)
    return nodes[0] if len(nodes) == 1 else element


def is_loopback(address: str) -> bool:
    """Return whether an address, perhaps in quotes and with a port, is this machine's own."""
    host = address.strip('"')
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        found = ip_address(host)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback
