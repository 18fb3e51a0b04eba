"""What the rest of kvmesh asks of the outside world; `transport` implements it, twice or more.

Every `transport` passes the one suite of its port in tests/contract.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from kvmesh.actors.kernel import Message

T = TypeVar("T")


class Record(msgspec.Struct, frozen=True):
    """One journal message. `sequence` counts from 1 over the whole stream.

    `stored_ns` is when it was stored, by the server's clock, ns since 1970; 0 when it does not say.
    """

    sequence: int
    subject: str
    data: bytes
    stored_ns: int = 0


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
    """Where a tail delivers. Calls come in stream order, on the event loop, one at a time.

    What a listener raises is reported (`kvmesh.tasks`), and it is told what follows.
    """

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

    def append(
        self, subject: str, data: bytes, acked: Callable[[int], None], message_id: str = ""
    ) -> None:
        """Send `data`, never waiting; `acked(sequence)` is called once if the server stored it.

        Nothing is called when the message or its ack is lost: the caller keeps the deadline. One
        with the `message_id` of another that was stored shortly before is not stored again.
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
    """Fire-and-forget messages: heartbeats, bookings. Lost while disconnected.

    Subjects are words with dots between them, as `actors.wire.Subjects` makes them.
    """

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


class TableListener(Protocol):
    """Where a followed table delivers. Calls come on the event loop, one at a time."""

    def on_value(self, key: str, value: bytes) -> None:
        """Take the newest value of `key`; every key once at first, then each change. An empty
        value marks an end, and is not told.
        """
        ...

    def on_caught_up(self) -> None:
        """Learn that all that was in the table when following began has been delivered."""
        ...


class SharedTable(Protocol):
    """The newest value of each key, which everybody may write and follow: bindings of sessions,
    agents of programs, homes of conversations.

    The last writer wins; a value that nobody writes again expires after the table's `ttl_s`.
    """

    def put(self, key: str, value: bytes) -> None:
        """Write, never waiting; lost in silence while disconnected: write it again when used."""
        ...

    async def follow(self, listener: TableListener) -> Subscription:
        """Deliver what is in the table, then what is written, through every reconnect."""
        ...


Handler = Callable[[Any], Awaitable[object]]
"""Takes the command of the type it is mapped from, returns what msgpack can encode, or None.

Commands to one subject run one after another, in order: a long job answers first and runs on.
"""

ASK_TIMEOUT_S = 5.0
"""Long enough for who is asked to load what answers: on a busy machine a second."""


class Control(Protocol):
    """Rare commands with an answer: to drain, to send a dump, to take a snapshot."""

    async def ask(
        self, subject: str, command: Message, result: type[T], *, timeout_s: float = ASK_TIMEOUT_S
    ) -> T:
        """Return the result of `command` at whoever listens on `subject`.

        Raises `TransportError` when nobody listens, the answer is late (the command may have been
        done), or the other side refused; `CodecError` for an answer of another type.
        """
        ...

    async def close(self) -> None:
        """Stop listening, after the commands under way; safe to call twice."""
        ...


class Refusals(msgspec.Struct, frozen=True):
    """What was not believed. `verifies`: whether this process looks at signatures; None: it signs
    nothing itself. `counts` since the start, by reason and kind of message; `skews_s`: whose clock
    is wrong now, and by how many seconds it is ahead. `lines` say what goes on now.
    """

    verifies: bool | None = None
    counts: Mapping[tuple[str, str], int] = {}
    skews_s: Mapping[str, float] = {}
    lines: tuple[str, ...] = ()


class EventPlane(Protocol):
    """A process's one connection to its mesh, and everything that goes over it.

    Made by `app.mesh.plane`, which alone knows the transport. Before `connect` returns
    only `on_change`, `waiting` and `warnings` may be used. What it opens it closes with itself;
    subscriptions and controls are closed by who opened them.
    """

    bus: Bus

    @property
    def connected(self) -> bool:
        """Return whether messages can be sent now."""
        ...

    async def connect(self, *, patient: bool = False) -> None:
        """Connect, and try for some seconds; `patient`: until the server is there.

        Raises `ConfigError` or `TransportError` for what waiting will not cure: a bad URL, a
        refused login.
        """
        ...

    async def close(self) -> None:
        """Send what is queued, then disconnect for good; safe to call twice."""
        ...

    def on_change(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Call `listener(up)` after each disconnect and reconnect; the result undoes it."""
        ...

    def waiting(self) -> str:
        """Return what a patient start waits for, in words for a probe; "" for nothing."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """Return what the server refuses now, and what is not believed, one line each."""
        ...

    def unverified(self) -> Refusals:
        """Return what came and was not believed; nothing where nothing is signed."""
        ...

    async def journal(self, bucket: str, *, ensure: bool = True) -> Journal:
        """Return the bucket's event stream, open; with `ensure` it is made or adapted.

        Who may only append passes False. Raises `TransportError`.
        """
        ...

    async def usage(self, bucket: str) -> Journal:
        """Return the record of what was used in the bucket, made or adapted.

        Raises `TransportError`.
        """
        ...

    async def stores(self, bucket: str) -> tuple[KeyValue, ObjectStore]:
        """Return the mesh's leases and manifests, and the bucket's snapshots, made or adapted.

        Raises `TransportError`.
        """
        ...

    async def sessions(self, bucket: str, ttl_s: int) -> SharedTable:
        """Return the bucket's table of sessions, made or adapted. Raises `TransportError`."""
        ...

    async def programs(self, bucket: str, ttl_s: int, max_keys: int) -> SharedTable:
        """Return the bucket's table of agents and their caches, made or adapted.

        It keeps the last `max_keys` written. Raises `TransportError`.
        """
        ...

    async def ids(self, bucket: str, ttl_s: int, max_keys: int) -> SharedTable:
        """Return the bucket's table of whose ids of files and answers are, made or adapted.

        It keeps the last `max_keys` written. Raises `TransportError`.
        """
        ...

    async def homes(self, ttl_s: int, max_keys: int) -> SharedTable:
        """Return the meta-routers' table of where conversations are, made or adapted.

        It keeps the last `max_keys` written. Raises `TransportError`.
        """
        ...

    async def control(
        self,
        subjects: Sequence[str] = (),
        handlers: Mapping[type[Message], Handler] = {},
    ) -> Control:
        """Answer commands on `subjects` by `handlers` from now on; without subjects: ask only.

        The keys of `handlers` are tagged structs (`actors.messages`). Raises `TransportError`.
        """
        ...

    async def declare(self, bucket: str, session_ttl_s: int) -> None:
        """Make all that a bucket needs, adapt what differs; safe to call again.

        For the one account that may, where routers and workers may not. Raises `TransportError`.
        """
        ...

    async def keep(self) -> None:
        """Make anew, for ever, what this process made or adapted and somebody deletes."""
        ...

    async def warn_of_risks(self) -> None:
        """Say in the log what acknowledged events could still be lost to. Never raises."""
        ...
