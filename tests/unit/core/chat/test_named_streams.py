"""The table of streams that clients named: bounds, tenants, expiry."""

import msgspec
import pytest

from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat import named_streams
from kvmesh.core.chat.kept import Kept
from kvmesh.core.chat.named_streams import (
    KEPT_S,
    NamedStreams,
    StreamHead,
    StreamNews,
    decode_news,
    encode_news,
)

HEAD = StreamHead("/v1/chat/completions", b"{}", b'{"id":"x"}', b"\1\0\0\0")
MARK = b"\4\0\0\0\0\0\0\0"


def begun(name: str = "a", tenant: str = "", turn: int = 1, body: bytes = b"{}") -> StreamNews:
    head = msgspec.structs.replace(HEAD, body=body)
    return StreamNews(name, tenant, turn, ids=b"\2\0\0\0", marks=MARK, head=head)


def more(turn: int = 1, at: int = 1, **fields: object) -> StreamNews:
    news = StreamNews("a", "", turn, "on", 4 * at, b"\3\0\0\0", 8 * at, MARK)
    return msgspec.structs.replace(news, **fields)


def table(*news: StreamNews) -> NamedStreams:
    made = NamedStreams(1 << 20)
    for one in news:
        made.take(one, 0.0)
    return made


def test_what_is_told_is_put_together() -> None:
    streams = table(begun(), more(), more(at=2, state="over", lost="no ids"))

    found = streams.find(("", "a"), 1.0)

    assert found is not None
    ids = b"\2\0\0\0\3\0\0\0\3\0\0\0"
    assert found.kept() == Kept(b"\1\0\0\0", ids, marks=MARK * 3, lost="no ids")
    assert (found.events(), found.over, found.head.opening) == (3, True, b'{"id":"x"}')
    assert (streams.missed, streams.used) == (0, found.size)


def test_another_tenant_has_streams_of_its_own() -> None:
    streams = table(begun(), begun(tenant="ann"))

    assert len(streams) == 2
    assert streams.find(("ben", "a"), 0.0) is None
    assert streams.find(("ann", "a"), 0.0) is not streams.find(("", "a"), 0.0)


@pytest.mark.parametrize(
    "news",
    [
        *(more(at=3), more(turn=0), more(turn=2), more(marks_at=800)),
        *(StreamNews("b", "", 1), begun(turn=0)),
    ],
    ids=["gap", "old", "headless", "gap of marks", "unknown", "old head"],
)
def test_news_that_do_not_fit_change_nothing(news: StreamNews) -> None:
    streams = table(begun(), more(), news)

    found = streams.find(("", "a"), 0.0)

    assert found is not None
    assert (found.events(), len(found.ids), found.turn) == (2, 8, 1)
    assert (streams.missed, len(streams)) == (1, 1)


def test_a_later_turn_begins_anew_and_lost_ids_are_let_go() -> None:
    streams = table(begun(), more(), begun(turn=5), more(turn=5, at=0, ids=b"", lost="too long"))

    found = streams.find(("", "a"), 0.0)

    assert found is not None
    assert (found.events(), bytes(found.ids), found.turn, found.lost) == (1, b"", 5, "too long")


def test_a_stream_is_forgotten_a_minute_behind_its_last_news() -> None:
    streams = table(begun(), begun("b"))
    streams.take(more(), 10.0)

    assert streams.find(("", "b"), KEPT_S - 0.1) is not None
    assert streams.find(("", "b"), KEPT_S) is None
    streams.expire(KEPT_S)
    assert len(streams) == 1
    assert streams.find(("", "a"), 10.0 + KEPT_S) is None
    streams.expire(10.0 + KEPT_S)
    assert (len(streams), streams.used) == (0, 0)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = NamedStreams(10_000)

    for number in range(9):
        streams.take(begun(str(number), body=b"x" * 2000), 0.0)

    assert [number for number in range(9) if streams.find(("", str(number)), 0.0)] == [6, 7, 8]
    assert streams.used <= 10_000
    streams.take(begun("long", body=b"x" * 20_000), 0.0)
    assert (len(streams), streams.used) == (0, 0)
    monkeypatch.setattr(named_streams, "MOST_STREAMS", 2)
    for number in range(5):
        streams.take(begun(str(number)), 0.0)
    assert len(streams) == 2


def test_news_travel_in_messages_within_a_bound() -> None:
    news = [begun(str(number), body=b"x" * 300) for number in range(9)]

    messages = encode_news([*news, begun("long", body=b"x" * 2000)], 1000)

    assert ([one for each in messages for one in decode_news(each)], len(messages)) == (news, 5)
    assert all(len(one) < 1010 for one in messages)
    assert encode_news([], 1000) == []


@pytest.mark.parametrize(
    "news",
    [
        *(begun("../x"), begun(""), begun("a" * 129), begun(tenant="a" * 513), begun(turn=-1)),
        *(more(ids=b"123"), more(marks=b"1234"), more(ids_at=-4), more(state="off")),
    ],
)
def test_news_beyond_their_bounds_are_refused(news: StreamNews) -> None:
    with pytest.raises((*UNREADABLE, ValueError)):
        decode_news(encode_news([news], 1 << 20)[0])
    with pytest.raises(UNREADABLE):
        decode_news(b"\x91\xc1")
