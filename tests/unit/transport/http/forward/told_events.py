"""What one engine tells of a stream, as events, for the tests of what goes on with it."""

import json

from kvmesh._native import EventStream
from kvmesh.core.engines.event_stream import new_event_stream
from kvmesh.transport.http.forward.resume import Going
from kvmesh.transport.http.server.exchange import JSON
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.upstream.messages import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

BODY = b'{"model":"m","messages":[],"stream":true,"temperature":0,"max_tokens":9}'
RESET = UpstreamFailure("mid_response", "truncated", "w1: closed", "http://w1")
REFUSED = UpstreamFailure("before_send", "refused", "w1: refused", "http://w1")
LEFT = UpstreamFailure("mid_response", "left", "w1 drains", "http://w1")
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"broken","code":500}}\n\n'


def chunk(text: str, *ids: int, prompt: list[int] | None = None, reason: str = "") -> bytes:
    """Return one event of a chat."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason or None}
    event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    whole = {**event, "prompt_token_ids": prompt, "choices": [{**choice, "token_ids": list(ids)}]}
    return b"data: %b\n\n" % json.dumps(whole).encode()


def text_chunk(text: str, *ids: int, reason: str = "") -> bytes:
    """Return one event of a completion."""
    choice = {"index": 0, "text": text, "finish_reason": reason or None, "token_ids": list(ids)}
    event = {"id": "cmpl-2", "object": "text_completion", "created": 2, "model": "m"}
    return b"data: %b\n\n" % json.dumps({**event, "choices": [choice]}).encode()


class Asked:
    """One request."""

    silent_s = 0.0

    def __init__(self, body: bytes = BODY) -> None:
        self.request = Request("POST", b"/v1/chat/completions", (), body)
        self.request_id = b"q"
        self.scope = Scope(b"q", lambda *_: None)
        self.written = b""
        self.ended = False

    def respond(
        self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        raise AssertionError(status, body, content_type, headers)

    def fail(self, problem: Problem, headers: Headers = ()) -> None:
        raise AssertionError(problem, headers)

    def write(self, data: bytes) -> None:
        self.written += data


class Agreeing:
    """A plan that lets streams go on while it `agrees`."""

    cached_tokens: int | None = 2

    def __init__(self) -> None:
        self.agrees = True
        self.lost: list[UpstreamFailure] = []
        self.asked: list[Going] = []

    def lose(self, failure: UpstreamFailure) -> None:
        self.lost.append(failure)

    def go_on(self, failure: UpstreamFailure, going: Going) -> bool:
        self.lost.append(failure)
        self.asked.append(going)
        return self.agrees


def stream_of(*events: bytes) -> EventStream:
    """Return a stream that is kept, of which so much has passed."""
    stream = new_event_stream()
    stream.keep(1 << 20, True)
    for one in events:
        stream.feed(one)
    return stream
