"""The key-value store in memory."""

import math
from collections.abc import Sequence

from kvmesh.errors import ConflictError
from kvmesh.ports import Entry
from tests.doubles.memory.server import MemoryServer, TimedEntry


class MemoryKeyValue:
    """The `KeyValue` of one bucket. Expiry follows the server's clock."""

    def __init__(self, server: MemoryServer, bucket: str) -> None:
        self._server = server
        self._bucket = bucket

    async def get(self, key: str) -> Entry | None:
        """Return the entry; None when never written, deleted or expired."""
        self._server.require_up(key)
        return self._live(key)

    async def put(
        self, key: str, value: bytes, *, expected: int | None, ttl_s: int | None = None
    ) -> int:
        """Write and return the new revision. Raises `ConflictError`, `TransportError`."""
        self._require(key, expected)
        self._server.revision += 1
        entry = Entry(value, self._server.revision)
        expires_s = math.inf if ttl_s is None else self._server.clock() + ttl_s
        self._server.buckets.setdefault(self._bucket, {})[key] = TimedEntry(entry, expires_s)
        return entry.revision

    async def delete(self, key: str, *, expected: int) -> None:
        """Delete the entry with that revision. Raises `ConflictError`, `TransportError`."""
        self._require(key, expected)
        self._server.revision += 1
        del self._server.buckets[self._bucket][key]

    async def keys(self, prefix: str) -> Sequence[str]:
        """Return the live keys that start with `prefix`, sorted."""
        self._server.require_up(prefix)
        known = sorted(self._server.buckets.get(self._bucket, {}))
        return [key for key in known if key.startswith(prefix) and self._live(key)]

    def _live(self, key: str) -> Entry | None:
        timed = self._server.buckets.get(self._bucket, {}).get(key)
        if timed is None or timed.expires_s <= self._server.clock():
            return None
        return timed.entry

    def _require(self, key: str, expected: int | None) -> None:
        self._server.require_up(key)
        entry = self._live(key)
        found = None if entry is None else entry.revision
        if found != expected:
            raise ConflictError(f"{self._bucket}/{key} is at revision {found}, not {expected}")
