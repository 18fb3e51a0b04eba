"""How late a replica is: from a record's storage in the journal until it was applied."""

from collections import deque
from typing import Final

from kvmesh._native import Histogram

BOUNDS_S: Final = (
    0.0005, 0.001, 0.002, 0.004, 0.006, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
)  # fmt: skip
"""Upper bounds of the histogram, seconds."""

RECENT: Final = 1024
"""Records that percentiles are of."""


class JournalLag:
    """Lags of records, seconds: `seconds` of all, percentiles of the last 1,024.

    Storage is told by the server's clock, so the clocks' difference is in it; below 0 counts as 0.
    """

    def __init__(self) -> None:
        self.seconds = Histogram(BOUNDS_S)
        self._recent: deque[float] = deque(maxlen=RECENT)

    def note(self, lag_s: float) -> None:
        """Count one record. O(1)."""
        lag_s = max(0.0, lag_s)
        self.seconds.observe(lag_s)
        self._recent.append(lag_s)

    def percentile_ms(self, share: float) -> float | None:
        """Return the least lag that a `share` (0 to 1) of the last records kept to, milliseconds.

        None before the first. O(1,024 log 1,024).
        """
        if not self._recent:
            return None
        ordered = sorted(self._recent)
        return 1000.0 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]
