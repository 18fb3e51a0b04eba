"""How one request of a run went, and how many values are spread."""

from collections.abc import Iterable, Sequence
from math import floor
from typing import Final

import msgspec

UNKNOWN: Final = "unknown"
"""Worker, router or bucket of an answer that did not name it."""


class RequestOutcome(msgspec.Struct, frozen=True):
    """How one request went. Times in ms; `sent_ms` counts from the start of the run.

    `program` is the session that all of its `session` goes back to, `held_ms` how long a router
    held it before it chose an engine. `lag_ms` is how late it was sent: much of it means that the
    sender, not the server, was slow. `itl_ms` are the pauses between the chunks that carried
    tokens. `error` is the kind of failure, empty for success, `detail` its words; `status` is 0
    when no answer came.
    """

    index: int
    session: str
    sent_ms: float
    lag_ms: float
    latency_ms: float
    ttft_ms: float | None = None
    itl_ms: tuple[float, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    worker: str = UNKNOWN
    router: str = UNKNOWN
    bucket: str = UNKNOWN
    overlap_blocks: int | None = None
    status: int = 0
    error: str = ""
    detail: str = ""
    program: str = ""
    held_ms: float = 0.0

    def mean_itl_ms(self) -> float | None:
        """Return the time per output token after the first; None with fewer than two tokens.

        Counted over tokens where the server reports them: a chunk may carry several.
        """
        pauses = max(len(self.itl_ms), self.output_tokens - 1 if self.itl_ms else 0)
        return sum(self.itl_ms) / pauses if pauses else None


class Distribution(msgspec.Struct, frozen=True):
    """Mean and percentiles of `count` values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the `share` (0..1) quantile of ascending values, linear between neighbours."""
    position = share * (len(ordered) - 1)
    below = floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def distribution(values: Iterable[float]) -> Distribution | None:
    """Return the distribution of `values`, None for none. O(n log n)."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Distribution(
        count=len(ordered),
        mean=sum(ordered) / len(ordered),
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )
