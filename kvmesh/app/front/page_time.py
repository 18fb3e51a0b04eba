"""Pages for people and Prometheus: a share of the processor time, however often they are asked."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar

import msgspec

from kvmesh.errors import KvMeshError, RequestError
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.wire.problem import Problem

SHARE: Final = 0.1
"""Of a core, what the pages of one `PageTime` take for long."""
BURST_S: Final = 1.0
LEAST_S: Final = 0.001
"""What a page counts for at least: what is looked up before it is made is not measured."""
MAX_KEPT: Final = 16
MIN_AGE_S: Final = 5.0
_BUSY: Final = f"pages of this process may take {SHARE:.0%} of a core: ask again in a second"

Look = Callable[[], Awaitable[Callable[[], bytes]]]
"""Finds what a page shows, for which it may wait, and returns how the page is made of it."""

T = TypeVar("T")


class _Kept(msgspec.Struct, frozen=True, gc=False):
    page: bytes
    until_s: float


class PageTime:
    """Gives out processor time to pages: `BURST_S` at once, then `SHARE` of a core.

    While that is used up a page is answered as it was made last, by its key: all that its content
    depends on. It is at most 5 s old, or twice as old as it takes to have time again. A page that
    was not made yet is refused. At most `MAX_KEPT` pages are kept, the oldest is dropped.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._now = now
        self._spent = spent
        self._left_s = BURST_S
        self._at_s = now()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    def is_due(self) -> bool:
        """Return whether there is time to make a page."""
        now = self._now()
        self._left_s = min(BURST_S, self._left_s + (now - self._at_s) * SHARE)
        self._at_s = now
        return self._left_s > 0

    def kept(self, key: Hashable) -> bytes | None:
        """Return the page to answer again, None if it may be made anew.

        Raises `RequestError` (503) if there is neither time nor a page.
        """
        if self.is_due():
            return None
        kept = self._kept.get(key)
        if kept is None or kept.until_s < self._at_s:
            error = RequestError(_BUSY, status=503, code="pages_busy")
            error.retry_after_s = 1
            raise error
        return kept.page

    def make(self, key: Hashable, page: Callable[[], bytes]) -> bytes:
        """Make a page, keep it and take its time off; `kept` was asked before."""
        made = self.charge(page)
        age_s = max(MIN_AGE_S, 2 * max(0.0, -self._left_s) / SHARE)
        self._kept.pop(key, None)
        self._kept[key] = _Kept(made, self._now() + age_s)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return made

    def charge(self, work: Callable[[], T]) -> T:
        """Do `work` and take its time off."""
        began = self._spent()
        done = work()
        self._left_s -= max(LEAST_S, self._spent() - began)
        return done

    def page(self, key: Hashable, page: Callable[[], bytes]) -> bytes:
        """Return a page, made anew if there is time for it. Raises `RequestError`; see `kept`."""
        kept = self.kept(key)
        return self.make(key, page) if kept is None else kept

    def answer(self, exchange: Exchange, key: Hashable, look: Look) -> None:
        """Answer with a page, made anew if there is time for it; a `KvMeshError` of `look` is
        answered, too. Raises `RequestError`; see `kept`.
        """
        kept = self.kept(key)
        if kept is None:
            exchange.scope.start(self._answer(exchange, key, look))
        else:
            exchange.respond(200, kept)

    async def _answer(self, exchange: Exchange, key: Hashable, look: Look) -> None:
        try:
            exchange.respond(200, self.make(key, await look()))
        except KvMeshError as error:
            exchange.fail(Problem.from_error(error))
