"""What is asked of a pool's watch, without what it takes to watch one."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from kvmesh.app.picker.pool_endpoints import PoolEndpoints


class PoolName(msgspec.Struct, frozen=True):
    """Where a pool is."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PoolStatistics(msgspec.Struct, frozen=True):
    """A pool now, and what came of asking the API server since the start, by collection.

    `unserved_pods` None: pods are workers themselves. `failures` by collection and kind: refused by
    the server, failed, or an object that cannot be read.
    """

    endpoints: int
    unready_pods: int
    unserved_pods: int | None
    synced: bool
    objectives: int
    lists: dict[str, int]
    events: dict[str, int]
    failures: dict[tuple[str, str], int]


class PoolView(Protocol):
    """A pool as it is now; see `PoolWatch`."""

    name: PoolName
    found: PoolEndpoints
    synced: asyncio.Event
    listeners: list[Callable[[], None]]
    unserved: Callable[[], tuple[str, ...]] | None

    def why_not(self) -> str:
        """Return why the pool has no endpoint, in words; "" when it has."""
        ...

    def priority_of(self, objective: str) -> int | None:
        """Return the priority of requests that name this objective; None for one not known."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """Return what keeps the pool from being known in full, one line each."""
        ...

    def describe(self) -> dict[str, object]:
        """Return the pool as /v1/status shows it."""
        ...

    def statistics(self) -> PoolStatistics:
        """Return counts for /metrics."""
        ...

    async def run(self) -> None:
        """Watch until cancelled."""
        ...
