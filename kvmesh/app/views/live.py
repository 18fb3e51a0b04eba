"""Server-sent events for dashboards: the whole state once, then a snapshot a second and changes."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, Protocol

import msgspec

from kvmesh.app.front.page_time import PageTime
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.views.decision_view import DecisionRow
from kvmesh.app.views.overview import Overview
from kvmesh.app.views.tenant_view import overview_for, rows_for
from kvmesh.core.admission.access import Viewer
from kvmesh.core.insight.record_search import RecordSearch
from kvmesh.core.insight.traffic import KEPT_S
from kvmesh.observe import get_logger
from kvmesh.tasks import wait_set
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.wire.problem import Problem

MAX_CLIENTS: Final = 64
SNAPSHOT_S: Final = 1.0
RECENT_S: Final = 5
"""Seconds of traffic in each snapshot: those still counting, and some a slow client missed."""

HELLO_DECISIONS: Final = 100
MAX_DECISIONS: Final = 1000
CHANGES_A_TICK: Final = 50
RETRY_MS: Final = 1000
_EARLY_S: Final = 0.01
_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
_FULL: Final = Problem(503, f"{MAX_CLIENTS} dashboards are open already", retry_after_s=10)


class View(Protocol):
    """What a router or a meta-router can show. `tick_s` is how often something may be new."""

    tick_s: float

    async def refresh(self, *, watched: bool) -> None:
        """Bring the view up to date, as far as `watched` makes it worth the work."""
        ...

    def overview(self, since: int, decisions: int, after: int = 0) -> Overview:
        """Return the present, traffic from Unix second `since` on, and `decisions` requests:
        the newest, or those that changed last behind cursor `after`; oldest first.
        """
        ...

    def changes(self, after: int, limit: int) -> tuple[list[DecisionRow], int]:
        """Return the newest `limit` rows that changed behind cursor `after`, and the new cursor."""
        ...

    async def latest(self, limit: int, search: RecordSearch) -> Callable[[], list[DecisionRow]]:
        """Return how to find the newest requests that are looked for, newest first."""
        ...

    async def find(self, request_id: str, viewer: Viewer | None = None) -> bytes | None:
        """Return all about a request as JSON that `viewer` may see; None when it is not known (any
        more), or another tenant's.
        """
        ...


class _Client:
    """One open dashboard. While it reads slowly it gets nothing; then it is told anew."""

    def __init__(self, exchange: Exchange, viewer: Viewer | None) -> None:
        self.exchange = exchange
        self.viewer = viewer
        self.paused = False
        self.fresh = True
        exchange.on_pause = self._pause
        exchange.on_resume = self._resume

    def _pause(self) -> None:
        self.paused = True
        self.fresh = True

    def _resume(self) -> None:
        self.paused = False


class LiveFeed:
    """Sends one view to all clients: each event is encoded once, whoever reads it.

    Events: `hello` (an `Overview` with all kept seconds, first and after a pause), `overview` each
    second, `decisions` (rows that changed) as they happen. Rows in a `hello` or `overview` replace
    all before. Bounded: `MAX_CLIENTS`, what one connection buffers, and the processor time that a
    `hello` takes: one that is not due yet is sent later.
    """

    def __init__(self, view: View, viewers: Viewers, pages: PageTime | None = None) -> None:
        self._view = view
        self._pages = pages or PageTime()
        self._viewers = viewers
        self._clients: dict[Exchange, _Client] = {}
        self._cursor = 0
        self._closed = False
        self._overflowed = False
        self._next_s = 0.0
        self._wake = asyncio.Event()

    def serve(self, exchange: Exchange) -> None:
        """Keep the exchange and send it everything from now on."""
        if self._closed or len(self._clients) >= MAX_CLIENTS:
            exchange.fail(_FULL)
            return
        viewer = self._viewers.of(exchange.request)
        exchange.start(200, (*_HEADERS, (b"x-request-id", exchange.request_id)))
        if exchange.request.method == "HEAD":
            exchange.end()
            return
        exchange.write(b"retry: %d\n\n" % RETRY_MS)
        self._clients[exchange] = _Client(exchange, viewer)
        exchange.scope.held.append(partial(self._clients.pop, exchange, None))
        self._wake.set()

    async def run(self) -> None:
        """Refresh the view and feed the clients, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await wait_set(self._wake, self._view.tick_s)
            self._wake.clear()
            try:
                await self._tick(loop.time())
            except Exception:  # noqa: BLE001  the HTTP edge: a dashboard never ends a router
                get_logger().exception("dashboard failed")

    async def _tick(self, now: float) -> None:
        view = self._view
        await view.refresh(watched=bool(self._clients))
        if not self._clients:
            return
        self._greet()
        rows, self._cursor = view.changes(self._cursor, CHANGES_A_TICK)
        self._overflowed |= len(rows) >= CHANGES_A_TICK
        if rows:
            self._send_rows(rows)
        if now >= self._next_s:
            self._next_s = now + SNAPSHOT_S - _EARLY_S
            self._send_overview(self._snapshot())

    def close(self) -> None:
        """End every stream, so that a drain need not wait for dashboards; take no new ones."""
        self._closed = True
        for exchange in list(self._clients):
            exchange.end()
        self._clients.clear()

    def clients(self) -> int:
        """Return how many dashboards are open."""
        return len(self._clients)

    def _greet(self) -> None:
        new = [one for one in self._clients.values() if one.fresh and not one.paused]
        if not new or not self._pages.is_due():
            return
        self._pages.charge(partial(self._hello, new))

    def _hello(self, new: Sequence[_Client]) -> None:
        limited = any(one.viewer is not None for one in new)
        most = MAX_DECISIONS if limited else HELLO_DECISIONS
        whole = self._view.overview(int(time.time()) - KEPT_S, most)
        event = b""
        for client in new:
            client.fresh = False
            if client.viewer is not None:
                seen = overview_for(whole, client.viewer, HELLO_DECISIONS)
                client.exchange.write(_event("hello", seen))
                continue
            if not event:
                newest = whole.decisions[max(0, len(whole.decisions) - HELLO_DECISIONS) :]
                event = _event("hello", msgspec.structs.replace(whole, decisions=newest))
            client.exchange.write(event)

    def _snapshot(self) -> Overview:
        """Return the present; after a burst that left rows out, with the newest rows."""
        rows = HELLO_DECISIONS if self._overflowed else 0
        self._overflowed = False
        return self._view.overview(int(time.time()) - RECENT_S, rows)

    def _send_rows(self, rows: list[DecisionRow]) -> None:
        self._send("decisions", rows, lambda viewer: rows_for(rows, viewer))

    def _send_overview(self, whole: Overview) -> None:
        self._send("overview", whole, lambda viewer: overview_for(whole, viewer, HELLO_DECISIONS))

    def _send(
        self,
        name: Literal["overview", "decisions"],
        value: object,
        limit: Callable[[Viewer], object],
    ) -> None:
        """Send to all clients, to those who may not see all what `limit` leaves of it for them."""
        event = _event(name, value)
        for client in list(self._clients.values()):
            if client.fresh:
                continue
            if client.viewer is None:
                client.exchange.write(event)
            elif seen := limit(client.viewer):
                client.exchange.write(_event(name, seen))


def _event(name: str, value: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))
