"""The headers a request goes on with."""

from typing import Final

from kvmesh.transport.http.headers import Header, end_to_end
from kvmesh.transport.http.request_reader import Request

_REPLACED_IN_REQUEST: Final = frozenset(
    {
        b"accept-encoding",  # a compressed answer could not be scanned
        b"content-length",
        b"expect",
        b"host",
        b"x-forwarded-for",
        b"x-request-id",
    }
)


def forwarded_headers(request: Request, request_id: bytes) -> list[Header]:
    """Return the client's end-to-end headers with the proxy's own: x-forwarded-*, x-request-id."""
    headers = end_to_end(request.headers, _REPLACED_IN_REQUEST)
    sent = {name for name, _ in headers}
    before = request.header(b"x-forwarded-for")
    client = request.client.encode()
    headers.append((b"x-forwarded-for", b"%b, %b" % (before, client) if before else client))
    if b"x-forwarded-proto" not in sent:
        headers.append((b"x-forwarded-proto", b"https" if request.secure else b"http"))
    if b"x-forwarded-host" not in sent and (host := request.header(b"host")) is not None:
        headers.append((b"x-forwarded-host", host))
    headers.append((b"x-request-id", request_id))
    return headers
