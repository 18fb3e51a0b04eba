"""The shared table in memory."""

from kvmesh.ports import Entry, TableListener
from tests.doubles.memory.server import MemoryServer, TimedEntry
from tests.doubles.memory.tail import Follower


class MemoryTableTail(Follower):
    """A running `follow`: delivers what is newer than what it delivered."""

    def __init__(self, server: MemoryServer, bucket: str, listener: TableListener) -> None:
        self._bucket = bucket
        self._listener = listener
        self._revision = 0
        self._caught_up = False
        super().__init__(server)

    def _pump(self) -> None:
        if self._closed or not self._server.up:
            return
        now = self._server.clock()
        entries = self._server.buckets.get(self._bucket, {}).items()
        live = [(key, timed.entry) for key, timed in entries if timed.expires_s > now]
        for key, entry in sorted(live, key=lambda each: each[1].revision):
            if entry.revision > self._revision:
                self._revision = entry.revision
                if entry.value:
                    self._listener.on_value(key, entry.value)
        if not self._caught_up:
            self._caught_up = True
            self._listener.on_caught_up()


class MemoryTable:
    """The `SharedTable` of one bucket. Expiry follows the server's clock."""

    def __init__(self, server: MemoryServer, bucket: str, ttl_s: int, max_keys: int = 0) -> None:
        self._server = server
        self._bucket = bucket
        self._ttl_s = ttl_s
        self._max_keys = max_keys

    def put(self, key: str, value: bytes) -> None:
        """Write, never waiting; lost in silence while the server is down."""
        if self._server.up:
            self._server.revision += 1
            entry = Entry(value, self._server.revision)
            timed = TimedEntry(entry, self._server.clock() + self._ttl_s)
            kept = self._server.buckets.setdefault(self._bucket, {})
            kept[key] = timed
            if 0 < self._max_keys < len(kept):
                del kept[min(kept, key=lambda one: kept[one].entry.revision)]
            self._server.wake()

    async def follow(self, listener: TableListener) -> MemoryTableTail:
        """Deliver what is in the table, then what is written."""
        return MemoryTableTail(self._server, self._bucket, listener)
