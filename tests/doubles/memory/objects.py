"""The object store in memory."""

import builtins
import hashlib

from kvmesh.errors import TransportError
from kvmesh.ports import ObjectInfo
from tests.doubles.memory.server import MemoryServer


class MemoryObjects:
    """The `ObjectStore` of one bucket."""

    def __init__(self, server: MemoryServer, bucket: str) -> None:
        self._server = server
        self._bucket = bucket

    async def put(self, name: str, data: bytes) -> ObjectInfo:
        """Store `data`. Raises `TransportError` when the server is down."""
        self._server.require_up(name)
        sha256 = hashlib.sha256(data).hexdigest()
        info = ObjectInfo(name, len(data), sha256, self._server.clock())
        self._server.objects.setdefault(self._bucket, {})[name] = (bytes(data), info)
        return info

    async def get(self, name: str) -> bytes:
        """Return the object. Raises `TransportError` when it is absent or damaged."""
        self._server.require_up(name)
        stored = self._server.objects.get(self._bucket, {}).get(name)
        if stored is None:
            raise TransportError(f"object {self._bucket}/{name} does not exist")
        data, info = stored
        if hashlib.sha256(data).hexdigest() != info.sha256:
            raise TransportError(f"object {self._bucket}/{name} is damaged: its digest differs")
        return data

    async def delete(self, name: str) -> None:
        """Delete the object; no error when absent."""
        self._server.require_up(name)
        self._server.objects.get(self._bucket, {}).pop(name, None)

    async def list(self) -> builtins.list[ObjectInfo]:
        """Return all objects, by name."""
        self._server.require_up(self._bucket)
        stored = self._server.objects.get(self._bucket, {})
        return [stored[name][1] for name in sorted(stored)]

    async def delete_orphans(self, older_than_s: float) -> int:
        """Delete what an interrupted put left, return how many objects' worth."""
        self._server.require_up(self._bucket)
        orphans = self._server.orphans.get(self._bucket, [])
        limit_s = self._server.clock() - older_than_s
        self._server.orphans[self._bucket] = [since for since in orphans if since > limit_s]
        return len(orphans) - len(self._server.orphans[self._bucket])

    def damage(self, name: str) -> None:
        """Cut the stored object in half, as a lost chunk would."""
        data, info = self._server.objects[self._bucket][name]
        self._server.objects[self._bucket][name] = (data[: len(data) // 2], info)

    def leave_orphan(self) -> None:
        """Leave the chunks of a put whose writer died."""
        self._server.orphans.setdefault(self._bucket, []).append(self._server.clock())
