"""Asks a running router or meta-router for its overview."""

import msgspec

from kvmesh.app.views.overview import Overview
from kvmesh.bounds import UNREADABLE
from kvmesh.errors import TransportError
from kvmesh.transport.http.fetch import HTTP_OK, error_words, fetch, split_url
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers

TIMEOUT_S = 5.0


async def ask_overview(url: str, *, api_key: str = "", since: int = 0, limit: int = 0) -> Overview:
    """Return what the process at `url` knows; see `ask_with`."""
    pool = UpstreamPool()
    try:
        return await ask_with(pool, url, api_key=api_key, since=since, limit=limit)
    finally:
        await pool.close()


async def ask_with(
    pool: UpstreamPool, url: str, *, api_key: str, since: int, limit: int
) -> Overview:
    """Return an overview with traffic from Unix second `since` on and `limit` decisions.

    Raises `TransportError` with the remedy when nobody answers, or somebody else.
    """
    path = f"/v1/overview?since={since}&limit={limit}"
    headers = ((b"authorization", f"Bearer {api_key}".encode()),) if api_key else ()
    body = await ask(pool, url, path, headers)
    try:
        return msgspec.json.decode(body, type=Overview)
    except UNREADABLE as error:
        raise TransportError(f"{url}: {error}; is --url a kvmesh router?") from error


async def ask(
    pool: UpstreamPool, url: str, path: str, headers: Headers, json: bytes | None = None
) -> bytes:
    """Return the body of a 200 answer to a GET of `path` below `url`, or to a POST of `json`.

    Raises `TransportError` with the remedy when nobody answers, in its words when it refuses.
    """
    origin, prefix = split_url(url.removesuffix("/v1"))
    try:
        status, body = await fetch(
            pool, origin, prefix + path, timeout_s=TIMEOUT_S, headers=headers, json=json
        )
    except TransportError as error:
        remedy = "start it (kvmesh up), or name a router or meta-router with --url"
        raise TransportError(f"{error}; {remedy}") from error
    if status != HTTP_OK:
        raise TransportError(f"{origin}{prefix}{path}: {status}: {error_words(body)}")
    return body
