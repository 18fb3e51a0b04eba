"""`kvmesh usage`: who used what, as a table."""

import asyncio
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlencode

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvmesh.app.process.running_mesh import find_url
from kvmesh.app.views.ask import ask
from kvmesh.app.views.usage_page import MOST_ROWS_SHOWN, PATH, UsageLine, UsageView
from kvmesh.bounds import UNREADABLE
from kvmesh.core.admission.usage import By
from kvmesh.errors import TransportError
from kvmesh.settings.types import Flat
from kvmesh.transport.http.upstream.client import UpstreamPool


@dataclass(frozen=True, kw_only=True)
class UsageOptions:
    """What to list. A dataclass, since the command line is made from it."""

    by: By = "tenant"
    """What a row is of."""
    since: str = "day"
    """The present minute, hour or day (UTC); 90m, 24h or 7d ago; or a time as 2026-11-30T08:00Z."""
    tenant: str = ""
    """This tenant alone."""
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_ROWS_SHOWN))] = 20
    """Rows listed, most tokens first."""
    url: str = ""
    """Base URL of a router or meta-router, without /v1; default: the mesh of a running `kvmesh up`,
    else http://127.0.0.1:8000."""
    api_key: str = ""
    """Sent as bearer token: of role operate it sees all tenants, of role view its own."""
    json: bool = False
    """Print the answer as it came."""


def command(options: Annotated[UsageOptions, Flat] | None = None) -> None:
    """List who used what, by tenant, key, model, session or program."""
    given = options or UsageOptions()
    chosen = replace(given, url=find_url(given.url))
    body = asyncio.run(fetch_usage(chosen))
    if chosen.json:
        sys.stdout.write(body.decode())
        return
    Console().print(draw(read_usage(body, chosen.url)))


async def fetch_usage(options: UsageOptions) -> bytes:
    """Return the answer of the process at the URL. Raises `TransportError` with the remedy."""
    query = {"by": options.by, "since": options.since, "limit": str(options.limit)}
    if options.tenant:
        query["tenant"] = options.tenant
    key = options.api_key
    headers = ((b"authorization", f"Bearer {key}".encode()),) if key else ()
    pool = UpstreamPool()
    try:
        return await ask(pool, options.url, f"{PATH}?{urlencode(query)}", headers)
    finally:
        await pool.close()


def read_usage(body: bytes, url: str) -> UsageView:
    """Return what an answer says. Raises `TransportError` where it is none."""
    try:
        return msgspec.json.decode(body, type=UsageView)
    except UNREADABLE as error:
        raise TransportError(
            f"{url}: {error}; is --url a kvmesh router of this version?"
        ) from error


def draw(view: UsageView) -> Table:
    """Return the table: rows, what had no room among them, and the total."""
    whose = f"bucket {view.bucket}" if view.bucket else "all buckets"
    title = f"{whose}, by {view.by}, {_clock(view.since)} to {_clock(view.until)} UTC"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", show_footer=True)
    if view.missing:
        table.caption = f"not counted: {view.missing}"
    shown = [*view.rows, *([view.others] if view.others and view.others.requests else [])]
    tenants = view.by != "tenant" and any(one.tenant for one in view.rows)
    if tenants:
        table.add_column("tenant", Text())
    table.add_column(view.by, "total")
    for name, foot in zip(_TITLES, _cells(view.total), strict=True):
        table.add_column(name, foot, justify="right", no_wrap=True)
    for one in shown:
        owner = [Text(one.tenant)] if tenants else []
        table.add_row(*owner, Text(one.name or "(none)"), *_cells(one))
    return table


_TITLES = ("requests", "errors", "prompt", "cached", "output", "engine s")


def _cells(one: UsageLine) -> tuple[str, ...]:
    counts = one.requests, one.errors, one.prompt_tokens, one.cached_tokens, one.output_tokens
    return (*(f"{count:,}" for count in counts), f"{one.engine_ms / 1000.0:,.1f}")


def _clock(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
