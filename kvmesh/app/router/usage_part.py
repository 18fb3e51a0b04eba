"""Usage at one router: what ended here is counted, shown, and made ready to be stored."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from kvmesh.actors.router import Router
from kvmesh.app.front.front import Routes
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.router.admin import RouterAdmin
from kvmesh.app.serve.routing_context import Ended, RoutingContext
from kvmesh.app.serve.usage_meter import meter
from kvmesh.app.views.traffic_watch import TrafficWatch
from kvmesh.app.views.usage_figures import LIMITS, USAGE, USAGE_RECORD, UsageFigures
from kvmesh.app.views.usage_page import UsagePage
from kvmesh.core.admission.usage_book import UsageBook
from kvmesh.core.admission.usage_limits import UsageLimits
from kvmesh.settings.roles import RouterSettings

SLICE: Final = 256
"""Requests counted in one turn of the event loop: some 1 ms."""

FLUSH_S: Final = 1.0
"""What a process that is killed has not told is no older, but for a busy event loop."""


class UsagePart:
    """Keeps the `book` of a router, which knows it from now on."""

    def __init__(self, settings: RouterSettings, router: Router, router_id: str) -> None:
        named = settings.admission.metrics_tenant
        epoch = time.time_ns() // 1_000_000
        self.book = UsageBook(settings.bucket, router_id, epoch, named)
        self.limits = UsageLimits(epoch)
        self.book.on_received = self.limits.learn
        started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.book.missing = f"what ended before {started}: without NATS there is no record"
        router.usage = self.book
        router.limits = self.limits if settings.http.api_keys is not None else None
        self._metered = 0
        self._waiting: deque[Ended] = deque()
        self._flushed_s = 0.0

    def mount(
        self,
        context: RoutingContext,
        viewers: Viewers,
        admin: RouterAdmin,
        ports: Iterable[Routes],
    ) -> TrafficWatch:
        """Serve the page at each port and show the figures; return what counts traffic, and tells
        of it here.
        """
        page = UsagePage(self.book, viewers)
        for routes in ports:
            page.mount(routes)
        counters = context.counters
        admin.sources.add(
            USAGE.of_each(lambda: {(one,): sums for one, sums in self.book.totals.items()}),
            USAGE_RECORD.of(lambda: UsageFigures(self.book.statistics(), self._uncounted(context))),
        )
        admin.sources.add(LIMITS.of(self.limits.statistics))
        admin.warn(self.book.warnings)
        traffic = TrafficWatch(context)
        traffic.on_ended, traffic.warnings = self.take, admin.warnings_but_rows
        self._ended = counters.ended
        return traffic

    async def take(self, ended: Sequence[Ended]) -> None:
        """Count requests that ended, and make batches of what was counted, once a second; others
        get their turn between.
        """
        paid, now, unix_s = self.limits.take_ended(), time.monotonic(), time.time()
        used = partial(self.limits.used, now=now, unix_s=unix_s)
        self._waiting.extend(ended)  # kept for `close`, should this be cancelled
        while self._waiting:
            meter(self.book, self._take_some(), used)
            await asyncio.sleep(0)
        self.limits.settle(paid, now)
        if now >= self._flushed_s + FLUSH_S:
            self._flushed_s = now
            for _ in self.book.flush_some(unix_s):
                await asyncio.sleep(0)

    def close(self) -> None:
        """Count all that ended, behind the last request."""
        self._waiting.extend(self._ended)
        self._ended.clear()
        used = partial(self.limits.used, now=time.monotonic(), unix_s=time.time())
        while self._waiting:
            meter(self.book, self._take_some(), used)
        self.book.flush(time.time())

    def _take_some(self) -> list[Ended]:
        some = [self._waiting.popleft() for _ in range(min(SLICE, len(self._waiting)))]
        self._metered += len(some)
        return some

    def _uncounted(self, context: RoutingContext) -> int:
        """Return how many requests ended faster than they could be counted."""
        counters = context.counters
        waiting = len(counters.ended) + len(self._waiting)
        return counters.ends.total() - self._metered - waiting
