"""A table that all write and follow: a KV bucket, which is a stream with one message a key.

It is followed as the journal is, from its start, and written without waiting for the answer.
"""

from kvmesh.ports import Record, StreamState, TableListener
from kvmesh.transport.nats.jetstream.journal import JournalOptions, NatsJournal
from kvmesh.transport.nats.jetstream.kv import KeyValueOptions, NatsKeyValue
from kvmesh.transport.nats.jetstream.tail import NatsTail
from kvmesh.transport.nats.link.connection import NatsConnection


class NatsTable:
    """The `SharedTable` in one KV bucket. Call `open` first."""

    def __init__(self, connection: NatsConnection, options: KeyValueOptions) -> None:
        self.options = options
        self._keys = NatsKeyValue(connection, options)
        self._prefix = f"$KV.{options.bucket}."
        stream = JournalOptions(stream=f"KV_{options.bucket}", subjects=(f"{self._prefix}>",))
        self._journal = NatsJournal(connection, stream)

    async def open(self) -> None:
        """Make the bucket or adapt its settings. Raises `TransportError`."""
        await self._keys.open()
        await self._journal.open(ensure=False)

    async def close(self) -> None:
        """Stop listening for acks; who follows closes that."""
        await self._journal.close()

    def put(self, key: str, value: bytes) -> None:
        """Write, never waiting; lost in silence while disconnected."""
        self._journal.append(f"{self._prefix}{key}", value, _nothing)

    async def follow(self, listener: TableListener) -> NatsTail:
        """Deliver what is in the table, then what is written, through every reconnect."""
        return await self._journal.tail(0, "", _Follower(len(self._prefix), listener))


class _Follower:
    """Turns the stream's records into keys and values."""

    def __init__(self, prefix_length: int, listener: TableListener) -> None:
        self._prefix_length = prefix_length
        self._listener = listener

    def on_record(self, record: Record) -> None:
        """Pass a value on; an empty one is a marker of its end."""
        if record.data:
            self._listener.on_value(record.subject[self._prefix_length :], record.data)

    def on_gap(self, first: int, last: int) -> None:
        """Nothing is lost: what was written anew leaves a gap where it stood."""

    def on_recreated(self, state: StreamState) -> None:
        """Go on with what is known."""

    def on_caught_up(self, sequence: int) -> None:
        """Pass it on."""
        del sequence
        self._listener.on_caught_up()


def _nothing(sequence: int) -> None:
    """Need no word of the store."""
