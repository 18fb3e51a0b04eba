import msgspec
import pytest

from kvmesh._native import Record, Ring, Totals
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.decision_record import State, thin
from kvmesh.core.insight.histogram import SECONDS
from kvmesh.core.insight.traffic import TrafficSecond
from tests.reference.decision_log import decided, ended
from tests.unit.core.insight.test_decision_log import decide

SIZE = 16


def finished(log: DecisionLog, *, best: int = 0, usage: Usage | None = None) -> None:
    decision = msgspec.structs.replace(decide(), best_overlap_blocks=best)
    record = decided(log, b"r", decision, BlockHashes.of([], SIZE), 1.0)
    log.records.first_token(record, 1.5)
    ended(log, record, "finished", 200, usage, 3.5)
    while not log.settle():
        pass


def test_a_finished_request_counts_once_everywhere() -> None:
    log = DecisionLog()

    finished(log, usage=Usage(100, 5, None))

    totals = log.totals
    assert (totals.ttft_s.total, totals.duration_s.total) == (0.5, 2.5)
    assert totals.itl_s.total == pytest.approx(2.0 / 4)
    assert totals.output_tokens == 5


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    log = DecisionLog()

    finished(log, usage=Usage(100, 1, None))
    finished(log)

    assert log.totals.itl_s.cumulative()[-1][1] == 0


def test_what_round_robin_would_have_done_is_counted_when_it_is_known() -> None:
    totals, ring = Totals(60, SECONDS), Ring(4, 99, 9, 0, thin)
    record = Record(b"r", decide(), BlockHashes.of([], SIZE), 1.0)
    ring.append(record)
    ring.first_token(record, 1.5)
    record.reported = Usage(160, 5, 96)
    ring.end(record, "finished", 200, 3.5)
    totals.ended(record)
    totals.compared(record)
    before = totals.rows(0)

    record.round_robin_blocks = 2
    totals.compared(record)

    assert (totals.itl_s.total, totals.output_tokens) == (0.5, 5)
    assert TrafficSecond(*before[0]).shadowed_tokens == 0
    (second,) = (TrafficSecond(*row) for row in totals.rows(0))
    assert (second.shadowed_tokens, second.round_robin_tokens) == (160, 2 * SIZE)
    assert (second.own_requests, second.own_cached_tokens, second.own_reported_tokens) == (
        1,
        96,
        160,
    )
    assert sum(second.round_robin_ttft.values()) == 1


@pytest.mark.parametrize("usage", [None, Usage(160, 1, None), Usage(160, 1, 96)])
@pytest.mark.parametrize("state", ["finished", "failed"])
@pytest.mark.parametrize("first_token_s", [None, 1.5])
def test_what_round_robin_would_have_saved_needs_an_end_that_tells_it(
    *, usage: Usage | None, state: State, first_token_s: float | None
) -> None:
    totals, ring = Totals(60, SECONDS), Ring(4, 99, 9, 0, thin)
    blind = msgspec.structs.replace(decide(), by_cache=False)
    record = Record(b"r", blind, BlockHashes.of([], SIZE), 1.0)
    ring.append(record)
    if first_token_s is not None:
        ring.first_token(record, first_token_s)
    record.reported = usage
    record.round_robin_blocks = 2
    ring.end(record, state, 200, 3.5)

    totals.ended(record)
    totals.compared(record)

    (second,) = (TrafficSecond(*row) for row in totals.rows(0))
    reported = usage is not None and usage.cached_tokens is not None
    assert (second.shadowed_tokens > 0) == (state == "finished")
    assert second.own_requests == 0
    assert sum(second.round_robin_ttft.values()) == (reported and first_token_s is not None)
    assert totals.itl_s.cumulative()[-1][1] == 0
