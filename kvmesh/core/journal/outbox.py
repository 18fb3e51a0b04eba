"""Events of one worker that wait to be sent: merged while they wait, replaced when too many."""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from kvmesh.core.blocks.events import ENDS, HASH_BYTES, Cleared, Event, Removed, Reuse, Stored
from kvmesh.core.engines.kv_events.closure import MAX_RUN

MAX_BATCH_BYTES: Final = 131_072
"""Hash bytes in one journal message: a quarter of the stream's message limit."""

_MAX_RUN_BYTES: Final = MAX_RUN * HASH_BYTES


class Outbox:
    """A queue of at most `max_events`, above what the last `restart` put in.

    Neighbouring events are merged, so a generated block a step costs one event a flush, not one a
    block. When full everything is dropped and `add` says so: the caller sends a full dump later.
    """

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._limit = max_events
        self._events: deque[Event] = deque()

    def __len__(self) -> int:
        """Return how many events wait."""
        return len(self._events)

    def add(self, events: Iterable[Event]) -> bool:
        """Queue `events`; return False when that was too many and all are dropped.

        `Cleared` makes everything before it needless.
        """
        queue = self._events
        for event in events:
            if isinstance(event, Cleared):
                queue.clear()
                queue.append(event)
                continue
            merged = _merge(queue[-1], event) if queue else None
            if merged is None:
                queue.append(event)
            else:
                queue[-1] = merged
        if len(queue) <= self._limit:
            return True
        queue.clear()
        self._limit = self._max_events
        return False

    def restart(self, dump: Iterable[Event]) -> None:
        """Replace everything by `Cleared` and `dump`; its length does not count as overflow."""
        self._events = deque((Cleared(), *dump))
        self._limit = len(self._events) + self._max_events

    def first(self, max_events: int) -> list[Event]:
        """Return the next batch: at most `max_events`, at most 128 KiB of hashes and one event.

        They stay in the queue until `drop`: what cannot be encoded is not lost on the way.
        """
        batch: list[Event] = []
        size = 0
        for event in islice(self._events, max_events):
            if size >= MAX_BATCH_BYTES:
                break
            if isinstance(event, (Stored, Removed)):
                size += len(event.hashes)
            batch.append(event)
        return batch

    def drop(self, count: int) -> None:
        """Take the first `count` events out: they are on their way."""
        for _ in range(count):
            self._events.popleft()


def _merge(last: Event, event: Stored | Removed | Reuse) -> Event | None:
    """Return both as one event, None when they do not join."""
    if isinstance(last, (Cleared, Reuse)) or isinstance(event, Reuse) or last.tier != event.tier:
        return None
    if len(last.hashes) + len(event.hashes) > _MAX_RUN_BYTES:
        return None
    if isinstance(event, Stored):
        if not isinstance(last, Stored) or not _continues(last, event):
            return None
        return Stored(last.parent, last.hashes + event.hashes, event.tier)
    if isinstance(last, Stored):
        return None
    return Removed(last.hashes + event.hashes, event.tier)


def _continues(last: Stored, event: Stored) -> bool:
    if event.tier >= ENDS:
        return True
    return int.from_bytes(last.hashes[-HASH_BYTES:], "little") == event.parent
