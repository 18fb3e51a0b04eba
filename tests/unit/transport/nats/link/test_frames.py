import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.transport.nats.link import frames
from kvmesh.transport.nats.link.frames import FrameReader

Message = tuple[int, bytes, bytes, bytes, bytes | None]

words = st.text("abc.*$_", min_size=1, max_size=9).map(str.encode)
payloads = st.binary(max_size=40) | st.sampled_from([b"\r\n", b"MSG a 1 0\r\n\r\n", b"PING\r\n"])
blocks = st.none() | st.just(b"NATS/1.0\r\na: b\r\n\r\n")
messages = st.tuples(st.integers(1, 4), words, st.just(b"") | words, payloads, blocks)
lines = st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'no'\r\n", b"INFO {}\r\n"])


def frame(message: Message) -> bytes:
    number, subject, reply, payload, block = message
    middle = b"%s %d %s" % (subject, number, reply + b" " if reply else b"")
    if block is None:
        return b"MSG %s%d\r\n%s\r\n" % (middle, len(payload), payload)
    sizes = b"%d %d" % (len(block), len(block) + len(payload))
    return b"HMSG %s%s\r\n%s%s\r\n" % (middle, sizes, block, payload)


class World:
    """A reader whose listeners take what is of subscriptions 1 and 2."""

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.reader = FrameReader(1 << 16, self.take)

    def take(
        self, number: int, subject: bytes, reply: bytes, payload: bytes, block: bytes | None
    ) -> bool:
        if number > 2:
            return False
        self.taken.append((number, subject, reply, payload, block))
        return True

    async def kept(self) -> bytes:
        self.reader.feed_eof()
        return await self.reader.read(-1)


@given(st.lists(messages | lines, max_size=8), st.lists(st.integers(1, 30), max_size=12))
def test_messages_are_taken_whole_and_all_else_is_kept_however_bytes_come(
    parts: list[Message | bytes], cuts: list[int]
) -> None:
    async def run() -> None:
        world = World()
        wire = b"".join(part if isinstance(part, bytes) else frame(part) for part in parts)
        at = 0
        for size in itertools.chain(cuts, [len(wire)]):
            world.reader.feed_data(wire[at : at + size])
            at += size

        mine = [part for part in parts if not isinstance(part, bytes) and part[0] <= 2]
        rest = [
            part if isinstance(part, bytes) else frame(part) for part in parts if part not in mine
        ]
        assert world.taken == mine
        assert await world.kept() == b"".join(rest)

    asyncio.run(run())


async def test_a_message_is_taken_with_its_last_byte() -> None:
    world = World()
    first, second = (1, b"a", b"", b"one", None), (2, b"b", b"", b"two", None)
    wire = frame(first) + frame(second)

    world.reader.feed_data(wire[:-1])
    world.reader.feed_data(wire[-1:])

    assert world.taken == [first, second]


@pytest.mark.parametrize(
    "line",
    [
        b"MSG a 1\r\n",
        b"MSG a one 2\r\n",
        b"MSG a 1 r s 2\r\n",
        b"MSG a 1 -2\r\n",
        b"MSG a 1 0x2\r\n",
        b"HMSG a 1 3 2\r\n",
        b"HMSG a 1 2\r\n",
        b"HMSG a 1 -1 2\r\n",
    ],
)
async def test_from_a_line_that_cannot_be_read_on_all_is_kept(line: bytes) -> None:
    world = World()
    good = frame((1, b"a", b"", b"x", None))

    world.reader.feed_data(good + b"PING\r\n" + line + good)
    world.reader.feed_data(good)

    assert world.taken == [(1, b"a", b"", b"x", None)]
    assert await world.kept() == b"PING\r\n" + line + good + good


async def test_a_line_without_an_end_is_kept_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_LINE", 10)
    world = World()

    world.reader.feed_data(b"INFO {")
    world.reader.feed_data(b"xxxxxx")

    assert await world.reader.read(100) == b"INFO {xxxxxx"


async def test_a_message_that_never_became_whole_is_kept_at_the_end() -> None:
    world = World()
    wire = frame((1, b"a", b"", b"x" * 30, None))[:-1]

    world.reader.feed_data(wire)

    assert world.taken == []
    assert await world.kept() == wire


async def test_a_large_message_is_looked_at_once_it_is_whole() -> None:
    class Counted(FrameReader):
        uses_caches: list[int]

        def _split(self, whole: bytes) -> bytearray:
            self.uses_caches.append(len(whole))
            return super()._split(whole)

    taken: list[bytes] = []

    def take(_: int, _subject: bytes, _reply: bytes, payload: bytes, _block: bytes | None) -> bool:
        taken.append(payload)
        return True

    reader = Counted(1 << 16, take)
    reader.uses_caches = []
    wire = frame((1, b"a", b"", b"x" * 1000, None))
    for at in range(0, len(wire), 100):
        reader.feed_data(wire[at : at + 100])

    assert reader.uses_caches == [100, len(wire)]
    assert taken == [b"x" * 1000]
