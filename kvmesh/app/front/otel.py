"""Traces over OpenTelemetry: one span a request, its context passed on to the next hop.

Only `app.front.tracing` loads this module: the library is an extra.
"""

from functools import partial
from typing import Final

import msgspec
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvmesh.transport.http.forward.plan import Booked, ForwardPlan, Outcome, Target, Wait
from kvmesh.transport.http.server.incoming import Incoming
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem
from kvmesh.version import VERSION

OWN: Final = b"x-kvmesh-"
TRACES: Final = "/v1/traces"
_NUMBERS: Final = frozenset({"overlap_blocks"})
_CONTEXT: Final = TraceContextTextMapPropagator()


class OpenTelemetryTracer:
    """Makes a span of every request and sends them in batches from a thread of its own."""

    def __init__(self, endpoint: str, role: str) -> None:
        resource = Resource.create({"service.name": f"kvmesh-{role}", "service.version": VERSION})
        self._provider = TracerProvider(resource=resource)
        url = endpoint.rstrip("/").removesuffix(TRACES) + TRACES
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("kvmesh", VERSION)

    def watch(self, exchange: Incoming, plan: ForwardPlan) -> ForwardPlan:
        """Return the plan with a span around it, child of the client's `traceparent`."""
        request = exchange.request
        carrier = {
            name.decode(): value.decode("latin-1")
            for name, value in request.headers
            if name in {b"traceparent", b"tracestate"}
        }
        span = self._tracer.start_span(
            f"{request.method} {request.path}",
            context=_CONTEXT.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": request.method,
                "url.path": request.path,
                "client.address": request.client,
                "kvmesh.request_id": exchange.request_id.decode("latin-1"),
            },
        )
        exchange.scope.held.append(partial(_end, span))
        return TracedPlan(plan, span)

    def close(self) -> None:
        """Send what is not yet sent."""
        self._provider.shutdown()


class TracedPlan:
    """A plan, told of in a span: every attempt, the worker and overlap, first byte, end."""

    def __init__(self, plan: ForwardPlan, span: Span) -> None:
        self._plan = plan
        self._span = span

    def next_target(self) -> Target | Problem | Wait | None:
        """Ask the plan; the next hop's spans will be this one's children."""
        target = self._plan.next_target()
        if not isinstance(target, Target):
            return target
        self._span.add_event("attempt", {"server.address": target.origin})
        carrier: dict[str, str] = {}
        _CONTEXT.inject(carrier, context=set_span_in_context(self._span))
        context = [(name.encode(), value.encode()) for name, value in carrier.items()]
        return msgspec.structs.replace(target, headers=(*target.headers, *context))

    def booked(self) -> str:
        """Return the id of the present attempt's booking, "" for none."""
        return self._plan.booked() if isinstance(self._plan, Booked) else ""

    def note_prefill(self) -> None:
        """Tell the plan that its prefill is over."""
        if isinstance(self._plan, Booked):
            self._plan.note_prefill()

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool | Problem:
        """Tell what failed."""
        self._span.add_event("attempt failed", {"error.message": failure.message})
        return self._plan.on_attempt_failed(failure)

    def on_head(self, status: int, headers: Headers) -> Headers:
        """Tell who answers, and that its first byte has come."""
        own = self._plan.on_head(status, headers)
        self._span.set_attribute("http.response.status_code", status)
        for name, value in own:
            if name.startswith(OWN):
                key = name.removeprefix(OWN).decode().replace("-", "_")
                text = value.decode("latin-1")
                self._span.set_attribute(f"kvmesh.{key}", int(text) if key in _NUMBERS else text)
        self._span.add_event("first byte")
        return own

    def on_tokens(self, tokens: int) -> None:
        """Tell the plan."""
        self._plan.on_tokens(tokens)

    def on_finish(self, outcome: Outcome) -> None:
        """End the span."""
        span = self._span
        span.set_attribute("kvmesh.outcome", outcome.kind)
        span.set_attribute("kvmesh.attempts", outcome.attempts)
        if outcome.status:
            span.set_attribute("http.response.status_code", outcome.status)
        if outcome.kind in {"failed", "cut", "crashed"}:
            why = outcome.failure.message if outcome.failure is not None else outcome.kind
            span.set_status(Status(StatusCode.ERROR, why))
        span.end()
        self._plan.on_finish(outcome)


def _end(span: Span) -> None:
    """End a span that an error has kept from ending."""
    if span.is_recording():
        span.set_status(Status(StatusCode.ERROR, "crashed"))
        span.end()
