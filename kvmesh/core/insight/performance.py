"""How well requests went, as the tuner scores it."""

from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh.core.insight.trace_ring import TraceRow

TPOT_EXPONENT: Final = 0.25
"""How much time per token counts beside the time to the first."""

SLOWEST: Final = 0.9


class Performance(msgspec.Struct, frozen=True):
    """p90 time to the first token and per further token of `requests`, ms; 0: none was seen.

    The last of them ended `seconds` after the first began.
    """

    requests: int
    ttft_ms_p90: float
    tpot_ms_p90: float
    seconds: float = 0.0

    @property
    def score(self) -> float:
        """Return p90 TTFT x p90 TPOT ^ 1/4, each 1 ms at least: less is better."""
        return score_of(self.ttft_ms_p90, self.tpot_ms_p90)

    def __str__(self) -> str:
        return f"p90 TTFT {self.ttft_ms_p90:.0f} ms, p90 per token {self.tpot_ms_p90:.1f} ms"


def score_of(ttft_ms_p90: float, tpot_ms_p90: float) -> float:
    """Return the score of p90 times, ms, as `kvmesh simulate --tune` has it: less is better."""
    return max(ttft_ms_p90, 1.0) * float(max(tpot_ms_p90, 1.0) ** TPOT_EXPONENT)


def performance_of(rows: Sequence[TraceRow]) -> Performance:
    """Return how well `rows` went. O(n log n)."""
    return Performance(
        len(rows),
        quantile([row.ttft_ms for row in rows if row.ttft_ms is not None], SLOWEST) or 0.0,
        quantile([row.itl_ms for row in rows if row.itl_ms is not None], SLOWEST) or 0.0,
        max([row.ended_s for row in rows]) - min([row.at_s for row in rows]) if rows else 0.0,
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of `values` lie; None of nothing."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else None
