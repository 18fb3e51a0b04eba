"""What a gateway changes of a request's headers before it sends it."""

from kvmesh.app.picker.exchange import PickExchange
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.wire.headers import Header, Headers


def changes_of(
    target: Target, exchange: PickExchange, own: Headers
) -> tuple[list[Header], tuple[bytes, ...]]:
    """Return the headers to set, and the names of those to take off; `own` are sent with every
    request.
    """
    request, name = exchange.request, target.request_id or exchange.request_id
    headers: list[Header] = [*target.headers, *own]
    removed: tuple[bytes, ...] = ()
    if (trace := exchange.scope.trace) is not None:
        headers.append((b"traceparent", trace.context()))
        removed = tuple(one for one, _ in trace.left_out if one != b"traceparent")
    if request.header(b"x-request-id") != name:
        headers.append((b"x-request-id", name))
    if target.path is not None:
        headers.append((b":path", target.path))
    sent = exchange.sent_headers
    if request.headers is sent:
        return headers, removed
    kept = {one for one, _ in request.headers}
    before = {*sent}
    headers += [one for one in request.headers if one not in before]
    kept.update(one for one, _ in headers)
    left_out = {one: None for one, _ in sent if one not in kept}
    return headers, tuple(left_out | dict.fromkeys(removed))
