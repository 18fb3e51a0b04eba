"""Who may change a running router: whoever has the token, or else only this machine."""

from hmac import compare_digest

from kvmesh.errors import RequestError
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.settings.secret_file import read_secret
from kvmesh.transport.http.server.request import Request

TOKEN_HEADER = b"x-kvmesh-admin-token"
LOOPBACK = ("127.", "::1", "::ffff:127.")
UNAUTHORIZED = 401
FORBIDDEN = 403


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
        elif not all(map(is_loopback, hops(request))):
            raise RequestError(
                f"{path}: without --admin-token-file only this machine may change it",
                status=FORBIDDEN,
            )


def hops(request: Request) -> list[str]:
    """Return the addresses a request came by: its peer's, and those proxies tell."""
    told = request.header(b"x-forwarded-for") or b""
    listed = [one.strip() for one in told.decode("latin-1").split(",")]
    return [request.client, *(one for one in listed if one)]


def is_loopback(address: str) -> bool:
    """Return whether an address is this machine's own."""
    return address.startswith(LOOPBACK)
