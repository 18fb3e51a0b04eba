"""What stands in for a NATS server in memory: shared by all clients, able to fail on purpose."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from kvmesh.errors import TransportError
from kvmesh.ports import Entry, ObjectInfo, Record, StreamState


class MemoryStream:
    """One journal's messages: `records[i]` has sequence `first + i`."""

    def __init__(self, created: str) -> None:
        self.created = created
        self.first = 1
        self.records: list[Record] = []
        self.ids: dict[str, int] = {}

    @property
    def last(self) -> int:
        """Return the last sequence ever given, purged or not."""
        return self.first + len(self.records) - 1

    def state(self) -> StreamState:
        """Return it in the words of the port."""
        return StreamState(self.created, self.first, self.last, len(self.records))

    def store(self, subject: str, data: bytes) -> int:
        """Append, return the sequence."""
        sequence = self.last + 1
        self.records.append(Record(sequence, subject, data))
        return sequence

    def purge(self, up_to: int) -> int:
        """Delete sequences <= `up_to`, return how many."""
        count = min(max(up_to - self.first + 1, 0), len(self.records))
        del self.records[:count]
        self.first += count
        return count


class TimedEntry(msgspec.Struct, frozen=True):
    """A key's entry; `expires_s` in seconds of the server's clock."""

    entry: Entry
    expires_s: float


class Observer(Protocol):
    """Who wants to know that something changed at the server."""

    def wake(self) -> None:
        """Look again, in a later turn of the event loop."""
        ...


class BusMember(Protocol):
    """A bus subscription."""

    def offer(self, subject: str, data: bytes) -> None:
        """Take the message in a later turn of the event loop, if the pattern matches."""
        ...


class CommandListener(Protocol):
    """Who answers commands."""

    def command(self, subject: str, body: bytes) -> "asyncio.Task[bytes]":
        """Carry out a command, in its turn; the result is the answer's bytes."""
        ...


class MemoryServer:
    """The shared state of every memory client; clients that share it are one mesh.

    `clock` gives seconds since 1970, for expiry and times of modification. Set `drop_acks` to lose
    the acks of appends, `lose_appends` the messages too.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.up = True
        self.drop_acks = False
        self.lose_appends = False
        self.streams: dict[str, MemoryStream] = {}
        self.buckets: dict[str, dict[str, TimedEntry]] = {}
        self.objects: dict[str, dict[str, tuple[bytes, ObjectInfo]]] = {}
        self.orphans: dict[str, list[float]] = {}
        self.revision = 0
        self._streams_made = 0
        self._observers: dict[Observer, None] = {}
        self._members: dict[BusMember, None] = {}
        self._commands: dict[str, CommandListener] = {}

    def set_up(self, *, up: bool) -> None:
        """Take the server away, or bring it back with all it stored."""
        self.up = up
        self.wake()

    def make_stream(self, name: str) -> MemoryStream:
        """Make the stream, or delete it and make an empty one."""
        self._streams_made += 1
        stream = self.streams[name] = MemoryStream(f"memory-{self._streams_made}")
        self.wake()
        return stream

    def delete_stream(self, name: str) -> None:
        """Delete the stream and all in it."""
        del self.streams[name]
        self.wake()

    def truncate(self, name: str, last: int) -> None:
        """Lose everything behind sequence `last`, as the crash of an operating system would."""
        stream = self.streams[name]
        del stream.records[max(last - stream.first + 1, 0) :]
        self.wake()

    def require_up(self, what: str) -> None:
        """Raise `TransportError` while the server is away."""
        if not self.up:
            raise TransportError(f"{what}: the memory server is down")

    def stream(self, name: str) -> MemoryStream:
        """Return the stream. Raises `TransportError` when there is none or the server is away."""
        self.require_up(name)
        if name not in self.streams:
            raise TransportError(f"stream {name} does not exist: open its journal with ensure=True")
        return self.streams[name]

    def wake(self) -> None:
        """Tell every observer that something changed."""
        for observer in list(self._observers):
            observer.wake()

    def observe(self, observer: Observer) -> None:
        """Wake `observer` at every change, until `forget`."""
        self._observers[observer] = None

    def forget(self, observer: Observer) -> None:
        """Undo `observe`; safe to call twice."""
        self._observers.pop(observer, None)

    def join(self, member: BusMember) -> None:
        """Offer every published message to `member`, until `leave`."""
        self._members[member] = None

    def leave(self, member: BusMember) -> None:
        """Undo `join`; safe to call twice."""
        self._members.pop(member, None)

    def listen(self, subject: str, listener: CommandListener) -> None:
        """Let `listener` answer commands to `subject`, until `unlisten`."""
        self._commands[subject] = listener

    def unlisten(self, subject: str, listener: CommandListener) -> None:
        """Undo `listen`; safe to call twice."""
        if self._commands.get(subject) is listener:
            del self._commands[subject]

    def listener(self, subject: str) -> CommandListener | None:
        """Return who answers commands to `subject`."""
        return self._commands.get(subject)

    def publish(self, subject: str, data: bytes) -> None:
        """Offer a bus message to every subscription, in the order they joined."""
        for member in self._members:
            member.offer(subject, data)
