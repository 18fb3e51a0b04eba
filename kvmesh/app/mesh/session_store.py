"""The bindings of sessions in a NATS KV bucket: shared by a bucket's replicas, kept over restarts.

A KV bucket is a stream with one message a key: it is followed as the journal is, from its start.
"""

import asyncio
import contextlib
import time
from typing import Final

from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh.nats_link import session_bucket
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.sessions import Sessions
from kvmesh.observe import get_logger
from kvmesh.ports import Record, StreamState
from kvmesh.settings.roles import NatsSettings
from kvmesh.transport.nats.journal.log import JournalOptions, NatsJournal
from kvmesh.transport.nats.link.connection import NatsConnection
from kvmesh.transport.nats.stores.kv import KeyValueOptions, NatsKeyValue

TELL_EVERY_S: Final = 0.02
"""A session's next request comes long after: so many bindings may be told at once."""

READ_S: Final = 10.0
"""How long a start waits for the bindings of before."""


class SessionStore:
    """Tells the store of this replica's bindings, and `sessions` of all replicas'."""

    def __init__(
        self,
        sessions: Sessions,
        settings: NatsSettings,
        connection: NatsConnection,
        subjects: Subjects,
    ) -> None:
        self._sessions = sessions
        bucket = session_bucket(subjects)
        self._prefix = f"$KV.{bucket}."
        ttl_s, replicas = int(sessions.options.ttl_s), settings.stream_replicas
        self._keys = NatsKeyValue(
            connection, KeyValueOptions(bucket=bucket, replicas=replicas, max_age_s=ttl_s)
        )
        self._journal = NatsJournal(
            connection,
            JournalOptions(stream=f"KV_{bucket}", subjects=(f"{self._prefix}>",)),
        )
        self._caught_up = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()
        self._log = get_logger()

    def config(self) -> dict[str, object]:
        """Return the configuration of the bucket's stream."""
        return self._keys.options.to_config()

    async def start(self) -> None:
        """Make the bucket, read what is in it, then follow it. Raises `TransportError`."""
        await self._keys.open()
        await self._journal.open(ensure=False)
        self._stack.push_async_callback(self._journal.close)
        tail = await self._journal.tail(0, "", self)
        self._stack.push_async_callback(tail.close)
        telling = asyncio.create_task(self._tell(), name="tell sessions")
        self._stack.callback(telling.cancel)
        try:
            await asyncio.wait_for(self._caught_up.wait(), READ_S)
        except TimeoutError:
            self._log.warning("sessions of before are not read yet", waited_s=READ_S)

    async def stop(self) -> None:
        """Tell what is left, and stop following."""
        self._flush()
        await self._stack.aclose()

    def on_record(self, record: Record) -> None:
        """Learn a binding; an empty one is a marker of its end."""
        if record.data:
            key = record.subject[len(self._prefix) :]
            worker = WorkerId(record.data.decode("utf-8", "replace"))
            self._sessions.learn(key, worker, time.monotonic())

    def on_gap(self, first: int, last: int) -> None:
        """Nothing is lost: what was written anew leaves a gap where it stood."""

    def on_recreated(self, state: StreamState) -> None:
        """Go on with what is known."""

    def on_caught_up(self, sequence: int) -> None:
        """Let the start go on."""
        self._log.info("sessions read", sequence=sequence)
        self._caught_up.set()

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            self._flush()

    def _flush(self) -> None:
        """Write the news. One that gets lost is written again when its session goes on."""
        news, self._sessions.news = self._sessions.news, {}
        for key, worker in news.items():
            self._journal.append(f"{self._prefix}{key}", worker.encode(), _nothing)


def _nothing(sequence: int) -> None:
    """Need no word of the store."""
