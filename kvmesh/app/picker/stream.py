"""One stream of a gateway: the state machine of external processing around one request.

Every message that wants an answer gets one, in the order of the messages of its direction. A body
that is streamed both ways is held until the request is decided, then goes back; a response goes
back piece by piece at once. What comes twice, as some versions of Envoy send the end of a stream,
is not answered twice.
"""

from collections.abc import Callable
from enum import Enum
from time import perf_counter
from typing import Final

from kvmesh.app.picker.arriving import Arriving
from kvmesh.app.picker.door import PickDoor
from kvmesh.app.picker.echo import Echo
from kvmesh.app.picker.exchange import Follower, PickExchange, Way
from kvmesh.app.picker.leaving import Leaving, Left
from kvmesh.app.picker.question import RequestHead, read_head
from kvmesh.app.serve.placed_turns import WHOLE_HELD_S
from kvmesh.errors import CodecError
from kvmesh.transport.grpc.extproc_messages import (
    BUFFERED,
    BUFFERED_PARTIAL,
    FULL_DUPLEX,
    NO_BODY,
    GatewayMessage,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    decode,
)
from kvmesh.transport.grpc.extproc_writing import (
    body_answers,
    body_passed,
    headers_answer,
    immediate,
    pick_answer,
    pick_body_answer,
    trailers_answer,
)
from kvmesh.transport.grpc.session_events import INTERNAL, INVALID_ARGUMENT
from kvmesh.transport.grpc.stream import GrpcStream, ignore
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

_NO_HEADERS: Final = "a request without headers: set request_header_mode to SEND"

_TOLD: Final = frozenset({BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX})
"""Modes in which the body comes before the request is decided."""
_BUFFERED: Final = frozenset({BUFFERED, BUFFERED_PARTIAL})


class Phase(Enum):
    """What is awaited: of the gateway, or of whoever decides."""

    HEAD = 0
    BODY = 1
    DECISION = 2
    RESPONSE = 3
    RESPONSE_BODY = 4
    OVER = 5


_HEAD: Final = Phase.HEAD
_BODY: Final = Phase.BODY
_DECISION: Final = Phase.DECISION
_RESPONSE: Final = Phase.RESPONSE
_RESPONSE_BODY: Final = Phase.RESPONSE_BODY
_OVER: Final = Phase.OVER
_ON_ITS_WAY: Final = frozenset({_RESPONSE, _RESPONSE_BODY})


def answer_streams(door: PickDoor) -> Callable[[GrpcStream], None]:
    """Return what serves each stream of a gateway."""

    def answer(stream: GrpcStream) -> None:
        PickStream(stream, door)

    return answer


class PickStream:
    """One stream, from its first message to its end."""

    __slots__ = (
        "_arriving", "_asked_s", "_body", "_door", "_echo", "_ended", "_exchange", "_first",
        "_held", "_leaving", "_phase", "_request_mode", "_response_mode", "_stream", "_trailers",
    )  # fmt: skip

    def __init__(self, stream: GrpcStream, door: PickDoor) -> None:
        self._stream = stream
        self._door = door
        self._phase = _HEAD
        self._request_mode = self._response_mode = FULL_DUPLEX
        self._first: RequestHead | None = None
        self._exchange: PickExchange | None = None
        self._arriving = Arriving(door.limits, door.budget)
        self._body = b""
        self._ended = self._trailers = self._held = False
        self._leaving = Leaving()
        self._echo = Echo(stream)
        self._asked_s = 0.0
        door.counts.streams += 1
        door.counts.open_streams += 1
        stream.on_message = self._on_message
        stream.on_half_close = self._on_half_close
        stream.on_reset = self._on_reset
        stream.on_resume = self._on_resume

    # the stream's side

    def _on_message(self, data: bytes) -> None:
        self._door.counts.messages += 1
        try:
            self._take(decode(data))
        except CodecError as error:
            self._door.counts.malformed += 1
            self._break(INVALID_ARGUMENT, str(error))
        except Exception as error:  # noqa: BLE001  the request's edge: reported, told, released
            self._crash(error)

    def _on_half_close(self) -> None:
        """Note that the gateway sends nothing more."""
        if self._is_quiet():
            self._leaving.half_close(self._close_half)
        else:
            self._close_half(Left.GONE)

    def _close_half(self, left: Left) -> None:
        if self._phase is not _OVER:
            self._stream.finish()
            self._leave(left)

    def _on_reset(self, code: int) -> None:
        """Learn that the gateway, or the connection to it, is gone."""
        if self._phase is not _OVER:
            self._leave(self._leaving.reset(code) if self._is_quiet() else Left.GONE)

    def _on_resume(self) -> None:
        if self._held:
            self._held = False
            self._stream.resume_reading()
        try:
            self._echo.go_on()
        except Exception as error:  # noqa: BLE001  the request's edge
            self._crash(error)

    # the request's side

    def refuse(self, status: int, headers: Headers, body: bytes) -> None:
        """Have the gateway answer its client, and end the stream."""
        if self._phase is not _OVER:
            self._door.counts.refused += 1
            self._stream.finish(immediate(status, headers, body))
            self._close()

    def go(self, way: Way) -> None:
        """Have the gateway send the request on."""
        first, mode, stream = self._first, self._request_mode, self._stream
        if self._phase is _OVER or first is None:
            return
        counts = self._door.counts
        counts.picks += 1
        counts.seconds.observe(perf_counter() - self._asked_s)
        self._phase = _RESPONSE
        self._leaving.note_answer()
        removed = (*first.removed, *way.removed)
        if first.removed:
            # What is set here takes the place of the client's.
            named = {name for name, _ in way.headers}
            removed = tuple(name for name in removed if name not in named)
        body, self._body = self._body, b""
        if mode in _BUFFERED and not first.bodiless:
            stream.send(pick_body_answer(way.headers, removed, way.endpoint, way.body))
            return
        answer = pick_answer(way.headers, removed, way.endpoint)
        if first.bodiless:
            stream.send(answer)
            return
        self._echo.begin(answer, body if way.body is None else way.body, trailers=self._trailers)

    def drop(self) -> None:
        """End the stream if it is open, without an answer."""
        self._break(INTERNAL, "the request ended without a decision")

    # messages

    def _take(self, message: GatewayMessage) -> None:
        if isinstance(message, ResponseBody):
            self._response_body(message)
        elif isinstance(message, RequestHeaders):
            self._request_headers(message)
        elif isinstance(message, RequestBody):
            self._request_body(message)
        elif isinstance(message, ResponseHeaders):
            self._response_headers(message)
        elif isinstance(message, RequestTrailers):
            self._request_trailers()
        else:
            self._response_trailers()

    def _request_headers(self, message: RequestHeaders) -> None:
        if self._phase is not _HEAD:
            raise CodecError("the headers of a second request on one stream: open another")
        door = self._door
        modes = message.modes or door.modes
        door.counts.begin(modes)
        self._request_mode, self._response_mode = modes.request_body, modes.response_body
        self._leaving.quiet = message.modes is None or modes.response_body == NO_BODY
        first = self._first = read_head(message, self._stream.peer, door.limits)
        self._phase = _BODY
        problem, whole = first.problem, message.end_of_stream
        if problem is None and door.screen is not None and not whole:
            problem = door.screen(first.request)
        if problem is not None:
            self._fail(problem)
        elif whole or modes.request_body not in _TOLD:
            first.bodiless, self._ended = True, whole
            self._decide(unread=not whole)
        elif modes.request_body != FULL_DUPLEX:
            self._stream.send(headers_answer("request"))

    def _request_body(self, message: RequestBody) -> None:
        if self._phase is not _BODY:
            self._passed_body(message)
            return
        problem = self._arriving.add(message.data) if message.data else None
        if problem is not None:
            self._fail(problem)
        elif message.end_of_stream or self._request_mode in _BUFFERED:
            self._ended = message.end_of_stream
            partial = self._request_mode == BUFFERED_PARTIAL and not message.end_of_stream
            self._decide(unread=partial)

    def _passed_body(self, message: RequestBody) -> None:
        """Take a piece of a body of a request that was decided without it, or one too many."""
        if self._phase is _HEAD:
            raise CodecError(_NO_HEADERS)
        if self._request_mode in _TOLD or self._ended:
            self._door.counts.duplicates += 1
            return
        self._ended = message.end_of_stream
        self._stream.send(body_passed("request"))

    def _request_trailers(self) -> None:
        if self._phase is _HEAD:
            raise CodecError(_NO_HEADERS)
        if self._ended or self._trailers:
            self._door.counts.duplicates += 1
            return
        self._trailers = True
        if self._phase is _BODY:
            self._decide(unread=False)
        else:
            self._stream.send(trailers_answer("request"))

    def _response_headers(self, message: ResponseHeaders) -> None:
        phase, exchange = self._phase, self._exchange
        if phase is _RESPONSE_BODY:
            self._door.counts.duplicates += 1
            return
        if phase is not _RESPONSE:
            # The gateway has answered by itself: nobody waits for a decision any more.
            self._arriving.drop()
            if exchange is not None:
                exchange.abandon()
        self._leaving.note_answer()
        self._phase = _RESPONSE_BODY
        self._door.counts.responses += 1
        if self._leaving.quiet:
            self._door.note_head(self._stream.peer)
        own = () if exchange is None else exchange.report_head(message)
        answer = headers_answer("response", own)
        if message.end_of_stream:
            self._end(answer)
        else:
            self._stream.send(answer)

    def _response_body(self, message: ResponseBody) -> None:
        if self._phase is not _RESPONSE_BODY:
            self._door.counts.duplicates += 1
            return
        self._leaving.quiet = False
        data, end = message.data, message.end_of_stream
        back = self._response_mode == FULL_DUPLEX
        answers = body_answers("response", data, end=end) if back else (body_passed("response"),)
        if end:
            follower = self._follower()
            if follower is not None and data:
                follower.scope.enter(follower.on_body, data)
            self._end(*answers)
            return
        if not self._stream.send(*answers) and not self._held:
            self._held = True
            self._stream.pause_reading()
        follower = self._follower()
        if follower is not None:
            follower.scope.enter(follower.on_body, data)

    def _response_trailers(self) -> None:
        if self._phase is _RESPONSE_BODY:
            self._end(trailers_answer("response"))
        else:
            self._door.counts.duplicates += 1

    # the request and its way back

    def _decide(self, *, unread: bool) -> None:
        first, door, arriving = self._first, self._door, self._arriving
        assert first is not None
        self._phase = _DECISION
        self._asked_s = perf_counter()
        request = first.request
        arriving.give(request)
        self._body = request.body
        exchange = self._opened(request)
        exchange.unread = unread
        exchange.quiet = self._response_mode == NO_BODY
        exchange.silent_s = WHOLE_HELD_S if self._request_mode == FULL_DUPLEX else 0.0
        exchange.headless = not door.reports_heads(self._stream.peer)
        exchange.scope.enter(door.decide, exchange, first.subset)

    def _fail(self, problem: Problem) -> None:
        """Refuse a request that did not come whole."""
        assert self._first is not None
        self._arriving.drop()
        self._opened(self._first.request).fail(problem)

    def _opened(self, request: Request) -> PickExchange:
        request_id = self._door.ids.accept(request.header(b"x-request-id"))
        self._exchange = PickExchange(request, self, request_id, self._door.report)
        return self._exchange

    def _follower(self) -> Follower | None:
        return None if self._exchange is None else self._exchange.follower

    # ends

    def _end(self, *answers: bytes) -> None:
        """Answer the last of the response, and end the stream in the same write."""
        follower = self._follower()
        self._stream.finish(*answers)
        self._close()
        self._door.counts.followed += 1
        if follower is not None:
            follower.scope.enter(follower.on_end)

    def _leave(self, left: Left) -> None:
        """End: the gateway left, or sends nothing more."""
        exchange, follower, counts = self._exchange, self._follower(), self._door.counts
        self._arriving.drop()
        self._close()
        if follower is None:
            counts.gone += 1
            if exchange is not None:
                exchange.abandon()
        elif left is Left.RUNNING:
            counts.silent += 1
            follower.scope.enter(follower.on_silence)
        elif left is Left.OVER:
            counts.followed += 1
            follower.scope.enter(follower.on_over)
        else:
            counts.gone += 1
            follower.scope.enter(follower.on_gone)

    def _is_quiet(self) -> bool:
        """Return whether a request is on its way whose response has no body here."""
        return self._leaving.quiet and self._phase in _ON_ITS_WAY

    def _break(self, status: int, text: str) -> None:
        """End the stream with an error of gRPC; the request with it."""
        if self._phase is not _OVER:
            self._stream.finish(status=status, text=text)
            self._leave(Left.GONE)

    def _crash(self, error: Exception) -> None:
        """End for an error of ours: reported, told, released."""
        exchange = self._exchange
        if exchange is None:
            self._door.report(error, b"")
        else:
            exchange.scope.crash(error)
        self._break(INTERNAL, "internal error")

    def _close(self) -> None:
        """Let go of the stream: nothing comes, and nothing may be sent."""
        self._phase = _OVER
        self._echo.drop()
        self._exchange = self._first = None
        self._body = b""
        self._door.counts.open_streams -= 1
        stream = self._stream
        stream.on_message = stream.on_reset = ignore
        stream.on_half_close = stream.on_resume = ignore
