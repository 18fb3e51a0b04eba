from typing import Any

import pytest

from kvmesh._native import Head
from kvmesh.transport.http.forward.asked import AskedUsage, Takers
from kvmesh.transport.http.forward.continued import ContinuedStream
from kvmesh.transport.http.forward.plan import WAIT, Target, Wait
from kvmesh.transport.http.forward.resume import Resumption, StreamKeep
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.upstream.messages import UpstreamFailure, UpstreamSink
from kvmesh.transport.http.upstream.response_head import ResponseHead
from tests.unit.transport.http.forward.told_events import (
    DONE,
    ERROR,
    LEFT,
    RESET,
    Agreeing,
    Asked,
    chunk,
    stream_of,
    text_chunk,
)

FIRST = chunk("a", 4, prompt=[1, 2, 3])


def head(status: int = 200, kind: bytes = b"text/event-stream") -> ResponseHead:
    return ResponseHead(status, Head([(b"content-type", kind)]))


class Plan(Agreeing):
    """A plan with one target after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[Target | Wait | None] = []
        self.statuses: list[int] = []
        self.tokens: list[int] = []

    def next_target(self) -> Target | Wait | None:
        return self.targets.pop(0)

    def on_head(self, status: int) -> tuple[()]:
        self.statuses.append(status)
        return ()

    def on_tokens(self, tokens: int) -> None:
        self.tokens.append(tokens)


class Owner:
    """A forwarding whose first upstream was cut behind one token."""

    def __init__(self) -> None:
        self.plan: Any = Plan()
        self.exchange: Any = Asked(b"")
        self.keep = StreamKeep(1 << 20)
        found = self.keep.begin(Asked().request, "chat")
        assert found is not None
        self.resumption: Resumption = found
        self.asks: AskedUsage | None = None
        self.sent: list[str] = []
        self.cancelled = 0
        self.poisonous = False
        self.completed: bytes | None = None
        self.ended: list[tuple[str, str]] = []
        self.crashes: list[Exception] = []
        self.exchange.scope = Scope(b"q", lambda error, _: self.crashes.append(error))
        self.continued: ContinuedStream

    def begin(self, *targets: Target | Wait | None) -> ContinuedStream:
        self.resumption.sent(None, b"", "http://w1", True)
        self.resumption.opened(FIRST, "http://w1")
        stream = stream_of(FIRST)
        assert self.resumption.cut(self.exchange, stream, RESET, self.plan, poison=False)
        self.plan.targets += targets
        owner: Any = self
        self.continued = ContinuedStream(owner, self.resumption)
        self.continued.begin(RESET)
        return self.continued

    def send(self, target: Target, sink: UpstreamSink) -> None:
        assert isinstance(sink, ContinuedStream)
        self.sent.append(target.origin)
        self.resumption.sent(None, b"", target.origin, target.gives_ids)

    def cancel(self) -> None:
        self.cancelled += 1

    def go_on(self, failure: UpstreamFailure) -> bool:
        stream, poison = self.continued.stream, self.poisonous
        going = self.resumption.cut(self.exchange, stream, failure, self.plan, poison=poison)
        if going is None:
            return False
        self.cancel()
        if isinstance(going, bytes):
            self.complete(going)
        else:
            self.continued.begin(failure)
        return True

    def complete(self, data: bytes) -> None:
        self.completed = data
        self.exchange.ended = True

    def end_cut(self, failure: UpstreamFailure, worker: str) -> None:
        self.ended.append((failure.name, worker))
        self.exchange.ended = True


W2, W3 = (Target(f"http://{one}", worker=one, gives_ids=True) for one in ("w2", "w3"))


def test_the_rest_passes_to_its_end() -> None:
    owner = Owner()
    continued = owner.begin(W2)
    usage = b'{"prompt_tokens":4,"completion_tokens":2}'
    last = b'data: {"choices":[],"usage":%b}\n\n' % usage

    continued.on_head(head())
    continued.on_body(text_chunk("b", 5))
    continued.on_body(text_chunk("c", 6, reason="stop"))
    continued.on_end(last + DONE)

    assert owner.sent == ["http://w2"]
    assert owner.exchange.written.count(b'"id":"chatcmpl-1"') == 2
    assert b'"completion_tokens":3' in owner.exchange.written
    assert owner.exchange.written.endswith(DONE)
    assert owner.completed == b""
    assert (owner.plan.statuses, owner.plan.tokens) == ([200], [1])
    told = continued.usage()
    assert told is not None
    assert (told.prompt_tokens, told.completion_tokens) == (3, 3)


def test_an_answer_that_comes_at_once_is_passed_or_gone_on_from() -> None:
    owner = Owner()
    continued = owner.begin(W2, W3)

    continued.on_whole(head(500, b"application/json"), b"{}")
    assert (owner.sent, owner.cancelled) == (["http://w2", "http://w3"], 2)
    continued.on_whole(head(), text_chunk("b", 5, reason="stop") + DONE)

    assert owner.completed == b""
    with pytest.raises(AssertionError):
        continued.on_last_chunks(b"")


def test_who_rejects_ids_is_asked_without_them() -> None:
    owner = Owner()
    continued = owner.begin(W2)

    continued.on_head(head(400))
    continued.on_head(head())

    assert owner.sent == ["http://w2", "http://w2"]
    assert owner.keep.ids.refuses == {"http://w2"}


def test_usage_that_its_client_did_not_ask_for_is_counted_and_does_not_pass() -> None:
    owner = Owner()
    owner.asks = AskedUsage(Takers())
    continued = owner.begin(W2)
    owner.asks.sent(b'{"stream":true}', "http://w2", ids=False)
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":1}}\n\n'

    continued.on_head(head())
    continued.on_body(text_chunk("b", 5, reason="stop") + usage + DONE)

    assert b"usage" not in owner.exchange.written
    told = continued.usage()
    assert told is not None
    assert (told.prompt_tokens, told.completion_tokens) == (3, 2)


def test_a_second_upstream_that_is_lost_is_followed_by_a_third_and_no_fourth() -> None:
    owner = Owner()
    continued = owner.begin(W2, W3)

    continued.on_head(head())
    continued.on_body(text_chunk("b", 5))
    continued.on_failure(RESET)
    continued.on_head(head())
    continued.on_body(text_chunk("c", 6))
    continued.on_failure(RESET)

    assert owner.sent == ["http://w2", "http://w3"]
    assert owner.ended == [("truncated", "w3")]
    assert [going.passed for going in owner.plan.asked] == [1, 2]


def test_an_engines_error_is_not_shown_while_another_goes_on() -> None:
    owner = Owner()
    continued = owner.begin(W2, W3)

    continued.on_head(head())
    continued.on_body(text_chunk("b", 5) + ERROR + DONE)
    assert owner.exchange.written.count(b'"content":"b"') == 1
    assert b"error" not in owner.exchange.written
    owner.poisonous = True
    continued.on_head(head())
    continued.on_body(text_chunk("c", 6) + ERROR + DONE)
    continued.on_end()

    assert owner.exchange.written.count(b'"content":"c"') == 1
    assert owner.exchange.written.count(b'"error"') == 1
    assert owner.ended == [("bad_answer:error", "w3")]


def test_an_error_that_is_the_clients_own_doing_passes() -> None:
    owner = Owner()
    continued = owner.begin(W2)

    continued.on_head(head())
    continued.on_body(b'data: {"error":{"message":"too long","code":400}}\n\n')
    continued.on_end(DONE)

    assert b"too long" in owner.exchange.written
    assert (owner.completed, owner.ended) == (b"", [])


def test_an_end_without_an_end_is_gone_on_from() -> None:
    owner = Owner()
    continued = owner.begin(W2, W3)

    continued.on_head(head())
    continued.on_end(text_chunk("b", 5))
    assert owner.sent == ["http://w2", "http://w3"]
    owner.plan.agrees = False
    continued.on_head(head())
    continued.on_end(text_chunk("c", 6))

    assert owner.ended == [("bad_answer:unfinished", "w3")]


def test_what_lacks_its_end_alone_is_completed() -> None:
    owner = Owner()
    continued = owner.begin(W2)

    continued.on_head(head())
    continued.on_body(text_chunk("b", 5, reason="stop"))
    continued.on_failure(RESET)

    assert owner.completed == DONE


def test_garbage_ends_the_stream() -> None:
    owner = Owner()
    continued = owner.begin(W2)

    continued.on_head(head())
    continued.on_body(b"data: <html>\n\n")

    assert owner.ended == [("bad_answer:malformed", "w2")]


def test_one_that_waits_proceeds_and_one_without_anybody_ends() -> None:
    owner = Owner()
    continued = owner.begin(WAIT, W2, W3)
    assert owner.sent == []

    continued.proceed()
    continued.fail_attempt(LEFT)

    assert owner.sent == ["http://w2", "http://w3"]
    other = Owner()
    other.begin(None)
    assert other.ended == [("truncated", "")]


def test_one_that_hangs_is_given_up_and_one_that_drains_is_left() -> None:
    owner = Owner()
    continued = owner.begin(W2, W3)

    continued.hand_over(LEFT)
    assert owner.sent == ["http://w2"]
    continued.on_head(head())
    continued.on_body(text_chunk("b", 5))
    continued.fail_attempt(RESET)
    assert owner.sent == ["http://w2"]
    continued.hand_over(LEFT)

    assert owner.sent == ["http://w2", "http://w3"]


def test_an_error_of_ours_is_the_owners_to_tell() -> None:
    owner, error = Owner(), ValueError("ours")

    owner.begin(W2).crash(error)

    assert owner.crashes == [error]
    assert Owner().begin(W2).usage() is None
