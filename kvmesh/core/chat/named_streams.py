"""Streams whose clients named them, so that one that lost its connection may ask for the rest.

Kept are the request and how far its answer came, not the answer: 4 bytes a token and 8 an event.
Each router of a bucket keeps those of all, as they are told (`StreamNews`).
"""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

from kvmesh.bounds import Epoch, MaybeName
from kvmesh.core.chat.kept import Kept, Loss
from kvmesh.core.chat.stream_marks import MARK_BYTES, count_events

KEPT_S: Final = 60.0
"""A stream may be asked for so long after the last news of it."""

MOST_STREAMS: Final = 16_384
NAME: Final = "[A-Za-z0-9][A-Za-z0-9._:~-]{0,127}"
"""What a client may call a stream."""

_ENTRY_BYTES: Final = 1024
_ID_BYTES: Final = 4

State = Literal["on", "over", "taken"]
Origin = Literal["/v1/chat/completions", "/v1/completions", ""]
"""Where streams are that may go on; "" of others."""

StreamKey = tuple[str, str]
"""A tenant, and what it calls a stream."""


class StreamHead(msgspec.Struct, frozen=True, array_like=True):
    """What does not change of a stream: path and body of its request, the JSON of its first event,
    its prompt as packed ids. `why` it cannot go on, "" where it can: then nothing else is known.
    """

    path: Origin = ""
    body: bytes = b""
    opening: bytes = b""
    prompt_ids: bytes = b""
    why: str = ""


class StreamNews(msgspec.Struct, frozen=True, array_like=True):
    """What has passed of a stream since the news before, which told `ids_at` and `marks_at` bytes.

    `turn` is larger each time that it is begun or asked for anew; the first news of a turn has the
    `head`. "taken": another router goes on with it, so that who serves it in that turn ends it.
    """

    name: Annotated[str, msgspec.Meta(pattern=f"^{NAME}$")]
    tenant: MaybeName
    turn: Epoch
    state: State = "on"
    ids_at: Epoch = 0
    ids: bytes = b""
    marks_at: Epoch = 0
    marks: bytes = b""
    lost: Loss = ""
    head: StreamHead | None = None

    @property
    def key(self) -> StreamKey:
        """Return whose stream it is, and its name."""
        return self.tenant, self.name


class NamedStream:
    """One stream, as far as it was told."""

    __slots__ = ("head", "ids", "lost", "marks", "news_s", "over", "turn")

    def __init__(self, turn: int, head: StreamHead) -> None:
        self.turn = turn
        self.head = head
        self.ids = bytearray()
        self.marks = bytearray()
        self.lost: Loss = ""
        self.over = False
        self.news_s = 0.0

    @property
    def size(self) -> int:
        """Return the bytes that it takes."""
        head = self.head
        fixed = len(head.body) + len(head.opening) + len(head.prompt_ids)
        return _ENTRY_BYTES + fixed + len(self.ids) + len(self.marks)

    def kept(self) -> Kept:
        """Return what has passed of it."""
        return Kept(self.head.prompt_ids, bytes(self.ids), marks=bytes(self.marks), lost=self.lost)

    def events(self) -> int:
        """Return how many events have passed. O(events)."""
        return count_events(self.marks)


class NamedStreams:
    """All of a bucket; at most `most` bytes and `MOST_STREAMS`, beyond which those without news
    for longest are forgotten. `missed` news came too late, or told of what is not known here.
    """

    def __init__(self, most: int) -> None:
        self.used = 0
        self.missed = 0
        self._most = most
        self._streams: dict[StreamKey, NamedStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def find(self, key: StreamKey, now: float) -> NamedStream | None:
        """Return the stream of that name of that tenant, None where none is known."""
        stream = self._streams.get(key)
        return None if stream is None or stream.news_s + KEPT_S <= now else stream

    def take(self, news: StreamNews, now: float) -> None:
        """Learn what has passed of a stream. What is older than what is known changes nothing."""
        self.expire(now)
        stream = self._streams.pop(news.key, None)
        if stream is not None:
            self.used -= stream.size
        if news.head is not None and (stream is None or news.turn > stream.turn):
            stream = NamedStream(news.turn, news.head)
        if stream is None:
            self.missed += 1
            return
        if news.turn == stream.turn and news.ids_at <= len(stream.ids):
            self._append(stream, news)
            stream.news_s = now
        else:
            self.missed += 1
        self._streams[news.key] = stream
        self.used += stream.size
        self._fit()

    def expire(self, now: float) -> None:
        """Forget what may not be asked for any more."""
        while self._streams:
            key, stream = next(iter(self._streams.items()))
            if stream.news_s + KEPT_S > now:
                break
            self._forget(key)

    def _append(self, stream: NamedStream, news: StreamNews) -> None:
        """Add what has passed; of marks with a gap those before it stay."""
        if news.marks_at > len(stream.marks):
            self.missed += 1
            return
        del stream.ids[news.ids_at :], stream.marks[news.marks_at :]
        stream.ids += news.ids
        stream.marks += news.marks
        stream.lost = news.lost
        stream.over = news.state == "over"

    def _fit(self) -> None:
        while self._streams and (self.used > self._most or len(self) > MOST_STREAMS):
            self._forget(next(iter(self._streams)))

    def _forget(self, key: StreamKey) -> None:
        self.used -= self._streams.pop(key).size


_news = msgspec.msgpack.Decoder(list[StreamNews])
_encoder = msgspec.msgpack.Encoder()


def encode_news(news: Iterable[StreamNews], most_bytes: int) -> list[bytes]:
    """Return messages of at most `most_bytes` that tell these news; what is longer is left out."""
    messages, waiting, size = list[bytes](), list[bytes](), 0
    for one in (_encoder.encode(each) for each in news):
        if len(one) > most_bytes:
            continue
        if size + len(one) > most_bytes:
            messages.append(_joined(waiting))
            waiting, size = [], 0
        waiting.append(one)
        size += len(one)
    return [*messages, _joined(waiting)] if waiting else messages


def _joined(parts: list[bytes]) -> bytes:
    return _encoder.encode([msgspec.Raw(part) for part in parts])


def decode_news(data: bytes) -> list[StreamNews]:
    """Return the news in a message. Raises what `UNREADABLE` names, `ValueError` for parts of ids
    or marks.
    """
    found = _news.decode(data)
    if any(len(one.ids) % _ID_BYTES or len(one.marks) % MARK_BYTES for one in found):
        raise ValueError("a part of an id, or of a mark")
    return found
