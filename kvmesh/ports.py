"""What the rest of kvmesh asks of the outside world; `transport` implements it, twice or more.

Every `transport` passes the one suite of its port in tests/contract.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec


class Record(msgspec.Struct, frozen=True):
    """One journal message. `sequence` counts from 1 over the whole stream."""

    sequence: int
    subject: str
    data: bytes


class StreamState(msgspec.Struct, frozen=True):
    """A stream as the server sees it. `created` changes when the stream is deleted and remade."""

    created: str
    first_sequence: int
    last_sequence: int
    messages: int = 0


class Subscription(Protocol):
    """A running subscription or tail."""

    async def close(self) -> None:
        """Stop delivering; safe to call twice."""
        ...


class TailListener(Protocol):
    """Where a tail delivers. Calls come in stream order, on the event loop, one at a time."""

    def on_record(self, record: Record) -> None:
        """Take one message; sequences never go back within one `created`."""
        ...

    def on_gap(self, first: int, last: int) -> None:
        """Learn that sequences `first..last` were purged before they could be read."""
        ...

    def on_recreated(self, state: StreamState) -> None:
        """Learn that the stream was deleted and remade: all that was read belongs to the past."""
        ...

    def on_caught_up(self, sequence: int) -> None:
        """Learn that everything up to `sequence`, the end when asked, has been delivered."""
        ...


class Journal(Protocol):
    """The event stream of one bucket: append-only, replayable, shared by all replicas."""

    async def state(self) -> StreamState:
        """Return the stream's state. Raises `TransportError`."""
        ...

    def append(self, subject: str, data: bytes, acked: Callable[[int], None]) -> None:
        """Send `data`, never waiting; `acked(sequence)` is called once if the server stored it.

        Nothing is called when the message or its ack is lost: the caller keeps the deadline.
        """
        ...

    async def tail(self, after: int, created: str, listener: TailListener) -> Subscription:
        """Deliver everything behind sequence `after`, for ever, through every reconnect.

        `created` is the stream the position belongs to ("" for any).
        """
        ...

    async def purge(self, up_to: int) -> int:
        """Delete sequences <= `up_to`, return how many. Raises `TransportError`."""
        ...


class Bus(Protocol):
    """Fire-and-forget messages: heartbeats, bookings. Lost while disconnected."""

    def publish(self, subject: str, data: bytes) -> None:
        """Send, never waiting; dropped and counted when disconnected or over the buffer."""
        ...

    async def subscribe(self, pattern: str, deliver: Callable[[str, bytes], None]) -> Subscription:
        """Deliver `(subject, data)` of every message matching `pattern` (`*`, `>` wildcards)."""
        ...


class Entry(msgspec.Struct, frozen=True):
    """A key's value; `revision` is what a compare-and-set must name."""

    value: bytes
    revision: int


class KeyValue(Protocol):
    """Small shared state with compare-and-set: leases, manifests. Reads come from the leader."""

    async def get(self, key: str) -> Entry | None:
        """Return the entry; None when never written, deleted or expired."""
        ...

    async def put(
        self, key: str, value: bytes, *, expected: int | None, ttl_s: int | None = None
    ) -> int:
        """Write and return the new revision; a larger revision is a valid fencing token.

        `expected` is the revision read before, or None for "no live entry". `ttl_s` >= 1.
        Raises `ConflictError` when another writer was first.
        """
        ...

    async def delete(self, key: str, *, expected: int) -> None:
        """Delete the entry with that revision. Raises `ConflictError`."""
        ...

    async def keys(self, prefix: str) -> Sequence[str]:
        """Return the live keys that start with `prefix`."""
        ...


class ObjectInfo(msgspec.Struct, frozen=True):
    """One stored object. `modified_s` is seconds since 1970, UTC."""

    name: str
    size: int
    sha256: str
    modified_s: float


class ObjectStore(Protocol):
    """Large immutable blobs (snapshots). Names are never reused."""

    async def put(self, name: str, data: bytes) -> ObjectInfo:
        """Store `data`; readers see all of it or nothing. Raises `TransportError`."""
        ...

    async def get(self, name: str) -> bytes:
        """Return the object, its digest checked. Raises `TransportError`, never hangs."""
        ...

    async def delete(self, name: str) -> None:
        """Delete the object and its chunks; no error when absent."""
        ...

    async def list(self) -> Sequence[ObjectInfo]:
        """Return all complete objects."""
        ...

    async def delete_orphans(self, older_than_s: float) -> int:
        """Delete chunks no object refers to, return how many objects' worth."""
        ...
