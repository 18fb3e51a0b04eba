"""What engines' load reports show of requests whose answers nobody sees: how many are over."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import inf
from typing import Final

import msgspec

from kvmesh._native import Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.members.loads import LOCAL


class Followed(msgspec.Struct, eq=False):
    """A booking and what is awaited of it. Times are the caller's clock, seconds.

    `number` counts them. `last` is the last full block of the prompt, None where its coming would
    prove nothing; from `due_s` on the prompt counts as computed without that. The answer is
    expected to have `tokens`, 0: unknown. `prefilled_s` is when its prefill ended, -1 before.
    `reported`: somebody will tell of its end, so that nothing else ends it.
    """

    booking: Booking
    last: Hashes | None
    due_s: float
    tokens: int
    number: int = 0
    prefilled_s: float = -1.0
    reported: bool = False


TRIES: Final = 3
"""Reports in a row of a worker whose missing requests are all taken for those of other replicas."""


class Span(msgspec.Struct, frozen=True):
    """When something was over that one report still had and the next one had not."""

    since_s: float
    until_s: float


class _Report(msgspec.Struct, frozen=True):
    requests: int
    span: Span


class Reports:
    """Compares how many requests engines have with how many are booked there.

    A report is `age_s` old when it is heard, on average, and fresh for `fresh_s`. Requests that
    ended as predicted while reports were fresh are `presumed` over: they are counted until a report
    has one fewer, so that what is learned of answers' times has no bias. None counts for more than
    `most_s`.
    """

    def __init__(self, *, age_s: float, fresh_s: float, most_s: float) -> None:
        self._age_s = age_s
        self._fresh_s = fresh_s
        self._most_s = most_s
        self._waiting: dict[WorkerId, _Report] = {}
        self._received_s: dict[WorkerId, float] = {}
        self._presumed: dict[WorkerId, list[Followed]] = {}
        self._tried: dict[WorkerId, int] = {}

    def has_updates(self) -> bool:
        """Return whether there is any to `take`."""
        return bool(self._waiting)

    def receive(self, worker: WorkerId, requests: int, now: float) -> None:
        """Take how many requests an engine has, those that wait included."""
        before_s, age_s = self._received_s.get(worker, -inf), self._age_s
        self._waiting[worker] = _Report(requests, Span(before_s - age_s, now - age_s))
        self._received_s[worker] = now

    def presume(self, one: Followed, now: float) -> None:
        """Note that a request has ended as predicted; without fresh reports nothing will tell."""
        worker = one.booking.worker
        if now - self._received_s.get(worker, -inf) <= self._fresh_s:
            self._presumed.setdefault(worker, []).append(one)

    def retain(self, workers: Collection[WorkerId]) -> None:
        """Forget all workers but these."""
        for worker in [one for one in self._received_s if one not in workers]:
            del self._received_s[worker]
            self._waiting.pop(worker, None)
            self._presumed.pop(worker, None)
            self._tried.pop(worker, None)

    def take(
        self,
        bookings: Iterable[Booking],
        ours: Mapping[str, Followed],
        expected_end_s: Callable[[Booking], float],
        now: float,
    ) -> Iterator[tuple[Followed, Span]]:
        """Yield what the reports heard since the last call show to be over, and when it ended.

        `bookings` are all, `ours` those that are followed here, by request id. O(bookings).
        """
        reports, self._waiting = self._waiting, {}
        booked: dict[WorkerId, list[Booking]] = {worker: [] for worker in reports}
        for booking in bookings:
            known = booked.get(booking.worker)
            if known is not None:
                known.append(booking)
        for worker, report in reports.items():
            counted = [one for one in booked[worker] if one.booked_s <= report.span.until_s]
            # Our own others are watched to their end, of the peers' none is known to be.
            likely = [one for one in counted if one.owner != LOCAL or _is_ours(one, ours)]
            likely.sort(key=expected_end_s)
            presumed = self._still_presumed(worker, now)
            over = len(counted) + len(presumed) - report.requests
            confirmed, missing = presumed[: max(0, over)], over - len(presumed)
            self._keep(worker, presumed[len(confirmed) :])
            for one in confirmed:
                yield one, report.span
            for one in self._choose(worker, likely, ours, missing):
                yield one, report.span

    def _still_presumed(self, worker: WorkerId, now: float) -> list[Followed]:
        presumed = self._presumed.get(worker, [])
        return [one for one in presumed if now - one.booking.booked_s <= self._most_s]

    def _keep(self, worker: WorkerId, presumed: list[Followed]) -> None:
        if presumed:
            self._presumed[worker] = presumed
        else:
            self._presumed.pop(worker, None)

    def _choose(
        self,
        worker: WorkerId,
        likely: list[Booking],
        ours: Mapping[str, Followed],
        missing: int,
    ) -> list[Followed]:
        """Return our part of the `missing` requests, the first of the `likely` ones.

        Replicas that put two of them in another order would both wait for the other: then each ends
        one after a while.
        """
        tried = self._tried.pop(worker, 0) + 1
        own = [ours[one.request_id] for one in likely if one.owner == LOCAL]
        if missing <= 0 or not own:
            return []
        found = [ours[one.request_id] for one in likely[:missing] if one.owner == LOCAL]
        if found:
            return found
        if tried >= TRIES:
            return own[:1]
        self._tried[worker] = tried
        return []


def _is_ours(booking: Booking, ours: Mapping[str, Followed]) -> bool:
    one = ours.get(booking.request_id)
    return one is not None and not one.reported
