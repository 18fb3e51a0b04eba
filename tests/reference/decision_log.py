"""What is written to a decision log, as the compiled core writes it, over a naive ring and sums."""

from typing import Any

from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight import decision_log
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.decision_record import State, thin
from kvmesh.core.insight.histogram import SECONDS, TOKENS
from kvmesh.core.insight.traffic import KEPT_S
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.shadow_policy import ShadowPolicies
from tests.reference.insight.decision_record import Record, Ring
from tests.reference.insight.totals import Totals


def naive_log(
    *,
    capacity: int = decision_log.DEFAULT_CAPACITY,
    whole_per_s: int = decision_log.DEFAULT_WHOLE_PER_S,
    max_candidates: int = decision_log.MAX_CANDIDATES,
    max_waiting_blocks: int = decision_log.MAX_WAITING_BLOCKS,
    shadows: ShadowPolicies | None = None,
) -> DecisionLog:
    """Return a log that takes any decision, not only what the compiled core decided."""
    log = DecisionLog(shadows=shadows)
    ring: Any = Ring(capacity, max_waiting_blocks, max_candidates, whole_per_s, thin)
    totals: Any = Totals(KEPT_S, SECONDS, TOKENS)
    log.records, log.may_weigh_all, log.totals = ring, ring.may_weigh_all, totals
    return log


def ring_of(log: DecisionLog) -> Ring:
    """Return the ring of a `naive_log`."""
    ring: Any = log.records
    assert isinstance(ring, Ring)
    return ring


def totals_of(log: DecisionLog) -> Totals:
    """Return the sums of a `naive_log`."""
    totals: Any = log.totals
    assert isinstance(totals, Totals)
    return totals


def decided(
    log: DecisionLog, request_id: bytes, decision: Decision, hashes: Hashes, now: float
) -> Any:
    """Enter a request with its first decision; return its record."""
    record = Record(request_id, decision, hashes, now)
    if log.left_out is not None and len(decision.candidates) == decision.considered:
        record.left_out = log.left_out(now)
    ring_of(log).append(record)
    totals_of(log).decided(now)
    return record


def ended(
    log: DecisionLog, record: Any, state: State, status: int, usage: Usage | None, now: float
) -> None:
    """Note the end and what the engine reported."""
    record.reported = usage
    ring_of(log).end(record, state, status, now)
    totals_of(log).ended(record)
