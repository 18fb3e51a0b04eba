"""The request of one attempt, as its upstream gets it."""

from kvmesh.core.chat.stream_form import with_ids
from kvmesh.transport.http.forward.asked import AskedUsage
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.forward.resume import Resumption
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import forwarded_block
from kvmesh.transport.http.upstream.messages import UpstreamRequest
from kvmesh.transport.http.wire.headers import Headers


def message_to(
    target: Target,
    exchange: Exchange,
    own: Headers,
    resumption: Resumption | None,
    asks: AskedUsage | None,
    *,
    unnamed: bool,
) -> UpstreamRequest:
    """Return the client's request with the target's headers and `own` in place of its own; a stream
    that is kept asks for token ids, or for what goes on with it, and one that `asks` for usage.
    `unnamed`: without an id.
    """
    request = exchange.request
    replaced = (*target.headers, *own) if target.headers or own else ()
    line = named = b""
    if (trace := exchange.scope.trace) is not None:
        trace.sent(target.origin)
        line = trace.line
        replaced = (*replaced, *trace.left_out)
    path, body = target.path, request.body if target.body is None else target.body
    ids = False
    if resumption is not None:
        path, body, ids = resumption.sent(path, body, target.origin, target.gives_ids)
    if asks is not None:
        body = asks.sent(body, target.origin, ids=ids)
    elif ids:
        body = with_ids(body)
    block = forwarded_block(request, replaced)
    if not unnamed:
        # An id is printable: see `RequestIds`.
        named = b"x-request-id: %b\r\n" % (target.request_id or exchange.request_id)
    return UpstreamRequest(
        target.origin,
        request.method,
        request.target if path is None else path,
        target.headers,
        body,
        b"".join((block, named, line)),
    )
