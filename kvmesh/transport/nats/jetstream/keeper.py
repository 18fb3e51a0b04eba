"""Streams that somebody deletes while routers use them are made anew."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from kvmesh.errors import TransportError
from kvmesh.observe import get_logger
from kvmesh.tasks import to_next
from kvmesh.transport.nats.jetstream.api import (
    STREAM_NOT_FOUND,
    ApiError,
    JetStream,
    StreamInfo,
)
from kvmesh.transport.nats.link.connection import NatsConnection

LOOK_S: Final = 3.0
TIMEOUT_S: Final = 2.0


class StreamKeeper:
    """Looks whether the streams are there: the journal, and those of key-value and object buckets.

    What was in a deleted one is gone; who reads it notices by its `created`.
    """

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._jetstream = JetStream(connection, timeout_s=TIMEOUT_S)
        self._configs: list[Mapping[str, Any]] = []
        self._log = get_logger()

    def keep(self, config: Mapping[str, Any]) -> None:
        """Look after one more stream, which is there now."""
        self._configs.append(config)

    async def run(self) -> None:
        """Look every 3 s, for ever."""
        while True:
            await asyncio.sleep(to_next(LOOK_S))
            if self._connection.connected:
                await asyncio.gather(*(self._check(config) for config in self._configs))

    async def _check(self, config: Mapping[str, Any]) -> None:
        name, troubles = config["name"], self._connection.troubles
        try:
            await self._find(name, config)
        except TransportError as error:
            # The connection's own end is said elsewhere.
            if self._connection.connected:
                troubles.begin(f"stream {name}", str(error))
        else:
            troubles.end(f"stream {name}")

    async def _find(self, name: str, config: Mapping[str, Any]) -> None:
        try:
            await self._jetstream.stream_info(name)
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            self._connection.troubles.begin(f"stream {name}", "it was deleted")
            await self._jetstream.call(f"STREAM.CREATE.{name}", config, StreamInfo)
            self._log.warning("stream was deleted and is made again", stream=name)
