"""The headers a request goes on with."""

from typing import Final

from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers, end_to_end, render

_REPLACED: Final = frozenset(
    {
        b"accept-encoding",  # a compressed answer could not be scanned
        b"expect",
        b"host",
        b"x-forwarded-for",
        b"x-request-id",
    }
)


def forwarded_block(request: Request, replaced: Headers = ()) -> bytes:
    """Return the lines of the client's end-to-end headers with x-forwarded-for, -proto, -host.

    Left out besides: host, x-request-id, and what `replaced` names. Without `replaced` requests
    with the same head share one block.
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
