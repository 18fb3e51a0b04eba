"""From an engine's event stream to its publisher's mailbox."""

from kvmesh.actors.checkpoints import EngineResumed
from kvmesh.actors.engine_messages import (
    EngineCaughtUp,
    EngineConnected,
    EngineLost,
    EnginePayload,
    EngineRestarted,
)
from kvmesh.app.process.aio import AioDriver
from kvmesh.core.engines.kv_events.checkpoint import EngineCheckpoint
from kvmesh.observe import get_logger


class EngineFeed:
    """Takes one rank's events to its publisher. An `EventListener`.

    `replays`: what the engine published before can be had, so a new connection has to catch up.
    `offered` is what an earlier sidecar knew, while its batch is asked for.
    """

    def __init__(self, driver: AioDriver, to: str, *, replays: bool = False) -> None:
        self.offered: EngineCheckpoint | None = None
        self._driver = driver
        self._to = to
        self._replays = replays
        self._log = get_logger(source=to)

    def on_batch(self, seq: int, payload: bytes) -> None:
        """Pass a batch on; with a full mailbox this waits by working it off."""
        self._driver.press(self._to, EnginePayload(payload, seq))

    def on_restarted(self) -> None:
        """Pass on that the engine began anew."""
        self._log.warning("engine restarted")
        self._driver.press(self._to, EngineRestarted())
        if self._replays:
            self._driver.press(self._to, EngineConnected(connected=True))

    def on_lost(self, first: int, last: int) -> None:
        """Pass on that batches are gone for good."""
        self._driver.press(self._to, EngineLost(f"batches {first}..{last} cannot be replayed"))

    def on_resumed(self, seq: int) -> None:
        """Pass on that what was offered counts."""
        offered, self.offered = self.offered, None
        assert offered is not None
        assert offered.seq == seq
        self._driver.press(self._to, EngineResumed(offered))

    def on_caught_up(self, last_seq: int) -> None:
        """Pass it on, and log it."""
        self._log.debug("engine events caught up", last_seq=last_seq)
        self._driver.press(self._to, EngineCaughtUp())

    def on_connection(self, *, connected: bool) -> None:
        """Say so, and pass on that events may be missing until all was replayed."""
        self._log.info("engine events", connected=connected)
        if self._replays:
            self._driver.press(self._to, EngineConnected(connected=connected))
