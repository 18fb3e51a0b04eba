"""One request's decision and what became of it, and the ring of the last of them."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, cast

import msgspec

from kvmesh.compiled import NATIVE
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.trace_ring import Traced
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.output_lengths import OutputForecast
from kvmesh.core.workers.left_out import LeftOut

State = Literal["open", "finished", "client_gone", "failed", "cut", "refused"]

MAX_ENDED: Final = 1 << 14
"""Ends that wait to be read; beyond it new ones are dropped and counted."""

_NO_REASONS: Final[tuple[str, ...]] = ()


class DecisionRecord:
    """One request: its last decision, and what became of it. Times are the caller's, seconds.

    What of the decision is counted stands in the record itself; the `decision` as a whole, and
    `forecast`, may be made only when somebody reads them. `estimated`: `prompt_tokens` come from
    the size of the body, for nothing asked about its prompt.
    `attempts` counts workers it was sent to, `failures` says what went wrong at those before the
    last. `round_robin_blocks` is what round robin would have found cached; None: not known (yet).
    `held_ms` is how long it waited at the router before its first decision; None: it was not asked
    to. `left_out` are the workers to which no request might go when it was first decided, None
    where that was not kept. `forecast` is how long its answer was expected to become,
    `output_tokens` how long it was when its worker was given back. `overridden`: its client had it
    routed by another policy. `traced` is what a trace keeps of its prompt. `tenant` sent it.
    `kept` candidates are in the decision, 0 where that is the chosen one alone.
    `number` and `version` are the ring's; `version` grows with every change of any record.
    """

    __slots__ = (
        "attempts", "best_overlap_blocks", "block_size", "by_cache", "capacity_blocks",
        "considered", "decided_s", "decision", "ended_s", "estimated", "failures", "first_token_s",
        "forecast", "hash_count", "hashes", "held_ms", "kept", "left_out", "ms_per_token", "number",
        "output_tokens", "overlap_blocks", "overridden", "policy", "prompt_tokens", "reported",
        "request_blocks", "request_id", "round_robin_blocks", "state", "status", "tenant", "traced",
        "version", "waiting_blocks", "worker",
    )  # fmt: skip

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
        self.failures = _NO_REASONS
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
        """Stand for this decision from now on."""
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
        """Return the time from the first decision to the first token."""
        if self.first_token_s is None:
            return None
        return max(0.0, self.first_token_s - self.decided_s) * 1000.0

    def known_hashes(self) -> Sequence[int]:
        """Return the prompt's hashes, root first: none once they were let go."""
        return () if self.hashes is None else self.hashes.upto(self.hash_count)

    def forget_hashes(self) -> None:
        """Let the prompt's hashes go: of 100 KB they are 50 KB."""
        self.hashes = None


class RecordRing:
    """The last `capacity` records, and who still has to read them.

    One reader takes records in order (`next_decided`) and ends in order of their end
    (`next_ended`), in its own time. What it is too slow for is dropped and counted (`dropped`,
    `dropped_ends`): records that left the ring, or whose prompts would have made those that wait
    more than `max_waiting_blocks`. `whole_per_s` decisions a second are to keep all their
    candidates (`may_weigh_all`); `max_candidates` are kept in all; beyond it the oldest
    decisions keep only the chosen one (`thin`).
    """

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
        self._records: deque[DecisionRecord] = deque()
        self._ended: deque[DecisionRecord] = deque()
        self._cursor = self._whole = 0
        self._second = self._asked = 0

    def __len__(self) -> int:
        return len(self._records)

    def may_weigh_all(self, now: float) -> bool:
        """Return whether the next decision shall keep every candidate: so many each second."""
        second = int(now)
        if second != self._second:
            self._second = second
            self._asked = 0
        self._asked += 1
        return self._asked <= self._whole_per_s

    def append(self, record: DecisionRecord) -> None:
        """Take a new record in. O(1), amortised. Raises `ValueError` if a ring has it already."""
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

    def take_again(self, record: DecisionRecord, decision: Decision) -> None:
        """Have a record stand for another decision."""
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

    def first_token(self, record: DecisionRecord, now: float) -> None:
        """Note that a record's answer begins."""
        record.first_token_s = now
        self.version += 1
        record.version = self.version

    def end(self, record: DecisionRecord, state: State, status: int, now: float) -> None:
        """Note a record's end; what was reported of it stands there before."""
        record.state, record.status, record.ended_s = state, status, now
        self.version += 1
        record.version = self.version
        if len(self._ended) < MAX_ENDED:
            self._ended.append(record)
        else:
            self.dropped_ends += 1

    def next_decided(self) -> DecisionRecord | None:
        """Return the next record to read, its prompt's hashes included; None: all were read."""
        first = self.number - len(self._records) + 1
        while self._cursor < self.number:
            self._cursor += 1
            record = self._records[self._cursor - first]
            if record.waiting_blocks:
                self.waiting_blocks -= record.waiting_blocks
                record.waiting_blocks = 0
                return record
        return None

    def next_ended(self) -> DecisionRecord | None:
        """Return the next record that ended, of those read; None: there is none."""
        if self._ended and self._ended[0].number <= self._cursor:
            return self._ended.popleft()
        return None

    def waiting(self) -> tuple[int, int]:
        """Return how many records are not read yet, and how many ends."""
        return self.number - self._cursor, len(self._ended)

    def find(self, request_id: bytes) -> DecisionRecord | None:
        """Return the newest record of that id; None when none is kept. O(records)."""
        return next((one for one in reversed(self._records) if one.request_id == request_id), None)

    def latest(self, limit: int) -> list[DecisionRecord]:
        """Return the newest records, newest first."""
        records = self._records
        return [records[-number] for number in range(1, min(limit, len(records)) + 1)]

    def changed_after(self, version: int) -> list[DecisionRecord]:
        """Return the records that changed after `version`, newest record first. O(records)."""
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

    def _thin(self, record: DecisionRecord) -> None:
        if record.kept:
            record.decision = self._thin_decision(record.decision)
            record.kept = 0


NewRecord = Callable[[bytes, Decision, Hashes, float], DecisionRecord]
NewRing = Callable[[int, int, int, int, Callable[[Decision], Decision]], RecordRing]

new_record: Final = cast("NewRecord", NATIVE.Record) if NATIVE else DecisionRecord
"""Return the record of a request decided now."""

new_ring: Final = cast("NewRing", NATIVE.Ring) if NATIVE else RecordRing
"""Return an empty ring."""


def thin(decision: Decision) -> Decision:
    """Return the decision with the chosen candidate alone."""
    at = decision.candidates.index(decision.chosen)
    return msgspec.structs.replace(
        decision, candidates=(decision.chosen,), scores=(decision.scores[at],)
    )


def find_own(
    records: Iterable[DecisionRecord], request_id: bytes, tenant: str
) -> DecisionRecord | None:
    """Return the first record of a tenant's request of that id: another's may have the same."""
    own = (one for one in records if one.tenant == tenant)
    return next((one for one in own if one.request_id == request_id), None)


def count_states(records: Iterable[DecisionRecord], tenant: str) -> dict[str, int]:
    """Return how many of the records are a tenant's, by state."""
    return Counter(one.state for one in records if one.tenant == tenant)
