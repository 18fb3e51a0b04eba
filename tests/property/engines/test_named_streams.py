"""What routers know of named streams, however much of what they are told is lost."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.chat.named_streams import (
    KEPT_S,
    NamedStreams,
    StreamHead,
    StreamKey,
    StreamNews,
    decode_news,
    encode_news,
)
from kvmesh.core.chat.stream_marks import count_events

MOST = 9_000
names = st.sampled_from(["a", "b"])
tenants = st.sampled_from(["", "ann"])
steps = st.tuples(
    st.tuples(tenants, names),
    st.sampled_from(["begin", "grow", "grow", "grow", "over", "late"]),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 20),
)


class Served(msgspec.Struct):
    """A stream of one turn at its router: all that it ever told."""

    turn: int
    head: StreamHead
    ids: bytes = b""
    marks: bytes = b""
    told: list[StreamNews] = []

    def grow(self, key: StreamKey, events: int, state: str) -> StreamNews:
        new = events + (not self.told)
        ids, marks = bytes(4 * new), b"\4\0\0\0\0\0\0\0" * new
        ids = b"".join((len(self.ids) // 4 + one).to_bytes(4, "little") for one in range(new))
        head = None if self.told else self.head
        at = len(self.ids), ids, len(self.marks), marks
        news = StreamNews(key[1], key[0], self.turn, state, *at, head=head)  # type: ignore[arg-type]
        self.ids += ids
        self.marks += marks
        self.told.append(news)
        return news


@given(st.lists(steps, max_size=60))
def test_a_table_has_a_beginning_of_what_was_told_within_its_bounds(
    plan: list[tuple[StreamKey, str, int, bool, int]],
) -> None:
    table, turns = NamedStreams(MOST), 0
    served: dict[StreamKey, Served] = {}
    every: dict[tuple[StreamKey, int], Served] = {}
    now, heard_s = 0.0, dict[StreamKey, float]()

    for key, what, events, lost, later_s in plan:
        now += later_s
        begins = what == "begin" or key not in served
        if begins:
            turns += 1
            served[key] = every[key, turns] = Served(turns, StreamHead(body=bytes(100 * events)))
        one = served[key]
        if what == "late" and not begins:
            news = one.told[min(events, len(one.told) - 1)] if one.told else None
        else:
            news = one.grow(key, events, "over" if what == "over" else "on")
        if news is None or lost:
            continue
        for each in decode_news(encode_news([news], 1 << 20)[0]):
            table.take(each, now)
            heard_s[key] = now

        found = {key: table.find(key, now) for key in served}
        assert table.used <= MOST
        known = [one for one in found.values() if one is not None]
        assert sum(one.size for one in known) <= table.used
        for whose, stream in found.items():
            if stream is None:
                continue
            told = every[whose, stream.turn]
            assert now - heard_s[whose] < KEPT_S
            assert stream.head == told.head
            assert told.ids.startswith(bytes(stream.ids))
            assert told.marks.startswith(bytes(stream.marks))
            assert len(stream.ids) // 4 == count_events(stream.marks) == stream.events()
