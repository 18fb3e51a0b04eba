"""What became of all requests, exactly: by second for charts, since the start for metrics."""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from kvmesh._native import Histogram
from kvmesh.compiled import NATIVE
from kvmesh.core.insight.decision_record import DecisionRecord
from kvmesh.core.insight.histogram import SECONDS
from kvmesh.core.insight.traffic import KEPT_S, Traffic, sketch_add

_SERVER_ERROR: Final = 500


class TokenCounts(msgspec.Struct):
    """Prompt tokens of served answers, and of those whose engine told its cache use: all
    (`reported`), predicted to be cached, and cached by its word.
    """

    prompt: int = 0
    reported: int = 0
    predicted: int = 0
    cached: int = 0


class Totals:
    """Counts requests as they are decided and as they end, within these calls: no load delays or
    drops a count. What their shadow would have done comes later (`compared`), of those it followed.

    Histograms and tokens are of requests that finished, tokens those of prompts.
    `best_tokens` are what the worker that held most of a prompt held of it, `predicted_tokens` what
    the chosen one did: the difference is overlap given up for load.
    """

    def __init__(self, kept_s: int, bounds: Sequence[float]) -> None:
        self.ttft_s = Histogram(bounds)
        self.itl_s = Histogram(bounds)
        self.duration_s = Histogram(bounds)
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.best_tokens = 0
        self.predicted_tokens = 0
        self._traffic = Traffic(kept_s=kept_s)

    def decided(self, now: float) -> None:
        """Count a request as decided now."""
        self._traffic.at(now).requests += 1

    def refused(self, now: float) -> None:
        """Count a request for which there was no worker."""
        self._traffic.at(now).refused += 1

    def ended(self, record: DecisionRecord) -> None:
        """Count a request that ended, in the second of its end."""
        assert record.ended_s is not None
        if record.state == "finished":
            self._count_whole(record, record.ended_s)
        second = self._traffic.at(record.ended_s)
        if record.state in ("failed", "cut") or record.status >= _SERVER_ERROR:
            second.failed += 1
        elif record.state == "finished":
            second.finished += 1
        if record.state == "finished":
            second.prompt_tokens += record.prompt_tokens
            second.overridden += record.overridden
            if record.by_cache:
                second.foreseen_tokens += record.prompt_tokens
                second.predicted_tokens += record.overlap_blocks * record.block_size
            usage = record.reported
            if usage is not None and usage.cached_tokens is not None:
                second.reported_tokens += usage.prompt_tokens
                second.cached_tokens += usage.cached_tokens
        if record.ttft_ms is not None:
            sketch_add(second.ttft, record.ttft_ms)

    def compared(self, record: DecisionRecord) -> None:
        """Count what round robin would have done with an ended request, if that is known."""
        if record.round_robin_blocks is None:
            return
        assert record.ended_s is not None
        second, usage = self._traffic.at(record.ended_s), record.reported
        predicted = record.overlap_blocks * record.block_size
        robin = record.round_robin_blocks * record.block_size
        told = usage is not None and usage.cached_tokens is not None
        if record.state == "finished":
            second.shadowed_tokens += record.prompt_tokens
            second.round_robin_tokens += robin
            if usage is not None and told and not record.overridden and record.by_cache:
                second.own_requests += 1
                second.own_prompt_tokens += record.prompt_tokens
                second.own_predicted_tokens += predicted
                second.own_round_robin_tokens += robin
                second.own_reported_tokens += usage.prompt_tokens
                second.own_cached_tokens += usage.cached_tokens or 0
        if record.ttft_ms is None or not (told or record.by_cache):
            return
        cached = (usage.cached_tokens or 0) if usage is not None and told else predicted
        # Round robin would have prefilled what it had not cached, too.
        lost_ms = (cached - robin) * record.ms_per_token
        sketch_add(second.round_robin_ttft, record.ttft_ms + lost_ms)

    def rows(self, since: int) -> list[tuple[Any, ...]]:
        """Return the fields of each `TrafficSecond` from `since` on, oldest first."""
        return [msgspec.structs.astuple(one) for one in self._traffic.since(since)]

    def _count_whole(self, record: DecisionRecord, ended_s: float) -> None:
        duration_s = max(0.0, ended_s - record.decided_s)
        output = record.reported.completion_tokens if record.reported is not None else 0
        self.duration_s.observe(duration_s)
        size, overlap = record.block_size, record.overlap_blocks
        self.prompt_tokens += record.prompt_tokens
        self.output_tokens += output
        self.predicted_tokens += overlap * size
        self.best_tokens += max(record.best_overlap_blocks, overlap) * size
        if record.ttft_ms is None:
            return
        ttft_s = record.ttft_ms / 1000.0
        self.ttft_s.observe(ttft_s)
        if output > 1:
            self.itl_s.observe(max(0.0, duration_s - ttft_s) / (output - 1))


_new_totals: Final = (
    cast("Callable[[int, Sequence[float]], Totals]", NATIVE.Totals) if NATIVE else Totals
)

new_token_counts: Final = (
    cast("Callable[[], TokenCounts]", NATIVE.TokenCounts) if NATIVE else TokenCounts
)
"""Return counts of nothing."""


def new_totals(kept_s: int = KEPT_S) -> Totals:
    """Return the totals of nothing, for records of `new_record`."""
    return _new_totals(kept_s, SECONDS)
