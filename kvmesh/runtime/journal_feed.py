"""Brings a journal's tail to an actor."""

from kvmesh.actors.messages import (
    CaughtUp,
    JournalGap,
    JournalOpened,
    JournalRecord,
    JournalRecreated,
)
from kvmesh.actors.wire import last_token
from kvmesh.core.events import WorkerId
from kvmesh.ports import Journal, Record, StreamState, Subscription
from kvmesh.runtime.aio import AioDriver


class JournalFeed:
    """A `TailListener` that turns what it hears into messages for the actor `to`, in order."""

    def __init__(self, driver: AioDriver, to: str = "indexer") -> None:
        self._driver = driver
        self._to = to

    async def open(self, journal: Journal, after: int = 0, created: str = "") -> Subscription:
        """Start to deliver everything behind sequence `after`. Raises `TransportError`.

        `created` is the stream that `after` belongs to, "" when nothing was read yet.
        """
        if not created:
            created = (await journal.state()).created
            self._driver.press(self._to, JournalOpened(created))
        return await journal.tail(after, created, self)

    def on_record(self, record: Record) -> None:
        """Pass a record on; with a full mailbox this waits by working it off."""
        worker = WorkerId(last_token(record.subject))
        self._driver.press(self._to, JournalRecord(record.sequence, worker, record.data))

    def on_gap(self, first: int, last: int) -> None:
        """Pass on that records are gone unread."""
        self._driver.press(self._to, JournalGap(first, last))

    def on_recreated(self, state: StreamState) -> None:
        """Pass on that the journal is another one now."""
        self._driver.press(self._to, JournalRecreated(state.created))

    def on_caught_up(self, sequence: int) -> None:
        """Pass on that the history has been delivered."""
        self._driver.press(self._to, CaughtUp(sequence))
