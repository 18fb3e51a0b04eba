"""When a replica that may write snapshots writes the next one."""

from typing import Final

RETRY_S: Final = 10.0
"""After a failure; twice as long after each further one, up to the usual interval."""


class SnapshotSchedule:
    """One is due `every_messages` journal messages or `every_s` after the last, if there is news.

    One that fails is costly as well, so news do not hasten the next try.
    """

    def __init__(self, every_messages: int, every_s: float) -> None:
        self._every_messages = every_messages
        self._every_s = every_s
        self._wanted = False
        self._failures = 0
        self._last = ("", 0)
        self.begun_s: float | None = None

    def want(self) -> None:
        """Make one due whatever else."""
        self._wanted = True

    def is_due(self, now: float, created: str, sequence: int) -> bool:
        """Return whether to begin one now, of what is applied up to `sequence` of `created`."""
        if self.begun_s is None:
            self.begun_s = now
        last_created, last_sequence = self._last
        updates = sequence - (last_sequence if last_created == created else 0)
        late = now >= self.begun_s + self._pause_s()
        due = late or (updates >= self._every_messages and not self._failures)
        return self._wanted or (due and updates > 0)

    def begin(self, now: float) -> None:
        """Note that one is begun."""
        self._wanted = False
        self.begun_s = now

    def succeed(self, created: str, sequence: int) -> None:
        """Note that it is stored."""
        self._failures = 0
        self._last = (created, sequence)

    def fail(self) -> None:
        """Note that it was given up."""
        self._failures += 1

    def _pause_s(self) -> float:
        if not self._failures:
            return self._every_s
        return min(RETRY_S * 2.0 ** min(self._failures - 1, 10), self._every_s)
