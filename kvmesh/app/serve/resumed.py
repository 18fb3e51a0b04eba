"""`GET /v1/streams/{id}?after=N`: the rest of a stream for a client that has lost it."""

import asyncio
import re
from typing import Final
from urllib.parse import parse_qs

import msgspec

from kvmesh.app.front.viewers import Viewers
from kvmesh.app.prompts.reading import Reader
from kvmesh.app.prompts.reading_parts import by_path, within_patience
from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.serve.stream_sharing import StreamSharing
from kvmesh.bounds import MAX_TOKENS, shown, whole_number
from kvmesh.core.chat.continuation import Continuation, go_on
from kvmesh.core.chat.named_streams import NAME, NamedStream, StreamKey
from kvmesh.core.chat.splice import Seen
from kvmesh.core.chat.stream_form import form_of
from kvmesh.core.chat.stream_marks import Cut, cut_behind
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.errors import KvMeshError, RequestError
from kvmesh.transport.http.forward.forwarding import Forward
from kvmesh.transport.http.forward.plan import ForwardOptions
from kvmesh.transport.http.forward.resume import STREAM_ID, STREAMS_PATH, Resumption
from kvmesh.transport.http.openai import find_endpoint
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.problem import Problem

EVENTS: Final = b"text/event-stream"
WAIT_S: Final = 0.5
"""So long the last news of a stream are awaited: its router may only have lost its client."""

LOOK_EVERY_S: Final = 0.02
_DONE: Final = b"data: [DONE]\n\n"
_NAME: Final = re.compile(NAME)
_OF_THE_BODY: Final = frozenset({b"content-type", b"content-encoding", STREAM_ID})
_JSON: Final = (b"content-type", b"application/json")
_KNOWN: Final = b"x-kvmesh-stream-events"


def checked_name(value: bytes) -> str:
    """Return the name that a client gives its stream. Raises `RequestError`."""
    name = value.decode("latin-1")
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"header x-kvmesh-stream-id is {shown(name)}: use 1 to 128 letters, digits and . _ : ~ "
            "-, the first a letter or digit",
            param="x-kvmesh-stream-id",
        )
    return name


class ResumedStreams:
    """Serves streams again that were named. One call an exchange, never blocking."""

    def __init__(
        self,
        context: RoutingContext,
        reader: Reader,
        pool: UpstreamPool,
        options: ForwardOptions,
        viewers: Viewers,
    ) -> None:
        self._context = context
        self._reader = reader
        self._pool = pool
        self._options = by_path(options)
        self._viewers = viewers

    def serve(self, exchange: Exchange) -> None:
        """Answer with the events behind the N-th. Raises `RequestError`."""
        request, sharing = exchange.request, self._context.named
        find_endpoint(request.method, request.path, passthrough=True)
        if request.method != "GET":
            raise RequestError(
                f"{STREAMS_PATH}… takes GET, not {shown(request.method)}", status=405
            )
        name, after = request.path.removeprefix(STREAMS_PATH), _after(request.query)
        if sharing is None:
            raise _unknown(name)
        key = sharing.key_of(request, name)
        stream = sharing.find(key)
        if stream is None:
            raise _unknown(name)
        if why := stream.head.why or ("" if stream.head.path else "its request is not known"):
            raise _conflict(f"stream {shown(name)} cannot go on: {why}")
        sharing.take(key, stream)
        exchange.scope.start(self._wait(exchange, sharing, key, after))

    async def _wait(
        self, exchange: Exchange, sharing: StreamSharing, key: StreamKey, after: int
    ) -> None:
        """Go on when so many events are known to have passed, or will not be."""
        context = self._context
        until_s = context.clock() + WAIT_S
        try:
            while True:
                stream = sharing.table.find(key, context.clock())
                cut = None if stream is None else cut_behind(stream.kept(), after)
                if cut is not None or stream is None or stream.over or context.clock() > until_s:
                    break
                await asyncio.sleep(LOOK_EVERY_S)
            if stream is None or cut is None:
                self._refuse(exchange, key[1], stream)
            else:
                self._go_on(exchange, key, stream, cut)
        except KvMeshError as error:
            exchange.fail(Problem.from_error(error))

    def _refuse(self, exchange: Exchange, name: str, stream: NamedStream | None) -> None:
        known = 0 if stream is None else stream.events()
        text = f"of stream {shown(name)} {known} events are known: ask for it after={known} at most"
        headers = ((_KNOWN, b"%d" % known),)
        exchange.fail(Problem(409, text, "stream_events_unknown", "after", also=headers))

    def _go_on(self, exchange: Exchange, key: StreamKey, stream: NamedStream, cut: Cut) -> None:
        context, head, sharing = self._context, stream.head, self._context.named
        assert sharing is not None, "it is known there"
        kind = "chat" if head.path == "/v1/chat/completions" else "completions"
        form = form_of(head.body, kind)
        seen = Seen(cut.kept, head.opening, opened=bool(cut.kept.marks))
        going = _DONE if cut.ended else go_on(head.body, kind, form, seen)
        if going is None:
            why = cut.kept.lost or "it has come too far"
            raise _conflict(f"stream {shown(key[1])} cannot go on behind that event: {why}")
        if isinstance(going, bytes):
            context.counters.streams.resumed += 1
            exchange.respond(200, going, content_type=EVENTS)
            return
        keep = context.counters.streams
        resumption = keep.resume(head.body, kind, form, head.opening, going)
        if resumption is None:
            raise RequestError("too many streams are kept: try again", status=503)
        exchange.scope.held.append(resumption.over)
        exchange.request = _asked_again(exchange.request, stream)

        def send(request: RouteRequest) -> None:
            self._send(exchange, request, resumption, going, cut)
            sharing.begin(exchange, resumption, key)

        self._reader.read_again(exchange, going.tokens, send)

    def _send(
        self,
        exchange: Exchange,
        request: RouteRequest,
        resumption: Resumption,
        going: Continuation,
        cut: Cut,
    ) -> None:
        """Forward what goes on as any request is: it waits, is refused and is counted alike."""
        context, asked = self._context, exchange.request
        left = going.limit or request.expected_output_tokens
        one = context.routing.enter(
            msgspec.structs.replace(request, expected_output_tokens=left, turn=None),
            exchange.request_id,
        )
        if going.tokens is not None:
            one.unforeseen = "continued"
        if context.tracer is not None:
            context.tracer.begin(exchange)
        options = within_patience(self._options[asked.path], request.timeout_s)
        forwarding = Forward(exchange, self._pool, options)
        routed = RoutedRequest(context, one, forwarding)
        routed.resumed = len(cut.kept.token_ids) // 4
        one.veiled = self._viewers.hides(asked)
        forwarding.begin(routed, stream=True, resumption=resumption)


def _after(query: str) -> int:
    """Return how many events a client has. Raises `RequestError`."""
    given = parse_qs(query, keep_blank_values=True).get("after", [""])[-1]
    after = whole_number(given, 0, MAX_TOKENS)
    if after is None:
        raise RequestError(
            f"after is {shown(given)}: say how many events with data the client has, [DONE] not "
            f"counted: {STREAMS_PATH}ID?after=37",
            param="after",
        )
    return after


def _unknown(name: str) -> RequestError:
    text = f"no stream {shown(name)} of this client is known: ask anew, from the start"
    return RequestError(text, status=404, code="stream_not_found")


def _conflict(text: str) -> RequestError:
    return RequestError(f"{text}; ask anew, from the start", status=409, code="stream_not_kept")


def _asked_again(asked: Request, stream: NamedStream) -> Request:
    """Return the stream's request, as its client would send it now."""
    headers = [one for one in asked.headers if one[0] not in _OF_THE_BODY]
    path, body = stream.head.path, stream.head.body
    again = Request("POST", path.encode(), (*headers, _JSON), body, path)
    again.client, again.secure = asked.client, asked.secure
    again.http_1_0, again.keep_alive, again.vetted = asked.http_1_0, asked.keep_alive, True
    return again
