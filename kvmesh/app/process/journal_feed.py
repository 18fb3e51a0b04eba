"""Brings a journal's tail to an actor."""

import asyncio
import time
from functools import partial

from kvmesh.actors.kernel import Effect
from kvmesh.actors.messages import (
    CaughtUp,
    JournalGap,
    JournalOpened,
    JournalRecord,
    JournalRecreated,
)
from kvmesh.actors.storage import OpenTail
from kvmesh.actors.wire import last_token
from kvmesh.app.process.aio import AioDriver
from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import TransportError
from kvmesh.ports import Journal, Record, StreamState, Subscription
from kvmesh.tasks import end_tasks, supervise

RETRY_S = 1.0
"""Pause after a tail could not be opened for an actor's wish."""


class JournalFeed:
    """Turns what a tail hears into messages for the actor `to`, in order, none lost.

    `open` again to read from elsewhere: the old tail ends, `JournalOpened` parts what it delivered
    from what the new one will. An actor's `OpenTail` does so, on the same journal.
    """

    def __init__(self, driver: AioDriver, to: str = "indexer") -> None:
        self._driver = driver
        self._to = to
        self._journal: Journal | None = None
        self._subscription: Subscription | None = None
        self._reopening: asyncio.Task[None] | None = None
        driver.carry(OpenTail, self._carry)

    def attach(self, journal: Journal) -> None:
        """Say which journal an actor's `OpenTail` means; nothing is delivered before that wish."""
        self._journal = journal

    async def open(self, journal: Journal, after: int = 0, created: str = "") -> Subscription:
        """Deliver everything behind sequence `after` from now on. Raises `TransportError`.

        `created` is the stream that `after` belongs to, "" when nothing was read yet.
        """
        await self._end_tail()
        self._journal = journal
        if not created:
            created = (await journal.state()).created
        self._driver.press(self._to, JournalOpened(created))
        self._subscription = await journal.tail(after, created, self)
        return self._subscription

    async def close(self) -> None:
        """Stop delivering; safe to call twice."""
        if self._reopening is not None:
            await end_tasks(self._reopening)
            self._reopening = None
        await self._end_tail()

    def _carry(self, _: str, effect: Effect) -> None:
        """Carry out `OpenTail`, the latest one if there are several."""
        assert isinstance(effect, OpenTail)
        if self._reopening is not None:
            self._reopening.cancel()
        assert self._journal is not None, "no tail was opened before"
        again = partial(self._reopen, self._journal, effect.after, effect.created)
        self._reopening = supervise("open the journal", again)

    def on_record(self, record: Record) -> None:
        """Pass a record on; with a full mailbox this waits by working it off."""
        worker = WorkerId(last_token(record.subject))
        stored_s: float | None = None
        if record.stored_ns:
            stored_s = self._driver.now() - (time.time_ns() - record.stored_ns) / 1e9
        self._driver.press(self._to, JournalRecord(record.sequence, worker, record.data, stored_s))

    def on_gap(self, first: int, last: int) -> None:
        """Pass on that records are gone unread."""
        self._driver.press(self._to, JournalGap(first, last))

    def on_recreated(self, state: StreamState) -> None:
        """Pass on that the journal is another one now."""
        self._driver.press(self._to, JournalRecreated(state.created))

    def on_caught_up(self, sequence: int) -> None:
        """Pass on that the history has been delivered."""
        self._driver.press(self._to, CaughtUp(sequence))

    async def _reopen(self, journal: Journal, after: int, created: str) -> None:
        while True:
            try:
                await self.open(journal, after, created)
            except TransportError:
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _end_tail(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()
