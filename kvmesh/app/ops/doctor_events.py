"""One engine event publisher, listened to for a moment by `kvmesh doctor`."""

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

from kvmesh.core.engines.engine_events import EngineBatch, EngineStored
from kvmesh.core.engines.facts import EventEndpoint
from kvmesh.core.engines.seen import GroupSeen, SourceSeen
from kvmesh.errors import CodecError, TransportError
from kvmesh.transport.zmq.subscriber import EventSubscription, SubscriptionOptions

CONNECT_TIMEOUT_S = 2.0
POLL_S = 0.02


class SourceWatch:
    """Listens to one publisher and counts. An `EventListener`."""

    def __init__(
        self,
        endpoint: EventEndpoint,
        decode: Callable[[bytes], EngineBatch],
        *,
        topic: str,
        bind: bool,
    ) -> None:
        self._decode = decode
        self.endpoint = endpoint
        self.connected = False
        self.replay_connected = True
        self.stored_blocks = 0
        self._batches = self._undecodable = self._unknown = self._odd = 0
        self._groups: dict[int, GroupSeen] = {}
        self._why = ""
        # Live only: the replay of a busy engine's whole history would be no small thing to ask.
        options = SubscriptionOptions(endpoint.endpoint, topic=topic or endpoint.topic, bind=bind)
        self._subscription = EventSubscription(options, self)

    async def open(self) -> None:
        """Connect to both sockets, as far as somebody answers in time."""
        try:
            self._subscription.start()
        except TransportError:
            return
        if self.endpoint.replay:
            self.replay_connected = await _accepts(self.endpoint.replay)
        await until(lambda: self.connected, CONNECT_TIMEOUT_S)

    def close(self) -> None:
        """Stop listening."""
        self._subscription.close()

    def seen(self) -> SourceSeen:
        """Return the counts."""
        groups = tuple(group for _, group in sorted(self._groups.items()))
        deciding = [group for group in groups if group.full] or groups
        return SourceSeen(
            rank=self.endpoint.rank,
            endpoint=self.endpoint.endpoint,
            replay=self.endpoint.replay,
            connected=self.connected,
            replay_connected=self.replay_connected,
            batches=self._batches,
            undecodable=self._undecodable,
            stored_blocks=self.stored_blocks,
            block_sizes=tuple(sorted({group.block_size for group in deciding})),
            groups=groups,
            unknown=self._unknown,
            odd=self._odd,
            why=self._why,
        )

    def on_batch(self, seq: int, payload: bytes) -> None:
        """Count what is in it."""
        del seq
        self._batches += 1
        try:
            batch = self._decode(payload)
        except CodecError as error:
            self._undecodable += 1
            self._why = str(error)
            return
        self._unknown += batch.unknown_fields + batch.unknown_tags
        self._odd += len(batch.odd)
        self._why = next(iter(batch.odd), self._why)
        for event in batch.events:
            if isinstance(event, EngineStored) and event.tokens:
                self.stored_blocks += len(event.hashes)
                self._groups.setdefault(
                    event.group,
                    GroupSeen(event.group, event.kind or "", event.block_size, event.window or 0),
                )

    def on_restarted(self) -> None:
        """Of no matter here."""

    def on_lost(self, first: int, last: int) -> None:
        """Of no matter here."""

    def on_resumed(self, seq: int) -> None:
        """Of no matter here."""

    def on_caught_up(self, last_seq: int) -> None:
        """Of no matter here."""

    def on_connection(self, *, connected: bool) -> None:
        """Remember that somebody answered."""
        self.connected = self.connected or connected


async def _accepts(endpoint: str) -> bool:
    """Return whether somebody listens at a tcp endpoint; others cannot be tried cheaply."""
    parts = urlsplit(endpoint)
    if parts.scheme != "tcp" or parts.hostname is None or parts.port is None:
        return True
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def until(condition: Callable[[], object], within_s: float) -> None:
    """Return when `condition` holds or time is up."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110  what is awaited happens in sockets
        await asyncio.sleep(POLL_S)
