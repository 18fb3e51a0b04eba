"""Tells the routers of a bucket how far the streams have come that their clients named."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from kvmesh._native import Names
from kvmesh.actors.wire import last_token
from kvmesh.bounds import UNREADABLE, shown
from kvmesh.core.admission.access import tenant_of
from kvmesh.core.chat.named_streams import (
    NamedStream,
    NamedStreams,
    Origin,
    State,
    StreamHead,
    StreamKey,
    StreamNews,
    decode_news,
    encode_news,
)
from kvmesh.core.chat.stream_form import unmarked
from kvmesh.observe import get_logger
from kvmesh.tasks import report
from kvmesh.transport.http.forward.plan import NO_HOLD
from kvmesh.transport.http.forward.resume import Resumption
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request

TELL_EVERY_S: Final = 0.05
"""What a client got in this time before its router died its siblings do not know."""

MOST_TOLD: Final = 256 * 1024
"""Bytes of a message: a stream whose request is longer is known to its own router alone."""

LOG_EVERY_S: Final = 10.0


class _Served:
    """A stream that is served here, and how much of it was told."""

    __slots__ = ("by_meta", "exchange", "ids", "key", "marks", "path", "resumption", "told", "turn")

    def __init__(
        self, exchange: Exchange, resumption: Resumption, key: StreamKey, turn: int
    ) -> None:
        self.exchange = exchange
        self.resumption = resumption
        self.key = key
        self.path = exchange.request.path
        self.by_meta = exchange.request.header(NO_HOLD[0]) is not None
        self.turn = turn
        self.told = False
        self.ids = self.marks = 0

    def news(self, *, over: bool) -> StreamNews | None:
        """Return what is new of it, None for nothing."""
        resumption, (tenant, name) = self.resumption, self.key
        form, seen = resumption.form, resumption.seen()
        head: StreamHead | None = None
        if form.word == "no":
            head = StreamHead(why=form.why)
            if self.told and not over:
                return None
            self.told = True
            return StreamNews(name, tenant, self.turn, "over" if over else "on", head=head)
        if seen is None:
            return None
        kept = seen.kept
        if not self.told:
            self.told = True
            body = unmarked(resumption.body) if self.by_meta else resumption.body
            head = StreamHead(cast("Origin", self.path), body, seen.opening, kept.prompt_ids)
        ids_at, marks_at = min(self.ids, len(kept.token_ids)), min(self.marks, len(kept.marks))
        ids, marks = kept.token_ids[ids_at:], kept.marks[marks_at:]
        self.ids, self.marks = len(kept.token_ids), len(kept.marks)
        if not (ids or marks or over or head):
            return None
        state: State = "over" if over else "on"
        told = (ids_at, ids, marks_at, marks, kept.lost, head)
        return StreamNews(name, tenant, self.turn, state, *told)


class StreamSharing:
    """The named streams that this router serves, told to `table` and to its siblings.

    `publish` reaches them, None where there can be none. Tenants are told by `tenant_header`.
    """

    def __init__(
        self,
        table: NamedStreams,
        router_id: str,
        tenant_header: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = table
        self.publish: Callable[[bytes], None] | None = None
        self.told_bytes = 0
        self._router_id = router_id
        self._tenant = tenant_header.lower().encode()
        self._tenants = Names((self._tenant,), b"")
        self._clock = clock
        self._served: dict[StreamKey, _Served] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._logged_s = -LOG_EVERY_S

    def key_of(self, request: Request, name: str) -> StreamKey:
        """Return whose stream of that name a request means. Raises `RequestError`."""
        return tenant_of(request.head.select(self._tenants), self._tenant), name

    def begin(self, exchange: object, resumption: Resumption, key: StreamKey) -> None:
        """Tell of a stream from now until its end. One of that name that is served here ends."""
        serving = cast("Exchange", exchange)
        if serving.scope.over:
            return
        known = self.table.find(key, self._clock())
        turn = max(time.time_ns() // 1_000_000, 0 if known is None else known.turn + 1)
        self.end(key)
        self._served[key] = served = _Served(serving, resumption, key, turn)
        resumption.marking, resumption.thick = True, False  # its whole body may be asked again
        serving.scope.held.append(partial(self._over, served))
        if resumption.going is not None:
            self._tell([served], over=False)
        self._tell_soon()

    def tell(self) -> None:
        """Tell what is new of all streams that are served here."""
        self._tell(list(self._served.values()), over=False)

    def find(self, key: StreamKey) -> NamedStream | None:
        """Return what is known of a stream by now, None where it is none."""
        if (served := self._served.get(key)) is not None:
            self._tell([served], over=False)
        return self.table.find(key, self._clock())

    def end(self, key: StreamKey) -> bool:
        """End a stream that is served here, since its client has lost it; False: there is none."""
        served = self._served.get(key)
        if served is None:
            return False
        exchange = served.exchange
        exchange.scope.kind = "client_gone"
        exchange.scope.enter(exchange.abort)
        return True

    def take(self, key: StreamKey, stream: NamedStream) -> None:
        """Have whoever serves a stream end it."""
        if not self.end(key) and not stream.over:
            tenant, name = key
            self._publish([StreamNews(name, tenant, stream.turn, "taken")])

    def hear(self, subject: str, data: bytes) -> None:
        """Take what a sibling tells."""
        if last_token(subject) == self._router_id:
            return
        try:
            found = decode_news(data)
        except (*UNREADABLE, ValueError) as error:
            self.table.missed += 1
            self._refuse(subject, error)
            return
        for news in found:
            served = self._served.get(news.key)
            if served is not None and news.turn >= served.turn:
                self.end(news.key)
            if news.state != "taken":
                self.table.take(news, self._clock())

    def _refuse(self, subject: str, error: Exception) -> None:
        if (now := self._clock()) >= self._logged_s + LOG_EVERY_S:
            self._logged_s = now
            get_logger().warning(
                "message refused", **{"from": shown(subject), "reason": str(error)[:400]}
            )

    def _over(self, served: _Served) -> None:
        if self._served.get(served.key) is served:
            del self._served[served.key]
        self._tell([served], over=True)

    def _tell_soon(self) -> None:
        if self._timer is None and self._served:
            self._timer = asyncio.get_running_loop().call_later(TELL_EVERY_S, self._tell_all)

    def _tell_all(self) -> None:
        self._timer = None
        try:
            self.tell()
        except Exception as error:  # noqa: BLE001  a timer's edge: the next turn tells on
            report("tell streams", error)
        self._tell_soon()

    def _tell(self, streams: list[_Served], *, over: bool) -> None:
        news = [found for one in streams if (found := one.news(over=over)) is not None]
        now = self._clock()
        for one in news:
            self.table.take(one, now)
        self._publish(news)

    def _publish(self, news: list[StreamNews]) -> None:
        if self.publish is None or not news:
            return
        for message in encode_news(news, MOST_TOLD):
            self.told_bytes += len(message)
            self.publish(message)
