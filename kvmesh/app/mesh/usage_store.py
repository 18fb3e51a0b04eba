"""The record of what was used in a bucket: a stream that each replica appends to, and reads."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

from kvmesh.actors.wire import last_token
from kvmesh.core.admission.usage_book import UsageBook
from kvmesh.errors import TransportError
from kvmesh.observe import get_logger
from kvmesh.ports import EventPlane, Journal, Record, StreamState
from kvmesh.tasks import end_tasks, supervise, to_next

TELL_EVERY_S: Final = 0.25

MOST_IN_FLIGHT: Final = 16
"""Batches sent and not acknowledged."""

ACK_S: Final = 5.0
"""What is not acknowledged by then is sent again, by the same id."""

STOP_S: Final = 2.0
"""How long an end waits for what is not acknowledged."""

STOP_LOOK_S: Final = 0.01

RETRY_S: Final = 5.0
LOG_EVERY_S: Final = 10.0

UNREAD: Final = "the record is being read"
AWAY: Final = "what siblings served since NATS is away"


class UsageStore:
    """Stores the batches of `book` on `subject`, and tells it those of its siblings, and of before.

    A batch is sent until it is acknowledged, each time by its id, so that it is stored once. While
    the plane is away batches wait, as many as the book keeps. Without a stream, since JetStream is
    off or this account may not, the book has what this replica served; it is asked for again.
    """

    def __init__(
        self,
        book: UsageBook,
        plane: EventPlane,
        bucket: str,
        subject: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._plane = plane
        self._bucket = bucket
        self._subject = subject
        self._clock = clock
        self._stack = contextlib.AsyncExitStack()
        self._journal: Journal | None = None
        self._read = False
        self._logged_s = -LOG_EVERY_S
        self._log = get_logger()
        book.keep_unsent()

    def start(self) -> None:
        """Begin to read and to append; a start does not wait for it."""
        self._book.missing = UNREAD
        self._stack.callback(self._plane.on_change(self._on_change))
        self._stack.push_async_callback(end_tasks, supervise("usage record", self._share))

    async def stop(self) -> None:
        """Store what is left, for `STOP_S` at most; safe to call twice."""
        for _ in range(int(STOP_S / STOP_LOOK_S)):
            if self._journal is None or not self._book.unsent:
                break
            self._publish()
            await asyncio.sleep(STOP_LOOK_S)
        self._journal = None
        await self._stack.aclose()

    def on_record(self, record: Record) -> None:
        """Learn a batch."""
        wrong = self._book.receive(last_token(record.subject), record.data, time.time())
        now = self._clock()
        if wrong and now >= self._logged_s + LOG_EVERY_S:
            self._logged_s = now
            refused = self._book.statistics().refused
            self._log.warning("usage refused", reason=wrong, refused=refused)

    def on_gap(self, first: int, last: int) -> None:
        """Take that the oldest batches are gone: nothing was promised of them."""

    def on_recreated(self, state: StreamState) -> None:
        """Go on with a stream that somebody made anew: what was counted stays counted."""

    def on_caught_up(self, sequence: int) -> None:
        """Take that all of the bucket is known."""
        self._read = True
        self._book.missing = ""
        counts = self._book.statistics()
        self._log.info("usage read", batches=counts.received, last_seq=sequence)

    def _on_change(self, up: bool) -> None:
        if self._read:
            self._book.missing = "" if up else AWAY

    async def _share(self) -> None:
        if self._journal is None:
            journal = await self._open()
            tail = await journal.tail(0, "", self)
            self._stack.push_async_callback(tail.close)
            self._journal = journal
        while True:
            self._publish()
            await asyncio.sleep(to_next(TELL_EVERY_S))

    async def _open(self) -> Journal:
        said = ""
        while True:
            try:
                return await self._plane.usage(self._bucket)
            except TransportError as error:
                if str(error) != said:
                    self._log.warning("usage is not recorded", error=str(error))
                said = str(error)
                self._book.missing = f"what siblings served: {said}"
            await asyncio.sleep(RETRY_S)

    def _publish(self) -> None:
        """Send the oldest batches that are not on their way."""
        journal, now = self._journal, self._clock()
        if journal is None or not self._plane.connected:
            return
        for name, one in list(islice(self._book.unsent.items(), MOST_IN_FLIGHT)):
            if not one.sent_s or now >= one.sent_s + ACK_S:
                one.sent_s = now
                journal.append(self._subject, one.data, partial(self._stored, name), name)

    def _stored(self, name: str, _sequence: int) -> None:
        self._book.unsent.pop(name, None)
