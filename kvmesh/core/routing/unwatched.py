"""Bookings whose answers nobody sees: their prefill and their end inferred from other evidence.

An engine's KV events tell that a prompt is computed, its load reports how many requests it still
has, and what is learned of both how long the others will take.
"""

from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from math import inf
from typing import Final, Literal

import msgspec

from kvmesh._native import Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import ALL_BLOCKS, NO_HASHES, BlockHashes, Hashes
from kvmesh.core.members.loads import LOCAL
from kvmesh.core.routing.overdue import SLACK
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.unwatched_reports import Followed, Reports
from kvmesh.core.routing.unwatched_stays import Stays


def expected_blocks(booking: Booking, block_size: int) -> int:
    """Return the blocks of output that were expected when the booking was placed."""
    end = booking.prompt_tokens + booking.output_tokens
    grown = -(-end // block_size) + (-booking.prompt_tokens // block_size)
    return max(0, booking.expected_blocks + grown + booking.foreseen_blocks)


Why = Literal["report", "predicted", "expired", "gone"]
"""What ended it: the engine has fewer requests than are booked; its predicted end; it was there for
too long; its booking was released by others.
"""

UNKNOWN_OUTPUT_TOKENS: Final = 512
UNKNOWN_INTERVAL_MS: Final = 50.0
"""An answer whose length nobody knows, and a token's time where nothing has shown any."""

GRACE_S: Final = 0.2
"""Events may be so late however short a prompt is."""


class UnwatchedOptions(msgspec.Struct, frozen=True):
    """How evidence is read. Times in seconds.

    A report is `report_age_s` old when it is heard, on average, and tells of an engine for
    `fresh_s`. None stays longer than `most_s`. Growth is inferred each `grow_s`.
    """

    report_age_s: float = 1.0
    fresh_s: float = 5.0
    most_s: float = 900.0
    grow_s: float = 1.0


DEFAULT: Final = UnwatchedOptions()


class Prefilled(msgspec.Struct, frozen=True):
    """The prompt of a request was computed; `seen`: the engine's events show it, just now."""

    request_id: str
    seen: bool


class Over(msgspec.Struct, frozen=True):
    """A request is over, and what shows it."""

    request_id: str
    why: Why


class UnwatchedStatistics(msgspec.Struct, frozen=True):
    """How many there are, and what showed the prefills and the ends since the start."""

    open: int
    prefilled_seen: int
    prefilled_predicted: int
    over: dict[str, int]


class Unwatched:
    """Follows bookings of this replica by what engines tell of themselves.

    Books and releases nothing: `check` returns what it found, and whoever owns the request passes
    that on, `Prefilled` to `Scheduler.first_token` (`assume_first_token` for one that nobody saw).
    An ended request is forgotten here.

    Several replicas with such bookings at one worker hear the same report and know of each other's
    bookings. Each takes the same ones for over, by the same order, and ends those that are its own.
    """

    def __init__(self, scheduler: Scheduler, options: UnwatchedOptions = DEFAULT) -> None:
        self._scheduler = scheduler
        self._options = options
        self.stays = Stays()
        self._rows: dict[str, Followed] = {}
        self._prefilling: dict[WorkerId, dict[str, Followed]] = {}
        self._evident: dict[WorkerId, dict[str, Followed]] = {}
        self._reports = Reports(
            age_s=options.report_age_s, fresh_s=options.fresh_s, most_s=options.most_s
        )
        self._due: list[tuple[float, int, Followed]] = []
        self._number = 0
        self._grown_s = -inf
        self._seen = self._predicted = 0
        self._over: dict[Why, int] = dict.fromkeys(("report", "predicted", "expired", "gone"), 0)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, request_id: str, hashes: Hashes, due_s: float, *, reported: bool = False) -> bool:
        """Follow a live booking of this replica from now on; return whether there is one.

        `hashes` are the prompt's. Without evidence it counts as computed from `due_s` on, where
        evidence should have come `SLACK` times as late. `reported`: somebody will tell of its end,
        by `forget`, unless `lose` is called.
        """
        booking = self._scheduler.sequences.bookings.get(request_id)
        if booking is None or booking.owner != LOCAL:
            return False
        if request_id in self._rows:
            return True
        last = self._last_block(booking, hashes)
        if last is not None:
            due_s = booking.booked_s + SLACK * (max(0.0, due_s - booking.booked_s) + GRACE_S)
        tokens = booking.expected_blocks * self._scheduler.sequences.block_size
        row = Followed(booking, last, due_s, tokens)
        row.reported = reported
        self._number += 1
        row.number = self._number
        self._rows[request_id] = row
        if booking.prefilling:
            self._prefilling.setdefault(booking.worker, {})[request_id] = row
            if last is not None:
                self._evident.setdefault(booking.worker, {})[request_id] = row
        else:
            row.prefilled_s = booking.output_s
            self._wait_for_end(row)
        return True

    def follows(self, request_id: str) -> bool:
        """Return whether a request is followed."""
        return request_id in self._rows

    def lose(self, request_id: str) -> None:
        """Note that no event will report a request's end."""
        row = self._rows.get(request_id)
        if row is not None and row.reported:
            row.reported = False
            if row.prefilled_s >= 0.0:
                self._wait_for_end(row)

    def forget(self, request_id: str) -> None:
        """Follow a booking no longer."""
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._leave_prefill(row)

    def retain(self, workers: Collection[WorkerId]) -> None:
        """Drop the reports of all workers but these; the bookings of the others count as ended."""
        self._reports.retain(workers)
        self.stays.retain(workers)

    def report(self, worker: WorkerId, requests: int, now: float) -> None:
        """Take how many requests an engine has, those that wait included."""
        self._reports.receive(worker, requests, now)

    def check(self, now: float) -> list[Prefilled | Over]:
        """Return what evidence and time tell of the bookings followed. What is over has to be
        released before the next look.

        O(workers with prefills and what is found), and O(all bookings) after reports and each
        `grow_s`.
        """
        found: list[Prefilled | Over] = [*self._find_prefilled(now)]
        if self._reports.has_updates():
            # First: what ends below is booked until the caller releases it.
            found += self._find_reported(now)
        if now - self._grown_s >= self._options.grow_s or now < self._grown_s:
            self._grown_s = now
            self._grow(now)
            found += self._find_late(now)
        found += self._find_due(now)
        return found

    def statistics(self) -> UnwatchedStatistics:
        """Return the present counts."""
        return UnwatchedStatistics(
            len(self._rows),
            self._seen,
            self._predicted,
            {str(why): count for why, count in self._over.items()},
        )

    def _last_block(self, booking: Booking, hashes: Hashes) -> Hashes | None:
        """Return the prompt's last full block, if its worker has yet to tell of it."""
        scheduler, worker = self._scheduler, booking.worker
        untold = scheduler.overlaps.index is None or worker in scheduler.workers.distrusted
        if untold or scheduler.options.mode != "kv":
            return None
        if own := scheduler.workers.own_tokens.get(worker):
            hashes = (isinstance(hashes, BlockHashes) and hashes.by(own)) or NO_HASHES
        if not hashes.blocks:
            return None
        last = hashes.upto(ALL_BLOCKS)[-1:]
        found = BlockHashes.of(last, scheduler.options.block_size)
        return None if self._holds(worker, found) else found

    def _holds(self, worker: WorkerId, last: Hashes) -> bool:
        index = self._scheduler.overlaps.index
        return index is not None and any(worker in held for _, held in index.find_groups(last))

    def _find_prefilled(self, now: float) -> Iterator[Prefilled]:
        """Yield whose prefill is over: engines prefill in order of arrival, so those before one
        that is seen are done, too.
        """
        for worker, rows in list(self._prefilling.items()):
            seen = self._last_seen(worker)
            done: list[Followed] = []
            for row in rows.values():
                if row.number > seen and now < row.due_s:
                    break
                done.append(row)
            for row in done:
                self._leave_prefill(row)
                if self._is_live(row):
                    yield self._prefill_ended(row, now, seen=row.number <= seen)

    def _last_seen(self, worker: WorkerId) -> int:
        """Return the number of the last prompt that a worker's events show, 0 for none."""
        seen = 0
        for row in self._evident.get(worker, {}).values():
            if row.last is None or not self._holds(worker, row.last):
                break
            seen = row.number
        return seen

    def _prefill_ended(self, row: Followed, now: float, *, seen: bool) -> Prefilled:
        row.prefilled_s = now
        self._wait_for_end(row)
        self._seen += seen
        self._predicted += not seen
        return Prefilled(row.booking.request_id, seen)

    def _leave_prefill(self, row: Followed) -> None:
        worker, name = row.booking.worker, row.booking.request_id
        for known in (self._prefilling, self._evident):
            rows = known.get(worker)
            if rows is not None and rows.pop(name, None) is not None and not rows:
                del known[worker]

    def _is_live(self, row: Followed) -> bool:
        booking = row.booking
        return self._scheduler.sequences.bookings.get(booking.request_id) is booking

    def _ms_per_token(self, worker: WorkerId) -> float:
        return (
            self._scheduler.speeds.ms_per_output_token(worker)
            or self.stays.ms_per_token(worker)
            or UNKNOWN_INTERVAL_MS
        )

    def _grow(self, now: float) -> None:
        """Let answers have grown by the time since their prefill, up to what is expected."""
        sequences = self._scheduler.sequences
        for row in self._rows.values():
            if row.prefilled_s >= 0.0 and row.tokens:
                grown = (now - row.prefilled_s) * 1000.0 / self._ms_per_token(row.booking.worker)
                sequences.grow(row.booking.request_id, int(min(grown, float(row.tokens))), now)

    def _find_late(self, now: float) -> Iterator[Over]:
        """Yield what is over without us, or should have been long ago. O(bookings followed)."""
        options = self._options
        for row in list(self._rows.values()):
            if not self._is_live(row):
                yield self._end(row, "gone")
            elif not row.reported and now - row.booking.booked_s > options.most_s:
                yield self._end(row, "expired")

    def _find_due(self, now: float) -> Iterator[Over]:
        """Yield what is over by time, as it is known now how long a token takes."""
        due = self._due
        while due and due[0][0] <= now:
            _, number, row = heappop(due)
            worker = row.booking.worker
            if self._rows.get(row.booking.request_id) is not row:
                continue
            end_s = row.prefilled_s + self._decode_s(worker, row.tokens)
            if end_s > now:
                heappush(due, (end_s, number, row))
                continue
            self._reports.presume(row, now)
            yield self._end(row, "predicted")

    def _wait_for_end(self, row: Followed) -> None:
        if row.reported:
            return
        self._number += 1
        end_s = row.prefilled_s + self._decode_s(row.booking.worker, row.tokens)
        heappush(self._due, (end_s, self._number, row))

    def _find_reported(self, now: float) -> Iterator[Over]:
        """Yield what the engines that have reported no longer have, and learn from it."""
        bookings = self._scheduler.sequences.bookings.values()
        found = self._reports.take(
            bookings, self._rows, lambda one: self._expected_end_s(one, now), now
        )
        for row, span in list(found):
            if row.prefilled_s >= 0.0:
                tokens, until_s = row.tokens or UNKNOWN_OUTPUT_TOKENS, span.until_s
                ended_s = (max(span.since_s, row.prefilled_s) + until_s) / 2.0
                decode_s = max(0.0, ended_s - row.prefilled_s)
                self.stays.learn(row.booking.worker, tokens, decode_s)
            if row.booking.request_id in self._rows:
                yield self._end(row, "report")

    def _expected_end_s(self, booking: Booking, now: float) -> float:
        """Return when an answer is expected to end, by what all replicas know of a booking."""
        began_s = now if booking.prefilling else booking.booked_s
        size = self._scheduler.sequences.block_size
        return began_s + self._decode_s(booking.worker, expected_blocks(booking, size) * size)

    def _decode_s(self, worker: WorkerId, tokens: int) -> float:
        return (tokens or UNKNOWN_OUTPUT_TOKENS) * self._ms_per_token(worker) / 1000.0

    def _end(self, row: Followed, why: Why) -> Over:
        self._over[why] += 1
        self.forget(row.booking.request_id)
        return Over(row.booking.request_id, why)
