"""When a summary in the log is due."""

from typing import Final

SETTLE_S: Final = 2.0
EVERY_S: Final = 60.0


class SummaryPace:
    """Lets a summary be told `settle_s` after something changed, and at most each `every_s`.

    So the log has a line soon after the first request, and none while nothing happens.
    """

    def __init__(self, *, settle_s: float = SETTLE_S, every_s: float = EVERY_S) -> None:
        self._settle_s = settle_s
        self._every_s = every_s
        self._changed_s: float | None = None
        self._reported_s: float | None = None

    def due(self, now: float, *, changed: bool) -> bool:
        """Return whether to tell now; `changed`: something is new since the last summary."""
        if not changed:
            return False
        if self._changed_s is None:
            self._changed_s = now
        if now < self._changed_s + self._settle_s:
            return False
        if self._reported_s is not None and now < self._reported_s + self._every_s:
            return False
        self._changed_s, self._reported_s = None, now
        return True
