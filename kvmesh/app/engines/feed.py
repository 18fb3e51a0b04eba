"""From an engine's event stream to its publisher's mailbox."""

from kvmesh.actors.engine_messages import EngineLost, EnginePayload, EngineRestarted
from kvmesh.observe import get_logger
from kvmesh.runtime.aio import AioDriver


class EngineFeed:
    """Takes one rank's events to its publisher. An `EventListener`."""

    def __init__(self, driver: AioDriver, to: str) -> None:
        self._driver = driver
        self._to = to
        self._log = get_logger(source=to)

    def on_batch(self, seq: int, payload: bytes) -> None:
        """Pass a batch on; with a full mailbox this waits by working it off."""
        del seq
        self._driver.press(self._to, EnginePayload(payload))

    def on_restarted(self) -> None:
        """Pass on that the engine began anew."""
        self._log.warning("engine restarted")
        self._driver.press(self._to, EngineRestarted())

    def on_lost(self, first: int, last: int) -> None:
        """Pass on that batches are gone for good."""
        self._driver.press(self._to, EngineLost(f"batches {first}..{last} cannot be replayed"))

    def on_caught_up(self, last_seq: int) -> None:
        """Say so."""
        self._log.debug("engine events caught up", last_seq=last_seq)

    def on_connection(self, *, connected: bool) -> None:
        """Say so."""
        self._log.info("engine events", connected=connected)
