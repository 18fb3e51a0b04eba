"""Which events of a worker's batch are new, in order, and of its latest incarnation."""

from collections.abc import KeysView, Mapping, Sequence
from typing import Final, Literal

import msgspec

from kvmesh.core.blocks.events import Batch, Cleared, Event, WorkerId

FIRST_SEQ: Final = 1
"""Sequence number of an epoch's first event; `last_seq` 0 in a heartbeat means "none yet"."""


NOTHING_FITS: Final = 0
"""A cursor's `next_seq` when only `Cleared` can follow."""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """How far one worker's events were applied: everything before `next_seq` of `epoch`.

    `gap` means events are missing at `next_seq`: nothing more is applied until the missing ones
    come or the worker starts over with `Cleared`. Cursors are part of a snapshot.
    """

    epoch: int
    next_seq: int
    gap: bool = False


class Admission(msgspec.Struct, frozen=True):
    """What to do with a batch: first clear the worker (`fence`), then apply `events`.

    `verdict` says why: all new ("apply"), some or all known ("partial", "duplicate"), something
    missing before it ("gap"), events resumed behind a gap ("resync"), or an old epoch ("stale").
    """

    verdict: Literal["apply", "partial", "duplicate", "gap", "resync", "stale"]
    events: Sequence[Event] = ()
    fence: bool = False


_DUPLICATE: Final = Admission("duplicate")
_STALE: Final = Admission("stale")


class Ordering:
    """The cursors of all workers.

    The verdicts depend only on the batches seen, so replicas that read the same journal to the
    same sequence decide alike. Nothing is held back for later: a publisher that finds a message
    lost sends everything since again, in order.
    """

    def __init__(self, cursors: Mapping[WorkerId, Cursor] | None = None) -> None:
        self._cursors: dict[WorkerId, Cursor] = dict(cursors or {})
        self._verdicts: dict[str, int] = {}

    def cursor(self, worker: WorkerId) -> Cursor | None:
        """Return the worker's cursor; None when nothing was ever read of it."""
        return self._cursors.get(worker)

    def cursors(self) -> Mapping[WorkerId, Cursor]:
        """Return all cursors as they are now, as a copy."""
        return dict(self._cursors)

    def workers(self) -> KeysView[WorkerId]:
        """Return every worker that has a cursor."""
        return self._cursors.keys()

    def admit(self, worker: WorkerId, batch: Batch) -> Admission:
        """Judge `batch`, move the cursor, and return what to apply. O(events) behind a gap."""
        admission = self._judge(worker, batch)
        self._verdicts[admission.verdict] = self._verdicts.get(admission.verdict, 0) + 1
        return admission

    def advance(self, worker: WorkerId, cursor: Cursor, events: int) -> Cursor:
        """Move the worker's cursor behind so many events, the next ones: return where it is now."""
        self._verdicts["apply"] = self._verdicts.get("apply", 0) + 1
        after = self._cursors[worker] = Cursor(cursor.epoch, cursor.next_seq + events)
        return after

    def verdicts(self) -> Mapping[str, int]:
        """Return how many batches got each verdict."""
        return dict(self._verdicts)

    def _judge(self, worker: WorkerId, batch: Batch) -> Admission:
        cursor = self._cursors.get(worker)
        if batch.first_seq < FIRST_SEQ:
            return _STALE
        if cursor is None or batch.epoch > cursor.epoch:
            cursor = Cursor(batch.epoch, FIRST_SEQ)
            return self._fold(worker, cursor, batch, fence=True)
        if batch.epoch < cursor.epoch:
            return _STALE
        return self._fold(worker, cursor, batch, fence=False)

    def mark_gap(self, worker: WorkerId) -> None:
        """Apply nothing more of the worker until it starts over with `Cleared`.

        For a worker whose blocks turned out not to fit, or whose records were purged unread.
        """
        cursor = self._cursors[worker]
        self._cursors[worker] = Cursor(cursor.epoch, NOTHING_FITS, gap=True)

    def forget(self, worker: WorkerId) -> None:
        """Drop the worker's cursor: whatever comes next, of any epoch, counts as its first."""
        self._cursors.pop(worker, None)

    def _fold(self, worker: WorkerId, cursor: Cursor, batch: Batch, *, fence: bool) -> Admission:
        events = batch.events
        end = batch.first_seq + len(events)
        known = cursor.next_seq - batch.first_seq
        if known >= 0:
            if known >= len(events):
                self._cursors[worker] = cursor
                return Admission("duplicate", (), fence) if fence else _DUPLICATE
            self._cursors[worker] = Cursor(batch.epoch, end)
            if known:
                return Admission("partial", events[known:], fence)
            return Admission("apply", events, fence)
        for position, event in enumerate(events):
            if isinstance(event, Cleared):
                self._cursors[worker] = Cursor(batch.epoch, end)
                return Admission("resync", events[position:], fence)
        self._cursors[worker] = Cursor(batch.epoch, cursor.next_seq, gap=True)
        return Admission("gap", (), fence)
