"""Every recent decision with its terms and what became of it, bounded, found by request id."""

from collections import deque
from collections.abc import Callable
from heapq import nlargest
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.decision_record import DecisionRecord, State, thin
from kvmesh.core.insight.hot_prefixes import HotPrefixes
from kvmesh.core.insight.round_robin_shadow import RoundRobinShadow
from kvmesh.core.insight.trace_ring import TraceRing
from kvmesh.core.insight.trace_rows import keep_record
from kvmesh.core.insight.traffic import Traffic, TrafficSecond, sketch_add
from kvmesh.core.insight.traffic_totals import TrafficTotals
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.shadow_policy import ShadowPolicies
from kvmesh.core.workers.left_out import LeftOut

DEFAULT_CAPACITY: Final = 4096
DEFAULT_WHOLE_PER_S: Final = 100

MAX_CANDIDATES: Final = 1 << 15
"""Candidates kept in all; beyond it the oldest decisions keep only the chosen one. 16 MB."""

MAX_WAITING_BLOCKS: Final = 1 << 18
"""Blocks of prompts that wait for the shadow; beyond it prompts are left out of it."""

REQUEST_BLOCKS: Final = 128
"""What settling one request costs besides its blocks, in blocks; and again its end."""

LATENCIES_KEPT: Final = 64
"""First tokens per worker whose times are remembered."""

MAX_WORKERS: Final = 1024
"""Workers whose first tokens are remembered; the one first seen is forgotten first."""

_MAX_ENDED: Final = 1 << 16
_SERVER_ERROR: Final = 500


class DecisionLogStatistics(msgspec.Struct, frozen=True):
    """Records kept now, candidates kept in them, entries of the shadow; counts since the start."""

    records: int
    candidates: int
    decisions: int
    shadow_entries: int
    unshadowed: int


class DecisionLog:
    """A ring of the last `capacity` requests, and the traffic they made.

    A request costs about 2 us here; all else (the shadow, sketches, hot prefixes) waits for
    `settle`. A request id that a client uses again names its newest request. `replicas`: routers,
    this one included, that send requests to the same workers. `left_out` tells to whom no request
    may go; it is asked for decisions with all their candidates. `ring`: where a trace is kept.
    """

    def __init__(
        self,
        *,
        capacity: int = DEFAULT_CAPACITY,
        whole_per_s: int = DEFAULT_WHOLE_PER_S,
        max_candidates: int = MAX_CANDIDATES,
        max_waiting_blocks: int = MAX_WAITING_BLOCKS,
        shadows: ShadowPolicies | None = None,
    ) -> None:
        self.left_out: Callable[[float], LeftOut] | None = None
        self.shadows = shadows or ShadowPolicies(())
        self.traffic = Traffic()
        self.prefixes = HotPrefixes()
        self.totals = TrafficTotals()
        self.replicas = 1
        self.ring: TraceRing | None = None
        self._capacity = capacity
        self._whole_per_s = whole_per_s
        self._max_candidates = max_candidates
        self._max_waiting_blocks = max_waiting_blocks
        self._records: deque[DecisionRecord] = deque()
        self._by_id: dict[bytes, DecisionRecord] = {}
        self._whole: dict[int, DecisionRecord] = {}
        self._candidates = 0
        self._waiting: deque[tuple[DecisionRecord, Hashes]] = deque()
        self._waiting_blocks = 0
        self._ended: deque[DecisionRecord] = deque(maxlen=_MAX_ENDED)
        self._shadow = RoundRobinShadow()
        self._latencies: dict[WorkerId, deque[float]] = {}
        self._number = self._version = self._unshadowed = 0
        self._present = TrafficSecond(-1)
        self._second = 0
        self._asked = 0

    @property
    def version(self) -> int:
        """Return the version of the newest change."""
        return self._version

    def may_weigh_all(self, now: float) -> bool:
        """Return whether the next decision shall keep every candidate: so many each second."""
        second = int(now)
        if second != self._second:
            self._second = second
            self._asked = 0
        self._asked += 1
        return self._asked <= self._whole_per_s

    def decided(
        self, request_id: bytes, decision: Decision, hashes: Hashes, now: float
    ) -> DecisionRecord:
        """Enter a request with its first decision."""
        self._number += 1
        record = DecisionRecord(self._number, request_id, decision, now)
        if len(self._records) >= self._capacity:
            self._evict()
        self._records.append(record)
        self._by_id[request_id] = record
        if len(decision.candidates) > 1:
            self._keep(record)
        if len(decision.candidates) == decision.considered and self.left_out is not None:
            record.left_out = self.left_out(now)
        if self._waiting_blocks < self._max_waiting_blocks:
            self._waiting.append((record, hashes))
            self._waiting_blocks += 1 + hashes.blocks
        else:
            self._unshadowed += 1
        second = self._present
        if second.second != int(now):
            second = self._present = self.traffic.at(now)
        second.requests += 1
        self._version = record.version = self._version + 1
        return record

    def decided_again(self, record: DecisionRecord, decision: Decision) -> None:
        """Take the decision for another worker after the one before failed."""
        self._drop(record)
        record.decision = decision
        record.attempts += 1
        if len(decision.candidates) > 1:
            self._keep(record)
        self._version = record.version = self._version + 1

    def attempt_failed(self, record: DecisionRecord, why: str) -> None:
        """Note what went wrong at the worker it was sent to."""
        record.failures = (*record.failures, f"{record.decision.worker}: {why}")

    def first_token(self, record: DecisionRecord, now: float) -> None:
        """Note that its answer begins."""
        record.first_token_s = now
        self._version = record.version = self._version + 1

    def ended(
        self, record: DecisionRecord, state: State, status: int, usage: Usage | None, now: float
    ) -> None:
        """Note the end and what the engine reported."""
        record.state = state
        record.status = status
        record.reported = usage
        record.ended_s = now
        self._ended.append(record)
        self._version = record.version = self._version + 1

    def refused(self, now: float) -> None:
        """Count a request for which there was no worker."""
        self.traffic.at(now).refused += 1

    def settle(self, budget_blocks: int = 1 << 14) -> bool:
        """Do what waits, up to about `budget_blocks` blocks of prompts; True when nothing is left.

        About 0.02 us a block; a request counts for `REQUEST_BLOCKS` more, its end again.
        """
        waiting, ended = self._waiting, self._ended
        while waiting and budget_blocks > 0:
            record, hashes = waiting.popleft()
            blocks = hashes.blocks
            self._waiting_blocks -= 1 + blocks
            budget_blocks -= REQUEST_BLOCKS + blocks
            chosen = record.decision.chosen
            known = hashes.upto(blocks)
            self.shadows.judge(record.decision)
            if self.ring is not None:
                record.traced = self.ring.take(known)
            self.prefixes.record(known, record.decision.overlap_blocks, record.decided_s)
            record.round_robin_blocks = self._shadow.route(
                known,
                record.decision.considered,
                chosen.capacity_blocks,
                self.replicas,
            )
        next_number = waiting[0][0].number if waiting else self._number + 1
        while ended and ended[0].number < next_number and budget_blocks > 0:
            budget_blocks -= REQUEST_BLOCKS
            self._count(ended.popleft())
        return not waiting and not ended

    def backlog_blocks(self) -> int:
        """Return what waits for `settle`, in the unit of its budget."""
        return self._waiting_blocks + REQUEST_BLOCKS * (len(self._waiting) + len(self._ended))

    def find(self, request_id: bytes) -> DecisionRecord | None:
        """Return the newest request of that id; None when none is kept."""
        return self._by_id.get(request_id)

    def latest(self, limit: int) -> list[DecisionRecord]:
        """Return the newest requests, newest first."""
        records = self._records
        return [records[-number] for number in range(1, min(limit, len(records)) + 1)]

    def changed_after(self, version: int, limit: int) -> list[DecisionRecord]:
        """Return the newest `limit` requests that changed after `version`, oldest change first.

        O(requests kept): who asks is rare, what changes is not.
        """
        changed = (record for record in self._records if record.version > version)
        return nlargest(limit, changed, key=_version)[::-1]

    def ttft_ms(self, worker: WorkerId) -> float | None:
        """Return the median of the worker's last first-token times; None before any."""
        times = sorted(self._latencies.get(worker, ()))
        return times[len(times) // 2] if times else None

    def statistics(self) -> DecisionLogStatistics:
        """Return the present counts."""
        return DecisionLogStatistics(
            records=len(self._records),
            candidates=self._candidates,
            decisions=self._number,
            shadow_entries=self._shadow.entries(),
            unshadowed=self._unshadowed,
        )

    def _evict(self) -> None:
        oldest = self._records.popleft()
        self._drop(oldest)
        if self._by_id.get(oldest.request_id) is oldest:
            del self._by_id[oldest.request_id]

    def _keep(self, record: DecisionRecord) -> None:
        record.kept = len(record.decision.candidates)
        self._whole[record.number] = record
        self._candidates += record.kept
        while self._candidates > self._max_candidates:
            oldest = self._whole[next(iter(self._whole))]
            self._drop(oldest)
            oldest.decision = thin(oldest.decision)

    def _drop(self, record: DecisionRecord) -> None:
        if self._whole.pop(record.number, None) is not None:
            self._candidates -= record.kept
            record.kept = 0

    def _count(self, record: DecisionRecord) -> None:
        """Count an ended request in the second of its end."""
        assert record.ended_s is not None
        self.totals.count(record)
        if self.ring is not None:
            keep_record(self.ring, record, record.ended_s)
        second = self.traffic.at(record.ended_s)
        if record.state in ("failed", "cut") or record.status >= _SERVER_ERROR:
            second.failed += 1
        elif record.state == "finished":
            second.finished += 1
        cached = self._cached_tokens(record)
        if record.state == "finished":
            self._count_tokens(record, second)
        if (ttft_ms := record.ttft_ms) is None:
            return
        sketch_add(second.ttft, ttft_ms)
        chosen = record.decision.chosen
        times = self._latencies.setdefault(chosen.worker, deque(maxlen=LATENCIES_KEPT))
        times.append(ttft_ms)
        if len(self._latencies) > MAX_WORKERS:
            del self._latencies[next(iter(self._latencies))]
        if cached is not None and record.round_robin_blocks is not None:
            # Round robin would have prefilled what it had not cached, too.
            lost = cached - record.round_robin_blocks * chosen.block_size
            sketch_add(second.round_robin_ttft, ttft_ms + lost * chosen.ms_per_token)

    def _count_tokens(self, record: DecisionRecord, second: TrafficSecond) -> None:
        chosen, usage = record.decision.chosen, record.reported
        prompt, size = chosen.prompt_tokens, chosen.block_size
        predicted, robin = chosen.overlap_blocks * size, record.round_robin_blocks
        second.prompt_tokens += prompt
        second.overridden += record.overridden
        if record.decision.by_cache:
            second.foreseen_tokens += prompt
            second.predicted_tokens += predicted
        if robin is not None:
            second.shadowed_tokens += prompt
            second.round_robin_tokens += robin * size
        if usage is None or usage.cached_tokens is None:
            return
        second.reported_tokens += usage.prompt_tokens
        second.cached_tokens += usage.cached_tokens
        if record.overridden or not record.decision.by_cache or robin is None:
            return
        second.own_requests += 1
        second.own_prompt_tokens += prompt
        second.own_predicted_tokens += predicted
        second.own_round_robin_tokens += robin * size
        second.own_reported_tokens += usage.prompt_tokens
        second.own_cached_tokens += usage.cached_tokens

    def _cached_tokens(self, record: DecisionRecord) -> int | None:
        """Return the prompt tokens that were cached: reported, else predicted, else unknown."""
        usage = record.reported
        if usage is not None and usage.cached_tokens is not None:
            return usage.cached_tokens
        if record.decision.by_cache:
            return record.decision.overlap_blocks * record.decision.chosen.block_size
        return None


def _version(record: DecisionRecord) -> int:
    return record.version
