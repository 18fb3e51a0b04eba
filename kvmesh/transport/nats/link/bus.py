"""Fire-and-forget messages on core NATS."""

from collections.abc import Callable

import msgspec
import nats.errors

from kvmesh.actors.wire import fixed_part
from kvmesh.observe import get_logger
from kvmesh.transport.nats.link.client import NatsClient
from kvmesh.transport.nats.link.connection import NatsConnection

QUIET_DROPS = 1000


class BusStatistics(msgspec.Struct, frozen=True):
    """Counts since the process started. `dropped` were never sent. `strangers` came with another
    subject than was subscribed to: a consumer of JetStream delivered them here.
    """

    published: int
    dropped: int
    delivered: int
    strangers: int = 0


class NatsSubscription:
    """A running core subscription."""

    def __init__(self, client: NatsClient, number: int) -> None:
        self._client = client
        self._number = number

    async def close(self) -> None:
        """Stop delivering; safe to call twice."""
        await self._client.unlisten(self._number)


class NatsBus:
    """The `Bus`. What cannot be sent now is dropped and counted: late it would be a lie."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._client = connection.client
        self._published = self._dropped = self._delivered = self._strangers = 0
        self._log = get_logger()

    def publish(self, subject: str, data: bytes) -> None:
        """Send, never waiting; dropped and counted when disconnected or over the buffer."""
        try:
            self._client.publish_nowait(subject, data)
        except nats.errors.Error as error:
            self._dropped += 1
            if self._dropped % QUIET_DROPS == 1:
                self._log.warning(
                    "message dropped", subject=subject, error=str(error), count=self._dropped
                )
            return
        self._published += 1

    async def subscribe(
        self, pattern: str, deliver: Callable[[str, bytes], None]
    ) -> NatsSubscription:
        """Deliver `(subject, data)` of every message matching `pattern`, across reconnects.

        What a consumer delivers there keeps the subject it was stored under, and is ignored.
        On return the server knows, so that what anybody publishes from now on is delivered.
        """
        prefix = fixed_part(pattern)

        def on_message(subject: str, _reply: bytes, data: bytes, _headers: bytes | None) -> None:
            if not subject.startswith(prefix):
                self._ignore(pattern, subject)
                return
            self._delivered += 1
            deliver(subject, data)

        number = await self._client.listen(pattern, on_message)
        await self._connection.flush()
        return NatsSubscription(self._client, number)

    def _ignore(self, pattern: str, subject: str) -> None:
        self._strangers += 1
        if self._strangers % QUIET_DROPS == 1:
            self._log.warning(
                "message of another subject ignored",
                pattern=pattern,
                subject=subject,
                count=self._strangers,
            )

    def statistics(self) -> BusStatistics:
        """Return counts for metrics."""
        return BusStatistics(
            published=self._published,
            dropped=self._dropped,
            delivered=self._delivered,
            strangers=self._strangers,
        )
