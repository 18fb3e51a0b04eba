"""Asks a running router or meta-router for its overview."""

import msgspec

from kvmesh.app.fetch import HTTP_OK, fetch
from kvmesh.app.overview import Overview
from kvmesh.app.replay_client import error_words, split_url
from kvmesh.errors import TransportError
from kvmesh.transport.http.upstream import UpstreamPool

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
    origin, prefix = split_url(url.removesuffix("/v1"))
    path = f"{prefix}/v1/overview?since={since}&limit={limit}"
    headers = ((b"authorization", f"Bearer {api_key}".encode()),) if api_key else ()
    status, body = await fetch(pool, origin, path, timeout_s=TIMEOUT_S, headers=headers)
    if status != HTTP_OK:
        raise TransportError(f"{origin}{path}: {status}: {error_words(body)}")
    try:
        return msgspec.json.decode(body, type=Overview)
    except msgspec.MsgspecError as error:
        raise TransportError(f"{origin}: {error}; is --url a kvmesh router?") from error
