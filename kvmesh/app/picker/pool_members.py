"""A mesh narrowed to a pool: only workers at its endpoints get requests."""

import contextlib
import ipaddress
from urllib.parse import urlsplit

from kvmesh.actors.router import Router
from kvmesh.app.picker.pool_view import PoolView
from kvmesh.core.blocks.events import WorkerId


class PoolMembers:
    """Bars the workers whose URL is no endpoint of `pool`, and knows the pods that lack a worker.

    The index keeps the blocks of all workers of the bucket, so that replicas with and without a
    pool agree on it.
    """

    def __init__(self, pool: PoolView, router: Router) -> None:
        self._pool = pool
        self._router = router
        self._members = router.scheduler.workers.membership
        self._members.screens.append(self._why_not)
        pool.listeners.append(self._members.screen_anew)
        router.located.append(self._members.screen_anew)
        pool.unserved = self.unserved

    def unserved(self) -> tuple[str, ...]:
        """Return the pods with an endpoint at which no worker is, sorted."""
        at = {address_in(one.url) for one in self._router.heartbeats.values()}
        missing = {one.pod for one in self._pool.found.endpoints if one.address not in at}
        return tuple(sorted(missing))

    def _why_not(self, worker: str) -> str:
        """Return why a worker gets nothing; "" when it may."""
        beat = self._router.heartbeats.get(WorkerId(worker))
        if beat is None:
            return "it just joined"
        if address_in(beat.url) in self._pool.found.addresses:
            return ""
        return f"its URL is no endpoint of InferencePool {self._pool.name}"


def address_in(url: str) -> str:
    """Return the ip:port of a worker's URL as an `Endpoint` writes it, "" for none."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return ""
    host = parts.hostname or ""
    with contextlib.suppress(ValueError):
        host = str(ipaddress.ip_address(host))
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
