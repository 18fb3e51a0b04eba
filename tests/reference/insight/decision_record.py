"""The naive models of records and their ring: kvmesh/native/insight/records.c, ring.c."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.decision_record import State
from kvmesh.core.insight.trace_ring import Traced
from kvmesh.core.members.left_out import LeftOut
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.output_lengths import OutputForecast

MAX_ENDED: Final = 1 << 14
"""Ends that wait to be read; beyond it new ones are dropped and counted."""


class Record:
    """One request: its last decision, and what became of it."""

    def __init__(
        self, request_id: bytes, decision: Decision, hashes: Hashes, decided_s: float
    ) -> None:
        self.request_id = request_id
        self.hashes: Hashes | None = hashes
        self.hash_count = hashes.blocks
        self.decided_s = decided_s
        self.number = self.version = self.waiting_blocks = 0
        self.state: State = "open"
        self.status = 0
        self.attempts = 1
        self.failures: tuple[str, ...] = ()
        self.first_token_s: float | None = None
        self.ended_s: float | None = None
        self.reported: Usage | None = None
        self.round_robin_blocks: int | None = None
        self.held_ms: float | None = None
        self.forecast: OutputForecast | None = None
        self.left_out: LeftOut | None = None
        self.overridden = self.estimated = False
        self.output_tokens = 0
        self.traced: Traced | None = None
        self.tenant = ""
        self.take(decision)

    def take(self, decision: Decision) -> None:
        chosen = decision.chosen
        self.decision = decision
        self.worker: WorkerId = decision.worker
        self.policy = decision.policy
        self.overlap_blocks = decision.overlap_blocks
        self.request_blocks = decision.total_blocks
        self.considered = decision.considered
        self.best_overlap_blocks = decision.best_overlap_blocks
        self.by_cache = decision.by_cache
        self.prompt_tokens = chosen.prompt_tokens
        self.block_size = chosen.block_size
        self.capacity_blocks = chosen.capacity_blocks
        self.ms_per_token = chosen.ms_per_token
        self.kept = len(decision.candidates) if len(decision.candidates) > 1 else 0

    @property
    def ttft_ms(self) -> float | None:
        if self.first_token_s is None:
            return None
        return max(0.0, self.first_token_s - self.decided_s) * 1000.0

    def known_hashes(self) -> Sequence[int]:
        return () if self.hashes is None else self.hashes.upto(self.hash_count)

    def forget_hashes(self) -> None:
        self.hashes = None


class Ring:
    """The last `capacity` records, and who still has to read them."""

    def __init__(
        self,
        capacity: int,
        max_waiting_blocks: int,
        max_candidates: int,
        whole_per_s: int,
        thin: Callable[[Decision], Decision],
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a ring keeps at least 1 record, not {capacity}")
        self.capacity = capacity
        self.number = self.version = self.dropped = self.dropped_ends = 0
        self.candidates = self.waiting_blocks = 0
        self._max_waiting_blocks = max_waiting_blocks
        self._max_candidates = max_candidates
        self._whole_per_s = whole_per_s
        self._thin_decision = thin
        self._records: deque[Record] = deque()
        self._ended: deque[Record] = deque()
        self._cursor = self._whole = 0
        self._second = self._asked = 0

    def __len__(self) -> int:
        return len(self._records)

    def may_weigh_all(self, now: float) -> bool:
        second = int(now)
        if second != self._second:
            self._second = second
            self._asked = 0
        self._asked += 1
        return self._asked <= self._whole_per_s

    def append(self, record: Record) -> None:
        if record.number:
            raise ValueError("this record is in a ring already")
        if len(self._records) == self.capacity:
            self._evict()
        self._records.append(record)
        self.number += 1
        self.version += 1
        record.number, record.version = self.number, self.version
        if self.waiting_blocks < self._max_waiting_blocks:
            record.waiting_blocks = 1 + record.hash_count
            self.waiting_blocks += record.waiting_blocks
        else:
            record.forget_hashes()
            self.dropped += 1
        self.candidates += record.kept
        self._bound_candidates()

    def take_again(self, record: Record, decision: Decision) -> None:
        here = record.number > self.number - len(self._records)
        self.candidates -= record.kept if here else 0
        record.take(decision)
        record.attempts += 1
        self.version += 1
        record.version = self.version
        if not here:
            self._thin(record)
            return
        self.candidates += record.kept
        self._whole = min(self._whole, record.number - 1)
        self._bound_candidates()

    def first_token(self, record: Record, now: float) -> None:
        record.first_token_s = now
        self.version += 1
        record.version = self.version

    def end(self, record: Record, state: State, status: int, now: float) -> None:
        record.state, record.status, record.ended_s = state, status, now
        self.version += 1
        record.version = self.version
        if len(self._ended) < MAX_ENDED:
            self._ended.append(record)
        else:
            self.dropped_ends += 1

    def next_decided(self) -> Record | None:
        first = self.number - len(self._records) + 1
        while self._cursor < self.number:
            self._cursor += 1
            record = self._records[self._cursor - first]
            if record.waiting_blocks:
                self.waiting_blocks -= record.waiting_blocks
                record.waiting_blocks = 0
                return record
        return None

    def next_ended(self) -> Record | None:
        if self._ended and self._ended[0].number <= self._cursor:
            return self._ended.popleft()
        return None

    def waiting(self) -> tuple[int, int]:
        return self.number - self._cursor, len(self._ended)

    def find(self, request_id: bytes) -> Record | None:
        return next((one for one in reversed(self._records) if one.request_id == request_id), None)

    def latest(self, limit: int) -> list[Record]:
        records = self._records
        return [records[-number] for number in range(1, min(limit, len(records)) + 1)]

    def changed_after(self, version: int) -> list[Record]:
        return [one for one in reversed(self._records) if one.version > version]

    def _evict(self) -> None:
        oldest = self._records.popleft()
        self.candidates -= oldest.kept
        oldest.forget_hashes()
        if oldest.number > self._cursor:
            self._cursor = oldest.number
            if oldest.waiting_blocks:
                self.waiting_blocks -= oldest.waiting_blocks
                oldest.waiting_blocks = 0
                self.dropped += 1

    def _bound_candidates(self) -> None:
        first = self.number - len(self._records) + 1
        self._whole = max(self._whole, first - 1)
        while self.candidates > self._max_candidates and self._whole < self.number:
            self._whole += 1
            oldest = self._records[self._whole - first]
            self.candidates -= oldest.kept
            self._thin(oldest)

    def _thin(self, record: Record) -> None:
        if record.kept:
            record.decision = self._thin_decision(record.decision)
            record.kept = 0
