"""One request whose worker is told to take a prefix from another worker's cache."""

import msgspec

from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.engines.fetch import Source, read_access
from kvmesh.core.engines.registry import fetch_of
from kvmesh.core.routing.decision import Decision
from kvmesh.errors import CodecError
from kvmesh.transport.http.forward.plan import Outcome, Target, Wait
from kvmesh.transport.http.forward.resume import Going
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

_FETCHED_FROM = b"x-kvmesh-fetch-from"


class FetchingRequest:
    """The forwarding plan of a request that may be sent with where to fetch its prefix from.

    Each attempt's body names the source of its own decision, and is the client's where that has
    none. A body that names a source itself is never changed.
    """

    def __init__(self, context: RoutingContext, routed: RoutedRequest, body: bytes) -> None:
        self._context = context
        self._routed = routed
        self._body = body
        self._source = ""

    def next_target(self) -> Target | Problem | Wait | None:
        """Return the next attempt's target, with a body that names the source."""
        target = self._routed.next_target()
        self._source = ""
        if not isinstance(target, Target):
            return target
        decision = self._routed.decision
        body = None if decision is None else self._fetching_body(decision)
        return target if body is None else msgspec.structs.replace(target, body=body)

    def _fetching_body(self, decision: Decision) -> bytes | None:
        """Return the client's body with the source in it; None: it goes as it is."""
        brought = decision.brought
        if brought is None or brought.source is None:
            return None
        beat = self._context.router.heartbeats.get(brought.source)
        access = None if beat is None else read_access(beat.labels)
        fetch = None if access is None else fetch_of(access.way)
        if beat is None or access is None or fetch is None:
            return None
        self._source = beat.worker
        if fetch.body is None:
            return None
        address = access.address(beat.url, fetch.port + (beat.dp_rank or 0))
        if address is None:
            self._source = ""
            return None
        request_id = f"{self._routed.request_id}-{self._routed.attempts}"
        try:
            return fetch.body(self._body, Source(*address, request_id))
        except CodecError:
            self._source = ""
            return None

    @property
    def cached_tokens(self) -> int | None:
        """Return what its worker is taken to have found cached of the prompt."""
        return self._routed.cached_tokens

    def lose(self, failure: UpstreamFailure) -> None:
        """Take that the worker was lost with all but the end of its answer."""
        self._routed.lose(failure)

    def go_on(self, failure: UpstreamFailure, going: Going) -> bool:
        """Have another worker chosen for a stream; it fetches nothing more."""
        return self._routed.go_on(failure, going)

    def booked(self) -> str:
        """Return the id of its present booking."""
        return self._routed.booked()

    def note_prefill(self) -> None:
        """Take that its prefill is over."""
        self._routed.note_prefill()

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Learn of an attempt that failed before its answer began."""
        return self._routed.on_attempt_failed(failure)

    def on_head(self, status: int) -> Headers:
        """Tell the client whose cache was named, too."""
        self._body = b""  # streams are long
        own = self._routed.on_head(status)
        return (*own, (_FETCHED_FROM, self._source.encode())) if self._source else own

    def on_tokens(self, tokens: int) -> None:
        """Take the tokens so far."""
        self._routed.on_tokens(tokens)

    def on_finish(self, outcome: Outcome) -> None:
        """Release the booking."""
        self._routed.on_finish(outcome)
