"""Answers of status 200 that are none, or not all: what the pretend vLLM sends for each kind of
`BadAnswer`, and before it dies or hangs.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Final

import msgspec

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh_lab.mocker.generation import EVENT_STREAM
from kvmesh_lab.mocker.model.faults import BadAnswer
from kvmesh_lab.mocker.reply import PassingReply
from kvmesh_lab.mocker.vllm_responses import DONE

OTHER_MODEL: Final = "another-model"
PAGE: Final = b"<html><body>Please log in</body></html>"
ERROR: Final = (
    b'{"error":{"message":"CUDA error: an illegal memory access","type":"internal_error",'
    b'"param":null,"code":500}}'
)
NOISE_BYTES: Final = 300
_BEHIND_END: Final = 20
"""Bytes that a whole answer without its end lacks."""

_BLANK: Final = b"\n\n"
_END: Final = re.compile(rb"\[DONE\]|_stop|response\.completed|\"choices\":\[\]")
_MODEL: Final = re.compile(rb'"model":"[^"]*"')
_REASON: Final = re.compile(rb'"(finish_reason|stop_reason)":"[a-z_]*"')
_WRITTEN: Final = re.compile(rb'"(content|text|reasoning)":"(?:[^"\\]|\\.)*"')
_COUNTED: Final = re.compile(rb'"(completion_tokens|output_tokens)":[0-9]+')


class _Streamed(msgspec.Struct):
    stream: bool | None = None


def answer_at_once(exchange: Exchange, answer: BadAnswer, noise: Callable[[int], bytes]) -> bool:
    """Answer in a way for which no engine is needed; False for the others. `noise` makes bytes."""
    streams = _streams(exchange.request.body)
    match answer:
        case "empty-stream" if streams:
            _stream(exchange, b"")
        case "empty-body" | "empty-stream":
            exchange.respond(200, b"")
        case "random-bytes" if streams:
            _stream(exchange, noise(NOISE_BYTES))
        case "random-bytes":
            exchange.respond(200, noise(NOISE_BYTES))
        case "html":
            exchange.respond(200, PAGE, content_type=b"text/html")
        case "error-event" if streams:
            _stream(exchange, b"data: %b\n\n%b" % (ERROR, DONE))
        case "error-200" | "error-event":
            exchange.respond(200, ERROR)
        case _:
            return False
    return True


def _stream(exchange: Exchange, data: bytes) -> None:
    exchange.start(200, EVENT_STREAM)
    exchange.write(data)
    exchange.end()


def _streams(body: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(body, type=_Streamed).stream)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


class BadReply(PassingReply):
    """Spoils the answer that the engine gives: its model, its end, or all of its text."""

    def __init__(self, exchange: Exchange, answer: BadAnswer) -> None:
        super().__init__(exchange)
        self._answer = answer
        self._wrote = False

    def respond(self, status: int, body: bytes) -> None:
        """Write a whole answer."""
        self._complete()
        match self._answer:
            case "half-json":
                body = body[: len(body) // 2]
            case "no-done":
                body = body[:-_BEHIND_END]
            case _:
                body = self._spoilt(body)
        self._exchange.respond(status, body)

    def write(self, data: bytes) -> None:
        """Write a piece of a stream."""
        if self._exchange.ended:
            return
        match self._answer:
            case "half-json" if self._wrote:
                self._exchange.write(data[: len(data) // 2])
                self._exchange.end()
                # The engine is told when it has handed out the step's tokens.
                asyncio.get_running_loop().call_soon(self._lose)
                return
            case "no-done":
                data = _REASON.sub(rb'"\1":null', data).replace(DONE, b"")
            case "no-tokens":
                events = data.split(_BLANK)
                kept = [one for one in events if _REASON.search(one) or _END.search(one)]
                data = self._spoilt(b"".join(one + _BLANK for one in kept))
            case _:
                data = self._spoilt(data)
        self._wrote = True
        self._exchange.write(data)

    def end(self) -> None:
        """Complete the stream."""
        self._complete()
        if not self._exchange.ended:
            self._exchange.end()

    def _spoilt(self, data: bytes) -> bytes:
        if self._answer == "wrong-model":
            return _MODEL.sub(b'"model":"%b"' % OTHER_MODEL.encode(), data)
        if self._answer == "no-tokens":
            data = _REASON.sub(rb'"\1":"stop"', _WRITTEN.sub(rb'"\1":""', data))
            return _COUNTED.sub(rb'"\1":0', data)
        return data


class EndingReply(PassingReply):
    """Passes so many pieces of a stream on, each a token, and nothing more: `end_all` is called
    behind the last. A whole answer passes.
    """

    def __init__(self, exchange: Exchange, tokens: int, end_all: Callable[[], None]) -> None:
        super().__init__(exchange)
        self._left = tokens
        self._end_all = end_all

    def respond(self, status: int, body: bytes) -> None:
        """Write a whole answer."""
        self._complete()
        self._exchange.respond(status, body)

    def write(self, data: bytes) -> None:
        """Write a piece, if it is one of the first; the end of a shorter stream is no token."""
        if self._left == 0:
            return
        self._exchange.write(data)
        if _END.search(data):
            return
        self._left -= 1
        if self._left == 0:
            self._end_all()

    def end(self) -> None:
        """Complete a stream that was shorter; any other is left open."""
        self._complete()
        if self._left and not self._exchange.ended:
            self._exchange.end()
