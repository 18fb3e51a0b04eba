"""The failures that may turn out to be a request's own doing, and how to undo them."""

from collections import OrderedDict
from typing import Final

from kvmesh.core.members.health_record import MemberRecord, Stage

REQUESTS_REMEMBERED: Final = 1024

FAILURES_REMEMBERED: Final = 16
"""Of one request: none is sent on more often."""


class NotedFailure:
    """One failure as it was noted of `member`, and how `record` stood before."""

    __slots__ = (
        "_before", "_before_changes", "_before_streak", "_changes", "_cooling_s", "_noted_s",
        "_successes", "_weight", "member", "record",
    )  # fmt: skip

    def __init__(self, member: str, record: MemberRecord, now: float) -> None:
        self.member = member
        self.record = record
        self._before = (record.stage, record.until_s, record.ejections)
        self._before_changes = record.changes
        self._before_streak = record.streak
        self._successes = record.successes
        self._noted_s = now
        self._weight = 0.0
        self._cooling_s = 0.0
        self._changes = record.changes

    def keep(self, weight: float) -> None:
        """Keep what came of it: `weight` failures, 0 for an overload."""
        self._weight = weight
        self._cooling_s = self.record.cooling_s
        self._changes = self.record.changes

    def undo(self, now: float) -> None:
        """Let the member stand as if the failure had not been, as far as nothing came since."""
        record = self.record
        if not self._weight:
            if record.cooling_s == self._cooling_s:
                record.cooling_s = now
            return
        record.take_back(self._weight, self._noted_s, self._successes)
        last = self._changes == record.changes and self._before_streak == record.streak
        if self._before_changes != self._changes and last:
            stage, until_s, record.ejections = self._before
            record.enter(stage, until_s)
        elif record.streak == 0 and record.stage is not Stage.DOWN:
            record.readmit(now)


class NotedFailures:
    """Failures by request: of the last `REQUESTS_REMEMBERED` that failed."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, list[NotedFailure]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._of)

    def add(self, request_id: str, failure: NotedFailure, weight: float) -> None:
        """Remember a failure just noted; one without a request cannot be taken back."""
        if not request_id:
            return
        failure.keep(weight)
        noted = self._of.setdefault(request_id, [])
        if len(noted) < FAILURES_REMEMBERED:
            noted.append(failure)
        if len(self._of) > REQUESTS_REMEMBERED:
            self._of.popitem(last=False)

    def pop(self, request_id: str) -> list[NotedFailure]:
        """Return and forget a request's failures, the latest first."""
        return self._of.pop(request_id, [])[::-1]
