"""`/v1/usage`: who used what, of a whole bucket, as any of its replicas answers."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qs

import msgspec

from kvmesh.app.front.front import Routes, json_page
from kvmesh.app.front.page_time import PageTime
from kvmesh.app.front.viewers import Viewers
from kvmesh.bounds import MAX_SECONDS, real_number, shown, whole_number
from kvmesh.core.admission.usage import BY, DAY_S, HOUR_S, MINUTE_S, By, UsageSums
from kvmesh.core.admission.usage_book import UsageBook, summed
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.exchange import Exchange

PATH: Final = "/v1/usage"
SHOWN: Final = 100
MOST_ROWS_SHOWN: Final = 4096
MOST_UNIX_S: Final = 1e11

_PRESENT: Final = {"minute": MINUTE_S, "hour": HOUR_S, "day": DAY_S}
_AGO: Final = re.compile(r"([0-9]{1,5})([mhd])", re.ASCII)
_UNITS: Final = {"m": MINUTE_S, "h": HOUR_S, "d": DAY_S}
_FORBIDDEN: Final = 403


class UsageLine(msgspec.Struct, frozen=True):
    """One row of `UsageView`. `tenant` is "" in a row that is of several."""

    tenant: str
    name: str
    requests: int
    errors: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    engine_ms: int


class UsageView(msgspec.Struct, frozen=True):
    """What was used between two Unix times, most tokens first. `total` is of all requests, also of
    those without such a name; `others` of rows that there was no room for. `missing` says what is
    not counted here, "" for nothing. Of a whole mesh `bucket` and `router` are "".
    """

    bucket: str
    router: str
    by: By
    since: float
    until: float
    missing: str
    rows: list[UsageLine]
    others: UsageLine | None
    total: UsageLine


class UsageQuery(msgspec.Struct, frozen=True):
    """What is asked for: `since` a Unix time."""

    by: By
    since: float
    tenant: str | None
    limit: int


class UsagePage:
    """Answers for one replica, of all that it knows of its bucket."""

    def __init__(
        self, book: UsageBook, viewers: Viewers, now: Callable[[], float] = time.time
    ) -> None:
        self._book = book
        self._viewers = viewers
        self._now = now
        self._time = PageTime()

    def mount(self, routes: Routes) -> None:
        """Serve the path."""
        routes.add("GET", PATH, self._show)

    def _show(self, exchange: Exchange) -> None:
        request, viewer = exchange.request, self._viewers.of(exchange.request)
        own = None if viewer is None else viewer.tenant
        now = self._now()
        asked = read_query(request.query, now, own)
        # Pages of one `since` are kept by its words: by its time each would be another.
        key = (request.query, own)
        page = self._time.page(key, lambda: json_page(view_usage(self._book, asked, now)))
        exchange.respond(200, page)


def view_usage(book: UsageBook, asked: UsageQuery, now: float) -> UsageView:
    """Return what a book has of what is asked for."""
    windows = book.windows.since(asked.since, now)
    found = summed(windows, asked.by, asked.tenant, now)
    return UsageView(
        bucket=book.bucket,
        router=book.router,
        by=asked.by,
        since=float(found.since),
        until=now,
        missing=book.missing,
        rows=[line_of(tenant, name, sums) for tenant, name, sums in found.rows[: asked.limit]],
        others=None if found.others is None else line_of("", "(others)", found.others),
        total=line_of(asked.tenant or "", "(total)", found.total),
    )


def line_of(tenant: str, name: str, sums: UsageSums) -> UsageLine:
    """Return a row as it is shown."""
    return UsageLine(tenant, name, **msgspec.structs.asdict(sums))


def read_query(query: str, now: float, own: str | None = None) -> UsageQuery:
    """Return what is asked for, `own`: by a tenant that may see itself alone.

    Raises `RequestError`.
    """
    given = {name: values[-1] for name, values in parse_qs(query).items()}
    wanted, tenant = given.get("by", "tenant"), given.get("tenant", own)
    by = next((one for one in BY if one == wanted), None)
    if by is None:
        raise RequestError(f"by={shown(wanted)}: use one of {', '.join(BY)}", param="by")
    if own is not None and tenant != own:
        raise RequestError(
            f"tenant={shown(tenant or '')}: this key sees its own tenant's usage, {shown(own)}: "
            "leave tenant out, or use a key of role operate",
            status=_FORBIDDEN,
            param="tenant",
        )
    limit = whole_number(given.get("limit", str(SHOWN)), 1, 1 << 53)
    if limit is None:
        raise RequestError(f"limit={shown(given['limit'])}: use a whole number", param="limit")
    since = read_since(given.get("since", "day"), now)
    return UsageQuery(by, since, tenant, min(limit, MOST_ROWS_SHOWN))


def read_since(text: str, now: float) -> float:
    """Return the Unix time that a query means. Raises `RequestError`."""
    if (length_s := _PRESENT.get(text)) is not None:
        return now // length_s * length_s
    if (ago := _AGO.fullmatch(text)) is not None:
        return max(0.0, now - min(MAX_SECONDS, float(ago[1]) * _UNITS[ago[2]]))
    seconds = real_number(text, 0.0, MOST_UNIX_S)
    if seconds is not None:
        return seconds
    try:
        read = datetime.fromisoformat(text.replace(" ", "+"))
        return max(0.0, (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError) as error:
        raise RequestError(
            f"since={shown(text)}: use minute, hour or day (those of now), 90m, 24h or 7d ago, a "
            "Unix time, or one as 2026-11-30T08:00Z",
            param="since",
        ) from error
