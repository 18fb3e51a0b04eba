"""Whether requests are traced: to a collector when an endpoint is named, else not at all."""

import contextlib
import os
import random
import time
from binascii import hexlify
from typing import Final, Protocol

from kvmesh.app.front.otlp_messages import ExportStatistics
from kvmesh.core.routing.sessions import SESSION, SESSION_HEADERS
from kvmesh.transport.http.server.incoming import Incoming
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.trace import LINE, Parent, Trace, read_traceparent
from kvmesh.version import VERSION

MOST_SESSION: Final = 256
"""Characters of a session's name that a span shows."""

_U64: Final = (1 << 64) - 1
_CONTEXT: Final[Headers] = ((b"traceparent", b""),)
_CONTEXT_AND_STATE: Final[Headers] = (*_CONTEXT, (b"tracestate", b""))


class Spans(Protocol):
    """The way of spans to a collector: `app.front.span_export`, which only who traces loads."""

    def take(self, trace: Trace) -> None:
        """Take a request that is over."""
        ...

    def statistics(self) -> ExportStatistics:
        """Return the present counts."""
        ...

    def start(self) -> None:
        """Send what comes, until `close`."""
        ...

    async def close(self) -> None:
        """Send what waits, for some seconds at most."""
        ...


class Tracer:
    """Gives requests a trace, sampled or not, and every sampled one to `export` at its end.

    What a request is asked for is its head alone, so that it takes the same way as without; all
    else is made of what is left of it when it is over.
    """

    def __init__(self, share: float, export: Spans, *, by_share_alone: bool = False) -> None:
        self.export = export
        self._by_share_alone = by_share_alone
        self._below = int(share * (1 << 64))
        self._draw = random.Random().getrandbits  # noqa: S311  ids, no secrets

    def begin(self, exchange: Incoming) -> None:
        """Begin a request's trace, or its part of its client's, by the client's `traceparent`.

        One that its client does not sample goes on with the client's headers as they came; one that
        is not sampled here tells so to the next hop, which would begin a trace of its own.
        """
        request = exchange.request
        sent = request.header(b"traceparent")
        parent = None if sent is None else read_traceparent(sent)
        number = self._draw(192)
        ids = hexlify(number.to_bytes(24, "big"))  # half the time of b"%048x"
        if parent is None:
            trace_id, sampled = ids[:32], (number >> 64) & _U64 < self._below
        else:
            trace_id, sampled = parent.trace_id, self._samples(parent)
            if not sampled and not parent.sampled:
                return
        span_id = ids[32:]
        end = b"-01\r\n" if sampled else b"-00\r\n"
        line = b"".join((LINE, b"00-", trace_id, b"-", span_id, end))
        trace = Trace(trace_id, span_id, line)
        if sent is not None:
            trace.left_out = _CONTEXT_AND_STATE if parent is None else _CONTEXT
        exchange.scope.trace = trace
        if sampled:
            trace.keep = self.export.take
            trace.started_s = time.monotonic()
            trace.parent_id = b"" if parent is None else parent.span_id
            trace.method, trace.path, trace.client = request.method, request.path, request.client
            trace.request_id = exchange.request_id.decode("latin-1")
            named = filter(None, map(request.header, (SESSION, *SESSION_HEADERS)))
            trace.conversation = next(named, b"")[:MOST_SESSION].decode("latin-1")

    def _samples(self, parent: Parent) -> bool:
        if self._by_share_alone:
            return int(parent.trace_id[16:], 16) < self._below
        return parent.sampled


def tracer_for(endpoint: str, role: str, share: float | None = None) -> Tracer | None:
    """Return what traces the requests of a process called `role` to an OTLP/HTTP `endpoint`.

    `share` of those that no client's trace decides about are sampled; None asks OpenTelemetry's own
    variables, as "" does for the endpoint; None is returned where they name nothing either: then
    clients' `traceparent` headers go to engines as they came. Raises `ConfigError`.
    """
    # Not loaded by who has no requests to trace, as sidecars.
    from kvmesh.app.front import otlp_environment as environment  # noqa: PLC0415

    url = environment.find_endpoint(endpoint, os.environ)
    if not url:
        return None
    # http.client and what it needs take 30 ms to load.
    from kvmesh.app.front.otlp_collector import Collector  # noqa: PLC0415
    from kvmesh.app.front.otlp_encoding import Envelope  # noqa: PLC0415
    from kvmesh.app.front.span_export import SpanExport  # noqa: PLC0415

    collector = Collector(environment.collector_options(url, os.environ))
    resource = environment.resource_of(role, VERSION, os.environ)
    bounds = environment.export_bounds(os.environ)
    export = SpanExport(collector, Envelope(resource, "kvmesh", VERSION), bounds)
    sampling = environment.read_sampling(share, os.environ)
    return Tracer(sampling.share, export, by_share_alone=sampling.by_share_alone)


def exporting(tracer: Tracer | None, stack: contextlib.AsyncExitStack) -> None:
    """Have spans sent until `stack` ends; where nothing is traced, do nothing."""
    if tracer is not None:
        tracer.export.start()
        stack.push_async_callback(tracer.export.close)
