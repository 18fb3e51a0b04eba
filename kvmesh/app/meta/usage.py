"""`/v1/usage` of a meta-router: what the replicas of all buckets say of who used what."""

import time
from collections.abc import Callable, Iterable
from urllib.parse import parse_qsl, urlencode

import msgspec

from kvmesh.app.front.front import Routes, json_page
from kvmesh.app.front.page_time import PageTime
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.meta.view import MetaView, readable
from kvmesh.app.views.usage_page import (
    MOST_ROWS_SHOWN,
    PATH,
    UsageLine,
    UsageQuery,
    UsageView,
    line_of,
    read_query,
)
from kvmesh.bounds import listed
from kvmesh.core.admission.usage import UsageSums
from kvmesh.transport.http.server.exchange import Exchange


class MetaUsage:
    """Asks all replicas; of each bucket the one counts that knows most of it."""

    def __init__(self, view: MetaView, viewers: Viewers) -> None:
        self._view = view
        self._viewers = viewers
        self._time = PageTime()

    def mount(self, routes: Routes) -> None:
        """Serve the path."""
        routes.add("GET", PATH, self._show)

    def _show(self, exchange: Exchange) -> None:
        request, viewer = exchange.request, self._viewers.of(exchange.request)
        own = None if viewer is None else viewer.tenant
        asked = read_query(request.query, time.time(), own)
        query = dict(parse_qsl(request.query)) | {"limit": str(MOST_ROWS_SHOWN)}

        async def look() -> Callable[[], bytes]:
            bodies = await self._view.ask_all(f"{PATH}?{urlencode(query)}", viewer)
            buckets = self._view.buckets()
            return lambda: json_page(merge_usage(readable(bodies, UsageView), buckets, asked))

        self._time.answer(exchange, (request.query, own), look)


def merge_usage(views: Iterable[UsageView], buckets: Iterable[str], asked: UsageQuery) -> UsageView:
    """Return the usage of all `buckets`, with those of which nothing was heard as missing."""
    best: dict[str, UsageView] = {}
    for view in views:
        known = best.get(view.bucket)
        if known is None or _knows_more(view, known):
            best[view.bucket] = view
    rows: dict[tuple[str, str], UsageSums] = {}
    total, others = UsageSums(), UsageSums()
    for view in best.values():
        for one in view.rows:
            rows.setdefault((one.tenant, one.name), UsageSums()).add(_sums(one))
        total.add(_sums(view.total))
        if view.others is not None:
            others.add(_sums(view.others))
    lines = [line_of(tenant, name, sums) for (tenant, name), sums in rows.items()]
    lines.sort(key=lambda one: (-one.prompt_tokens - one.output_tokens, one.tenant, one.name))
    missing = [f"bucket {name}: {one.missing}" for name, one in best.items() if one.missing]
    if silent := [one for one in buckets if one not in best]:
        missing.append(f"no answer from {listed(silent)}")
    return UsageView(
        bucket="",
        router="",
        by=asked.by,
        since=min((one.since for one in best.values()), default=asked.since),
        until=max((one.until for one in best.values()), default=asked.since),
        missing="; ".join(missing),
        rows=lines[: asked.limit],
        others=None if asked.tenant is not None else line_of("", "(others)", others),
        total=line_of(asked.tenant or "", "(total)", total),
    )


def _knows_more(one: UsageView, other: UsageView) -> bool:
    if bool(one.missing) != bool(other.missing):
        return not one.missing
    return one.total.requests > other.total.requests


def _sums(one: UsageLine) -> UsageSums:
    named = msgspec.structs.asdict(one)
    return UsageSums(**{name: named[name] for name in UsageSums.__struct_fields__})
