"""Which workers' blocks are known exactly, and whom to ask for what is missing."""

from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.ordering import FIRST_SEQ, NOTHING_FITS, Cursor
from kvmesh.core.members.worker_info import Trust

SILENT_AFTER_S: Final = 3.5
"""A worker not heard for so long is not asked: nobody would answer."""


class RecoveryOptions(msgspec.Struct, frozen=True):
    """Times in seconds.

    A gap is asked about after `grace_s`, since the publisher's own retry may close it, and again
    each `repeat_s`. Claimed events that do not come within `behind_s` count as lost. A worker in
    doubt for `degraded_s` is no longer believed. Heartbeats of an epoch older than the journal's
    for `outdated_s` mean a clock that went back, not a predecessor shutting down.
    """

    grace_s: float = 0.3
    behind_s: float = 1.0
    repeat_s: float = 2.0
    degraded_s: float = 5.0
    outdated_s: float = 5.0


class Missing(msgspec.Struct, frozen=True):
    """A worker to ask for its events from `next_seq` of `epoch` on; 0 asks for everything.

    `outdated`: it goes on in an older epoch than that, and has to begin one behind it.
    """

    worker: WorkerId
    epoch: int
    next_seq: int
    outdated: bool = False


class _Case(msgspec.Struct, eq=False):
    """One worker. Times are None for "not so"."""

    cursor: Cursor = Cursor(-1, FIRST_SEQ)
    suspect: bool = False
    distrusted_s: float | None = None
    asked_s: float | None = None
    behind_s: float | None = None
    behind_seq: int = 0
    received_s: float | None = None
    outdated_s: float | None = None
    epoch: int = -1
    events: bool = True
    complete: bool = True
    catching_up: bool = False
    claimed_s: float | None = None
    lacked: bool = False
    unread: bool = False
    writes_unread: bool = False


class Recovery:
    """Doubts about workers, from what the journal brought and what their heartbeats claim.

    A worker is in doubt while its cursor has a gap, while records of the journal were skipped and
    no heartbeat has confirmed its cursor since (suspect), while it claims events that do not
    come (behind), or while its records have a format that is not read (unread). Doubt ends by the
    journal or by a heartbeat, never by the passing of time.
    """

    def __init__(self, options: RecoveryOptions | None = None) -> None:
        self._options = options or RecoveryOptions()
        self._cases: dict[WorkerId, _Case] = {}

    def progress(self, worker: WorkerId, cursor: Cursor, now: float, *, whole: bool) -> None:
        """Take the cursor after a batch; `whole` when nothing before the batch matters any more."""
        case = self._case(worker)
        case.cursor = cursor
        case.claimed_s = None
        if whole:
            case.suspect = case.unread = case.writes_unread = False
        if case.behind_s is not None and cursor.next_seq > case.behind_seq:
            case.behind_s = None
        self._judge(case, now)

    def suspect(self, now: float) -> None:
        """Doubt every worker until its heartbeat agrees with its cursor."""
        for case in self._cases.values():
            case.suspect = True
            self._judge(case, now)

    def pass_over(self, worker: WorkerId, now: float) -> None:
        """Take the news that a record of `worker` could not be read: only its whole state helps."""
        case = self._case(worker)
        case.unread = case.writes_unread = True
        self._judge(case, now)

    def receive(self, worker: WorkerId, epoch: int, last_seq: int, now: float) -> None:
        """Compare a heartbeat with the cursor."""
        case = self._case(worker)
        first, case.received_s = case.received_s is None, now
        case.epoch = epoch
        if epoch < case.cursor.epoch:
            case.outdated_s = now if case.outdated_s is None else case.outdated_s
            return
        case.outdated_s = None
        if case.cursor.epoch < 0 and last_seq >= FIRST_SEQ and case.claimed_s is None:
            case.claimed_s, case.lacked = now, first
        same = epoch == case.cursor.epoch
        if last_seq < (case.cursor.next_seq if same else FIRST_SEQ):
            case.behind_s = None
            case.suspect = case.suspect and not same
        elif case.behind_s is None:
            case.behind_s, case.behind_seq = now, last_seq
        self._judge(case, now)

    def describe(
        self,
        worker: WorkerId,
        *,
        events: bool,
        complete: bool,
        readable: bool = True,
        catching_up: bool = False,
    ) -> None:
        """Note whether the worker sends events at all, knows its whole cache, and can be read; and
        whether what it sends is what its engine held some time ago.
        """
        case = self._case(worker)
        case.events, case.complete, case.catching_up = events, complete, catching_up
        case.writes_unread = events and not readable

    def forget(self, worker: WorkerId) -> None:
        """Drop everything known of a worker."""
        self._cases.pop(worker, None)

    def check(self, now: float) -> list[Missing]:
        """Return whom to ask now, and let long silence turn into doubt. O(workers)."""
        demands: list[Missing] = []
        for worker, case in self._cases.items():
            self._judge(case, now)
            demand = self._demand(worker, case, now)
            if demand is not None and self._may_ask(case, now):
                case.asked_s = now
                demands.append(demand)
        return demands

    def anew(self, worker: WorkerId) -> Missing:
        """Return the demand for all a worker holds, whatever its cursor says."""
        return Missing(worker, self._case(worker).cursor.epoch, NOTHING_FITS)

    def is_distrusted(self, worker: WorkerId) -> bool:
        """Return whether the index may be wrong about the worker."""
        case = self._cases.get(worker)
        return case is not None and case.distrusted_s is not None

    def unknown(self, now: float) -> dict[WorkerId, float]:
        """Return the live workers that sent events of which none was read, and since when.

        An index without them is not whole, however exact the others are. O(workers).
        """
        return {
            worker: case.claimed_s
            for worker, case in self._cases.items()
            if case.claimed_s is not None and case.events and _is_received(case, now)
        }

    def lacking(self, now: float) -> dict[WorkerId, float]:
        """Return those of `unknown` that are asked, since what they would send is read, and that
        had sent events when they were heard first: of others they are under way. O(workers).
        """
        cases = self._cases
        return {
            one: since_s
            for one, since_s in self.unknown(now).items()
            if cases[one].lacked and not cases[one].writes_unread
        }

    def trust(self, worker: WorkerId, now: float) -> Trust:
        """Return how far the index may be believed about the worker."""
        case = self._cases.get(worker)
        if case is None:
            return Trust.CATCHING_UP
        if not case.events:
            return Trust.APPROX
        if not case.complete or case.unread or case.writes_unread:
            return Trust.DEGRADED
        if case.distrusted_s is None:
            return Trust.CATCHING_UP if case.catching_up else Trust.EXACT
        young = now < case.distrusted_s + self._options.degraded_s
        return Trust.CATCHING_UP if young else Trust.DEGRADED

    def _case(self, worker: WorkerId) -> _Case:
        case = self._cases.get(worker)
        if case is None:
            case = self._cases[worker] = _Case()
        return case

    def _judge(self, case: _Case, now: float) -> None:
        late = case.behind_s is not None and now >= case.behind_s + self._options.behind_s
        unread = case.unread or case.writes_unread
        if not (case.cursor.gap or case.suspect or late or unread):
            case.distrusted_s = None
        elif case.distrusted_s is None:
            case.distrusted_s = now
            case.asked_s = None

    def _demand(self, worker: WorkerId, case: _Case, now: float) -> Missing | None:
        """Return what to ask the worker for, were it polite to ask."""
        cursor, options = case.cursor, self._options
        if case.outdated_s is not None:
            if now < case.outdated_s + options.outdated_s:
                return None
            return Missing(worker, cursor.epoch, NOTHING_FITS, outdated=True)
        early = case.distrusted_s is None or now < case.distrusted_s + options.grace_s
        # What a worker would send that writes a format unread is not read either.
        if early or not case.events or case.writes_unread:
            return None
        if case.unread:
            return Missing(worker, max(case.epoch, cursor.epoch), NOTHING_FITS)
        return self._lacking(worker, case)

    def _lacking(self, worker: WorkerId, case: _Case) -> Missing | None:
        cursor = case.cursor
        if case.epoch > cursor.epoch:
            return Missing(worker, case.epoch, FIRST_SEQ)
        if cursor.gap or case.behind_s is not None:
            return Missing(worker, cursor.epoch, cursor.next_seq)
        return None

    def _may_ask(self, case: _Case, now: float) -> bool:
        waited = case.asked_s is None or now >= case.asked_s + self._options.repeat_s
        return waited and _is_received(case, now)


def _is_received(case: _Case, now: float) -> bool:
    return case.received_s is not None and now < case.received_s + SILENT_AFTER_S
