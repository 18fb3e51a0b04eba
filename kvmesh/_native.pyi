"""What the compiled core has: `kvmesh/native/*.c`, in the same order of rooms.

Shapes, units and errors stand here, how it is done in the C. `tests/unit/test_native_stub.py`
holds this file to the module.
"""

from collections.abc import Iterable
from typing import Any, Final, Self, final

VERSION: Final[int]
"""The interface that this code was written for, `NATIVE_VERSION` in kvmesh/native/core.h."""

# ---- transport: heads, HTTP/1 requests, HTTP/2, ext_proc, ends of requests ----

# ---- index: table, beliefs, hash chains ----

# ---- engines and prompts: engines' caches, event streams, bodies, texts ----

# ---- workers and routing: loads, bookings, speeds, lengths, replicas' bookings ----

# ---- insight: records, totals, histograms ----

@final
class Histogram:
    """How often values of each size came: counts by upper bound, inclusive; the last bin has none.

    0.05 us a value.
    """

    total: float
    """The sum of all values."""

    def __new__(cls, bounds: Iterable[float]) -> Self:
        """Count nothing yet. Raises `ValueError` where the bounds do not rise."""

    def observe(self, value: float, /) -> None:
        """Count a value."""

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (bound, how many values were at most that), the last with bound infinity."""

# ---- decision: formulas, courses, the decider ----

def __getattr__(name: str) -> Any: ...  # noqa: ANN401  until all of them stand above
