from typing import Any

import msgspec
import pytest

from kvmesh.core.blocks.hashing import BlockHashes, as_key
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.decision_record import State
from kvmesh.core.insight.trace_ring import TraceRing, TraceRow
from tests.reference.decision_log import decided, ended, naive_log, ring_of
from tests.unit.core.insight.test_decision_log import decide

HASHES = BlockHashes(list(range(320)), 16)


def traced_log(max_bytes: int = 1 << 20) -> tuple[DecisionLog, TraceRing]:
    log, ring = naive_log(), TraceRing(16, window_s=600.0, max_bytes=max_bytes)
    log.ring = ring
    return log, ring


def play(
    log: DecisionLog,
    *,
    state: State = "finished",
    status: int = 200,
    usage: Usage | None = None,
    first: bool = True,
    overlap: int = 0,
) -> Any:
    decision = decide(prompt=HASHES)
    chosen = msgspec.structs.replace(decision.chosen, overlap_blocks=overlap)
    decision = msgspec.structs.replace(
        decision, candidates=(chosen,), chosen=chosen, overlap_blocks=overlap
    )
    record = decided(log, b"a", decision, HASHES, 10.0)
    if first:
        ring_of(log).first_token(record, 10.5)
    record.output_tokens = 5
    ended(log, record, state, status, usage, 12.5)
    return record


def rows(ring: TraceRing) -> list[TraceRow]:
    return ring.sample(0.0, 13.0)[0]


def test_a_request_that_ended_is_a_row_of_the_trace() -> None:
    log, ring = traced_log()
    record = play(log, usage=Usage(320, 21, 0))
    record.held_ms = 2000.0
    assert rows(ring) == []

    log.settle()

    (row,) = rows(ring)
    assert (row.at_s, row.prompt_tokens, row.output_tokens) == (8.0, 320, 21)
    assert row.worker == record.decision.worker
    assert row.beginnings() == [as_key(HASHES.upto(20)[at]) for at in (7, 15)]
    assert row.ttft_ms == pytest.approx(2500.0), "from its arrival on, as at_s"
    assert row.itl_ms == pytest.approx(100.0)


def test_a_request_from_before_a_change_of_the_block_size_is_only_counted() -> None:
    log, ring = traced_log()
    play(log)
    log.settle()
    play(log)
    ring.resize(32)

    log.settle()

    assert rows(ring) == []
    play(log)
    ring.resize(16)
    log.settle()
    assert len(rows(ring)) == 1


def test_what_was_counted_is_taken_where_the_engine_reports_nothing() -> None:
    log, ring = traced_log()
    play(log)
    play(log, usage=Usage(320, 0))
    log.settle()

    assert [row.output_tokens for row in rows(ring)] == [5, 5]


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        (None, 32),
        (Usage(320, 5), 32),
        (Usage(320, 5, 0), 0),
        (Usage(320, 5, 96), 96),
        (Usage(320, 5, 9999), 320),
    ],
)
def test_what_was_cached_is_by_the_engines_word_else_as_predicted(
    usage: Usage | None, cached: int
) -> None:
    log, ring = traced_log()
    play(log, usage=usage, overlap=2)
    log.settle()

    assert [row.cached_tokens for row in rows(ring)] == [cached]


def test_an_answer_without_tokens_has_one_and_no_time_between() -> None:
    log, ring = traced_log()
    play(log, first=False).output_tokens = 0
    log.settle()

    (row,) = rows(ring)
    assert (row.output_tokens, row.ttft_ms, row.itl_ms) == (1, None, None)


@pytest.mark.parametrize(
    ("state", "status", "first", "kept"),
    [
        ("finished", 400, False, 0),
        ("finished", 500, False, 0),
        ("client_gone", 200, True, 1),
        ("client_gone", 0, False, 0),
        ("cut", 200, True, 1),
        ("failed", 0, False, 0),
    ],
)
def test_only_what_an_engine_worked_on_is_a_row(
    state: State, status: int, first: bool, kept: int
) -> None:
    log, ring = traced_log()
    play(log, state=state, status=status, first=first)
    log.settle()

    assert len(rows(ring)) == kept


def test_a_request_of_a_family_left_out_is_only_counted() -> None:
    log, ring = traced_log()
    record = play(log)
    log.settle(1)
    record.traced = None
    log.settle()

    assert (ring.statistics().seen, rows(ring)) == (1, [])
