"""The event plane on NATS: one connection, and all a mesh keeps and says over it."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from kvmesh.actors.kernel import Message
from kvmesh.actors.wire import Subjects
from kvmesh.core.programs.shared import MAX_PROGRAMS, PROGRAM_TTL_S
from kvmesh.core.routing.kept_ids import KeptIdOptions
from kvmesh.ports import Bus, Control, Handler, Refusals
from kvmesh.transport.nats.jetstream.durability import check_durability, warn_of_one_copy
from kvmesh.transport.nats.jetstream.journal import JournalOptions, NatsJournal
from kvmesh.transport.nats.jetstream.keeper import StreamKeeper
from kvmesh.transport.nats.jetstream.kv import KeyValueOptions, NatsKeyValue
from kvmesh.transport.nats.jetstream.objects import NatsObjects, ObjectOptions
from kvmesh.transport.nats.jetstream.table import NatsTable
from kvmesh.transport.nats.layout import (
    home_bucket,
    id_bucket,
    meta_bucket,
    program_bucket,
    session_bucket,
    snapshot_bucket,
    usage_stream,
)
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from kvmesh.transport.nats.link.control import ControlPlane

USAGE_PART: Final = 8
USAGE_AGE_S: Final = 8 * 86_400
"""A bucket's record of usage has such a part of the bytes of its event stream, and no older
batches: the oldest go first.
"""

USAGE_DUPLICATES_S: Final = 600
"""For so long a batch that is sent again is not stored again."""


class PlaneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How streams are kept. `max_bytes` and `max_age_s` bound a bucket's event stream.

    `monitoring_url` is where `warn_of_risks` asks; "": port 8222 of the server's host.
    """

    namespace: str
    connection: NatsOptions = NatsOptions()
    replicas: int = 1
    max_bytes: int = 2 * 1024**3
    max_age_s: int = 24 * 3600
    monitoring_url: str = ""


class NatsPlane:
    """The `EventPlane` of one process."""

    def __init__(self, options: PlaneOptions) -> None:
        self.connection = NatsConnection(options.connection)
        self.bus: Bus = NatsBus(self.connection)
        self._options = options
        self._keeper = StreamKeeper(self.connection)
        self._open = contextlib.AsyncExitStack()

    @property
    def connected(self) -> bool:
        """Return whether messages can be sent now."""
        return self.connection.connected

    async def connect(self, *, patient: bool = False) -> None:
        """Connect: see `NatsConnection.connect` and, when `patient`, `connect_patiently`."""
        if patient:
            await self.connection.connect_patiently()
        else:
            await self.connection.connect()

    async def close(self) -> None:
        """Send what is queued (2 s at most), then disconnect for good; safe to call twice."""
        await self._open.aclose()
        await self.connection.close()

    def on_change(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Call `listener(up)` after each disconnect and reconnect; the result undoes it."""
        return self.connection.on_change(listener)

    def waiting(self) -> str:
        """Return what a patient start waits for: the server, or JetStream on it."""
        return self.connection.waits.reason

    def warnings(self) -> tuple[str, ...]:
        """Return what JetStream refuses now, and what is not believed, one line each."""
        return (*self.connection.troubles.warnings(), *self.connection.signing.warnings())

    def unverified(self) -> Refusals:
        """Return what came and was not believed."""
        return self.connection.signing.unverified()

    async def journal(self, bucket: str, *, ensure: bool = True) -> NatsJournal:
        """Return the bucket's event stream, open. Raises `TransportError`."""
        options, subjects = self._options, self._subjects(bucket)
        return await self._stream(
            JournalOptions(
                stream=subjects.stream(),
                subjects=(subjects.events(),),
                replicas=options.replicas,
                max_bytes=options.max_bytes,
                max_age_s=options.max_age_s,
            ),
            ensure=ensure,
        )

    async def usage(self, bucket: str) -> NatsJournal:
        """Return the bucket's record of usage, open. Raises `TransportError`."""
        subjects = self._subjects(bucket)
        return await self._stream(
            JournalOptions(
                stream=usage_stream(subjects),
                subjects=(subjects.usage(),),
                replicas=self._options.replicas,
                max_bytes=self._options.max_bytes // USAGE_PART,
                max_age_s=USAGE_AGE_S,
                duplicates_s=USAGE_DUPLICATES_S,
            )
        )

    async def _stream(self, options: JournalOptions, *, ensure: bool = True) -> NatsJournal:
        journal = NatsJournal(self.connection, options)
        await journal.open(ensure=ensure)
        self._open.push_async_callback(journal.close)
        if ensure:
            self._keeper.keep(options.to_config())
        return journal

    async def stores(self, bucket: str) -> tuple[NatsKeyValue, NatsObjects]:
        """Return the KV bucket of the mesh and the object bucket of the bucket's snapshots."""
        objects = NatsObjects(
            self.connection,
            ObjectOptions(
                bucket=snapshot_bucket(self._subjects(bucket)), replicas=self._options.replicas
            ),
        )
        keys = NatsKeyValue(
            self.connection,
            KeyValueOptions(
                bucket=meta_bucket(self._options.namespace), replicas=self._options.replicas
            ),
        )
        await keys.open()
        await objects.open()
        for store in (keys.options, objects.options):
            self._keeper.keep(store.to_config())
        return keys, objects

    async def sessions(self, bucket: str, ttl_s: int) -> NatsTable:
        """Return the KV bucket of the bucket's sessions. Raises `TransportError`."""
        return await self._table(
            KeyValueOptions(
                bucket=session_bucket(self._subjects(bucket)),
                replicas=self._options.replicas,
                max_age_s=ttl_s,
            )
        )

    async def programs(self, bucket: str, ttl_s: int, max_keys: int) -> NatsTable:
        """Return the KV bucket of the bucket's agents. Raises `TransportError`."""
        return await self._table(
            KeyValueOptions(
                bucket=program_bucket(self._subjects(bucket)),
                replicas=self._options.replicas,
                max_age_s=ttl_s,
                max_keys=max_keys,
            )
        )

    async def ids(self, bucket: str, ttl_s: int, max_keys: int) -> NatsTable:
        """Return the KV bucket of whose ids are. Raises `TransportError`."""
        return await self._table(
            KeyValueOptions(
                bucket=id_bucket(self._subjects(bucket)),
                replicas=self._options.replicas,
                max_age_s=ttl_s,
                max_keys=max_keys,
            )
        )

    async def homes(self, ttl_s: int, max_keys: int) -> NatsTable:
        """Return the KV bucket of where conversations are. Raises `TransportError`."""
        return await self._table(
            KeyValueOptions(
                bucket=home_bucket(self._options.namespace),
                replicas=self._options.replicas,
                max_age_s=ttl_s,
                max_keys=max_keys,
            )
        )

    async def _table(self, options: KeyValueOptions) -> NatsTable:
        table = NatsTable(self.connection, options)
        await table.open()
        self._open.push_async_callback(table.close)
        self._keeper.keep(options.to_config())
        return table

    async def control(
        self,
        subjects: Sequence[str] = (),
        handlers: Mapping[type[Message], Handler] = {},
    ) -> Control:
        """Answer commands on `subjects` from now on. Raises `TransportError`."""
        control = ControlPlane(self.connection, subjects, handlers)
        try:
            await control.start()
        except BaseException:
            await control.close()
            raise
        return control

    async def declare(self, bucket: str, session_ttl_s: int) -> None:
        """Make the bucket's streams and those of the mesh. Raises `TransportError`."""
        await self.stores(bucket)
        await self.journal(bucket)
        await self.sessions(bucket, session_ttl_s)
        await self.programs(bucket, PROGRAM_TTL_S, MAX_PROGRAMS)
        ids = KeptIdOptions()
        await self.ids(bucket, int(ids.ttl_s), ids.max_ids)
        await self.usage(bucket)

    async def keep(self) -> None:
        """Look every 3 s, for ever, whether the streams are there that this process made."""
        await self._keeper.run()

    async def warn_of_risks(self) -> None:
        """Say what acknowledged events could still be lost to: one copy, a power cut."""
        warn_of_one_copy(self.connection, self._options.replicas)
        await check_durability(self.connection, self._options.monitoring_url)

    def _subjects(self, bucket: str) -> Subjects:
        return Subjects(self._options.namespace, bucket)
