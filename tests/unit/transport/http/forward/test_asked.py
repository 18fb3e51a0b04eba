import json
from typing import Any

import pytest

from kvmesh.app.prompts.reading_parts import by_path
from kvmesh.core.engines.event_stream import new_event_stream
from kvmesh.transport.http.forward.asked import AskedUsage, Takers, is_unread
from kvmesh.transport.http.forward.message import message_to
from kvmesh.transport.http.forward.plan import ForwardOptions, Target
from kvmesh.transport.http.forward.resume import StreamKeep
from tests.unit.transport.http.forward.told_events import BODY, Asked

STREAM = b'{"stream":true,"messages":[]}'
W1, W2 = "http://w1", "http://w2"


def test_usage_is_asked_for_where_its_client_does_not() -> None:
    one = AskedUsage(Takers())
    stream, own = new_event_stream(), new_event_stream()

    sent = one.sent(STREAM, W1, ids=False)
    one.watch(stream, W1)
    wanted = b'{"stream":true,"stream_options":{"include_usage":true}}'
    assert one.sent(wanted, W1, ids=False) == wanted
    one.watch(own, W1)

    assert json.loads(sent) == {**json.loads(STREAM), "stream_options": {"include_usage": True}}
    assert (stream.hides_usage, own.hides_usage) == (True, False)


def test_ids_are_asked_for_in_one_go_with_usage_or_without() -> None:
    refused = Takers()
    refused.doubt(W1)

    both = AskedUsage(Takers()).sent(STREAM, W1, ids=True)
    alone = AskedUsage(refused).sent(STREAM, W1, ids=True)
    neither = AskedUsage(refused).sent(STREAM, W1, ids=False)

    assert json.loads(both)["return_token_ids"]
    assert json.loads(both)["stream_options"] == {"include_usage": True}
    assert json.loads(alone) == {**json.loads(STREAM), "return_token_ids": True}
    assert neither == STREAM


def test_who_rejects_both_is_asked_for_neither() -> None:
    keep, takers = StreamKeep(1 << 20), Takers()
    ids = keep.begin(Asked().request, "chat")
    usage = AskedUsage(takers)
    assert ids is not None

    def send() -> bool:
        *_, more = ids.sent(None, BODY, W1, True)
        body = usage.sent(BODY, W1, ids=more)
        return is_unread(422, W1, ids, usage) if body != BODY else False

    assert [send(), send(), send()] == [True, True, False]
    assert (keep.ids.refuses, takers.refuses) == ({W1}, {W1})
    assert not is_unread(422, W1, ids, usage)
    assert (keep.ids.refuses, takers.refuses) == (set(), set()), "it rejects the request itself"


def test_who_has_given_usage_is_not_doubted_and_what_is_known_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvmesh.transport.http.forward.asked._MOST_KNOWN", 1)
    takers = Takers()
    one = AskedUsage(takers)
    one.sent(STREAM, W1, ids=False)
    for _ in range(2):
        one.watch(new_event_stream(), W1)

    assert not is_unread(400, W1, one, None)
    takers.gave(W2)
    assert takers.gives == {W1}
    assert takers.doubt(W2)
    assert takers.doubt("http://w3")
    assert takers.refuses == {"http://w3"}
    one.absolve("http://w3")
    assert takers.refuses == {"http://w3"}, "another request doubted it"


def test_a_message_asks_for_what_is_wanted_of_it() -> None:
    exchange: Any = Asked()
    exchange.scope.trace = None
    keep = StreamKeep(1 << 20).begin(exchange.request, "chat")
    target = Target(W1, gives_ids=True)

    ids = message_to(target, exchange, (), keep, None, unnamed=True)
    usage = message_to(target, exchange, (), None, AskedUsage(Takers()), unnamed=True)
    neither = message_to(target, exchange, (), None, None, unnamed=True)

    assert json.loads(ids.body) == {**json.loads(BODY), "return_token_ids": True}
    assert json.loads(usage.body)["stream_options"] == {"include_usage": True}
    assert neither.body == BODY


def test_only_apis_that_do_not_report_unasked_are_asked() -> None:
    takers = Takers()
    options = by_path(ForwardOptions(usage=takers))

    asked = [path for path, one in options.items() if one.usage is takers]

    assert sorted(asked) == ["/v1/chat/completions", "/v1/completions"]
    assert options["/v1/messages"].usage is None
