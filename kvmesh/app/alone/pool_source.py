"""The ready pods of an InferencePool as workers of a router alone."""

import asyncio
import contextlib
from typing import Final

from kvmesh.app.kube.view import PoolView
from kvmesh.errors import TransportError

FIRST_S: Final = 5.0
"""How long a first look waits for the API server, so that a start finds the workers at once."""


class PoolSource:
    """What a pool's watch knows. A `Source`: nothing is asked for it."""

    def __init__(self, pool: PoolView) -> None:
        self._pool = pool

    async def find(self) -> list[str]:
        """Return the pool's endpoints. Raises `TransportError` before the pool was read."""
        pool = self._pool
        if not pool.synced.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pool.synced.wait(), FIRST_S)
        if not pool.synced.is_set():
            raise TransportError(f"InferencePool {pool.name}: {pool.why_not()}")
        return [one.as_worker() for one in pool.found.endpoints]
