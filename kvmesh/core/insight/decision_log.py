"""Every recent decision with its terms and what became of it, bounded, found by request id."""

from collections import deque
from collections.abc import Callable
from heapq import nlargest
from math import log2
from operator import attrgetter
from typing import Final

import msgspec

from kvmesh._native import Record, Ring, RoundRobinShadow, Totals
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.decision_record import thin
from kvmesh.core.insight.histogram import SECONDS, TOKENS
from kvmesh.core.insight.hot_prefixes import HotPrefixes
from kvmesh.core.insight.trace_ring import TraceRing
from kvmesh.core.insight.trace_rows import keep_record
from kvmesh.core.insight.traffic import KEPT_S, TrafficSecond
from kvmesh.core.members.left_out import LeftOut
from kvmesh.core.routing.shadow_policy import ShadowPolicies

DEFAULT_CAPACITY: Final = 4096
DEFAULT_WHOLE_PER_S: Final = 100

MAX_CANDIDATES: Final = 1 << 15
"""Candidates kept in all; beyond it the oldest decisions keep only the chosen one. 16 MB."""

MAX_WAITING_BLOCKS: Final = 1 << 18
"""Blocks of prompts that wait to be read; beyond it prompts are dropped. 2 MB."""

SHADOW_ENTRIES: Final = 1 << 18
"""Entries of all caches of the shadow together, some 10 MB."""

REQUEST_BLOCKS: Final = 128
"""What settling one request costs besides its blocks, in blocks; and again its end."""

LATENCIES_KEPT: Final = 64
"""First tokens per worker whose times are remembered."""

MAX_WORKERS: Final = 1024
"""Workers whose first tokens are remembered; the one first seen is forgotten first."""

SHARE_OF: Final = 1024
"""Decisions over which it is told anew how many of them are read."""


class DecisionLogStatistics(msgspec.Struct, frozen=True):
    """Records kept now, candidates kept in them, entries of the shadow; counts since the start.

    `read` decisions were looked into for the shadows, hot prefixes and the trace, and
    `read_ends` ends; `dropped` and `dropped_ends` came faster than they could be.
    """

    records: int
    candidates: int
    decisions: int
    shadow_entries: int
    read: int
    dropped: int
    read_ends: int
    dropped_ends: int


class DecisionLog:
    """A ring of the last `capacity` requests, and the traffic they made.

    A request is one record appended, and numbers written into it; `totals` are counted at once and
    are exact. All else (shadows, hot prefixes, the trace) reads the ring when `settle` has time
    for it, and leaves out, counted, what it is too slow for. A request id that a client uses again
    names its newest request. `replicas`: routers, this one included, that send requests to the
    same workers. `left_out` tells to whom no request may go; it is asked for decisions with all
    their candidates. `ring`: where a trace is kept.
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
        self.shadows = ShadowPolicies(()) if shadows is None else shadows
        self.prefixes = HotPrefixes()
        self.totals = Totals(KEPT_S, SECONDS, TOKENS)
        self.records = Ring(capacity, max_waiting_blocks, max_candidates, whole_per_s, thin)
        self.may_weigh_all = self.records.may_weigh_all
        self.replicas = 1
        self.ring: TraceRing | None = None
        self._shadow = RoundRobinShadow(SHADOW_ENTRIES)
        self._latencies: dict[WorkerId, deque[float]] = {}
        self._read = self._read_ends = 0
        self._scale, self._scaled = 1.0, (0, 0)

    @property
    def version(self) -> int:
        """Return the version of the newest change."""
        return self.records.version

    def attempt_failed(self, record: Record, why: str) -> None:
        """Note what went wrong at the worker it was sent to."""
        record.failures = (*record.failures, f"{record.worker}: {why}")

    def went_on(self, record: Record, passed: int, after_ms: float) -> None:
        """Note that a stream goes on at the worker it was sent to now."""
        why = f"{record.worker}: goes on behind token {passed}, after {after_ms:.0f} ms"
        record.failures = (*record.failures, why)

    def resumed(self, record: Record, passed: int) -> None:
        """Note that a client asked for the rest of a stream that it had lost."""
        why = f"{record.worker}: its client asked for the stream again, behind token {passed}"
        record.failures = (*record.failures, why)

    def seconds(self, since: int) -> list[TrafficSecond]:
        """Return the traffic of each second from `since` on that had any, oldest first."""
        return [TrafficSecond(*row) for row in self.totals.rows(since)]

    def settle(self, budget_blocks: int = 1 << 14) -> bool:
        """Read what waits, up to about `budget_blocks` blocks of prompts; True when all was read.

        About 0.02 us a block; a request counts for `REQUEST_BLOCKS` more, its end again.
        """
        records = self.records
        while budget_blocks > 0:
            decided = records.next_decided()
            if decided is not None:
                budget_blocks -= REQUEST_BLOCKS + decided.hash_count
                self._read_into(decided)
            ended = records.next_ended() if budget_blocks > 0 else None
            if ended is not None:
                budget_blocks -= REQUEST_BLOCKS
                self._count(ended)
            elif decided is None:
                return True
        return not any(records.waiting())

    def changed_after(self, version: int, limit: int) -> list[Record]:
        """Return the newest `limit` requests that changed after `version`, oldest change first.

        O(requests kept): who asks is rare, what changes is not.
        """
        return nlargest(limit, self.records.changed_after(version), key=_version)[::-1]

    def ttft_ms(self, worker: WorkerId) -> float | None:
        """Return the median of the worker's last first-token times; None before any."""
        times = sorted(self._latencies.get(worker, ()))
        return times[len(times) // 2] if times else None

    def statistics(self) -> DecisionLogStatistics:
        """Return the present counts."""
        records = self.records
        return DecisionLogStatistics(
            records=len(records),
            candidates=records.candidates,
            decisions=records.number,
            shadow_entries=self._shadow.entries(),
            read=self._read,
            dropped=records.dropped,
            read_ends=self._read_ends,
            dropped_ends=records.dropped_ends,
        )

    def _read_into(self, record: Record) -> None:
        """Do what needs the prompt of a request; its hashes are let go."""
        self._read += 1
        if len(self.shadows) and (record.kept or 1) >= record.considered:
            self.shadows.judge(record.decision)
        if record.estimated:
            return
        known = record.known_hashes()
        record.forget_hashes()
        if self.ring is not None:
            record.traced = self.ring.take(known)
        self.prefixes.record(known, record.overlap_blocks, record.decided_s)
        workers = self.replicas * self._sampled()
        record.round_robin_blocks = self._shadow.route(
            known, record.considered, record.capacity_blocks, workers
        )

    def _sampled(self) -> float:
        """Return of how many decisions one is read, as a power of two.

        The shadow takes those dropped for another replica's: it models fewer workers for them.
        """
        read, dropped = self._read - self._scaled[0], self.records.dropped - self._scaled[1]
        if read + dropped >= SHARE_OF:
            self._scale = 2.0 ** round(log2((read + dropped) / max(1, read)))
            self._scaled = self._read, self.records.dropped
        return self._scale

    def _count(self, record: Record) -> None:
        """Do what waits for the end of a request."""
        assert record.ended_s is not None
        self._read_ends += 1
        self.totals.compared(record)
        if self.ring is not None:
            keep_record(self.ring, record, record.ended_s)
        if (ttft_ms := record.ttft_ms) is None:
            return
        times = self._latencies.setdefault(record.worker, deque(maxlen=LATENCIES_KEPT))
        times.append(ttft_ms)
        if len(self._latencies) > MAX_WORKERS:
            del self._latencies[next(iter(self._latencies))]


_version: Final = attrgetter("version")
