"""What is written to a decision log, as the compiled core writes it."""

from kvmesh._native import Record
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.decision_record import State
from kvmesh.core.routing.decision import Decision


def decided(
    log: DecisionLog, request_id: bytes, decision: Decision, hashes: Hashes, now: float
) -> Record:
    """Enter a request with its first decision."""
    record = Record(request_id, decision, hashes, now)
    if log.left_out is not None and len(decision.candidates) == decision.considered:
        record.left_out = log.left_out(now)
    log.records.append(record)
    log.totals.decided(now)
    return record


def ended(
    log: DecisionLog, record: Record, state: State, status: int, usage: Usage | None, now: float
) -> None:
    """Note the end and what the engine reported."""
    record.reported = usage
    log.records.end(record, state, status, now)
    log.totals.ended(record)
