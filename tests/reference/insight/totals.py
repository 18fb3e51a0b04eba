"""The naive model of what became of all requests: kvmesh/native/insight/totals.c."""

from collections.abc import Sequence
from math import ceil, floor, log
from typing import Any, Final

import msgspec
from sortedcontainers import SortedDict

from kvmesh._native import TokenCounts
from kvmesh.core.insight.traffic import Sketch, TrafficSecond
from tests.reference.insight.decision_record import Record
from tests.reference.insight.histogram import Histogram

_LEAST_MS: Final = 0.01
_MOST_MS: Final = 1e12
_LOG_GAMMA: Final = log(1.05)
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500


class _Traffic:
    """The last `kept_s` seconds in which anything happened."""

    def __init__(self, kept_s: int) -> None:
        self._kept_s = kept_s
        self._seconds: SortedDict[int, TrafficSecond] = SortedDict()

    def at(self, now: float) -> TrafficSecond:
        second = int(now)
        found = self._seconds.get(second)
        if found is None:
            found = self._seconds[second] = TrafficSecond(second)
            while self._seconds.peekitem(0)[0] <= second - self._kept_s:
                self._seconds.popitem(0)
        return found

    def since(self, second: int) -> list[TrafficSecond]:
        return [self._seconds[one] for one in self._seconds.irange(second)]


def sketch_add(sketch: Sketch, ms: float) -> None:
    """Count a duration."""
    number = ceil(log(min(max(ms, _LEAST_MS), _MOST_MS)) / _LOG_GAMMA)
    sketch[number] = sketch.get(number, 0) + 1


def _rounded(number: float) -> int:
    """Return as C rounds: halves away from 0."""
    return floor(number + 0.5)


class Totals:
    """Counts requests as they are decided and as they end, within these calls."""

    def __init__(self, kept_s: int, times: Sequence[float], sizes: Sequence[float]) -> None:
        self.ttft_s = Histogram(times)
        self.itl_s = Histogram(times)
        self.duration_s = Histogram(times)
        self.prompt_sizes = Histogram(sizes)
        self.output_sizes = Histogram(sizes)
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.best_tokens = 0
        self.predicted_tokens = 0
        self.tokens = TokenCounts()
        self._traffic = _Traffic(kept_s)

    def decided(self, now: float) -> None:
        self._traffic.at(now).requests += 1

    def refused(self, now: float) -> None:
        self._traffic.at(now).refused += 1

    def ended(self, record: Record, *, told: bool = True) -> None:
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
            if record.status < _CLIENT_ERROR:
                self._count_saved(second, record, told=told)
        if record.ttft_ms is not None:
            sketch_add(second.ttft, record.ttft_ms)

    def _count_saved(self, second: TrafficSecond, record: Record, *, told: bool) -> None:
        usage, tokens = record.reported, self.tokens
        predicted = record.overlap_blocks * record.block_size
        prompt, saved = record.prompt_tokens, min(predicted, record.prompt_tokens)
        if told and usage is not None and usage.cached_tokens is not None:
            prompt, saved = usage.prompt_tokens, usage.cached_tokens
            tokens.reported += prompt
            tokens.predicted += predicted
            tokens.cached += saved
            second.reported_tokens += prompt
            second.cached_tokens += saved
        tokens.prompt += prompt
        tokens.saved += saved
        tokens.saved_s += saved * record.ms_per_token / 1000.0
        second.answered_tokens += prompt
        second.saved_tokens += saved
        second.saved_us += _rounded(saved * record.ms_per_token * 1000.0)

    def compared(self, record: Record) -> None:
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
        return [msgspec.structs.astuple(one) for one in self._traffic.since(since)]

    def _count_whole(self, record: Record, ended_s: float) -> None:
        duration_s = max(0.0, ended_s - record.decided_s)
        output = record.reported.completion_tokens if record.reported is not None else 0
        output = output or record.output_tokens
        asked = record.prompt_tokens
        if record.reported is not None:
            asked = record.reported.prompt_tokens
        self.duration_s.observe(duration_s)
        self.prompt_sizes.observe(asked)
        self.output_sizes.observe(output)
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
