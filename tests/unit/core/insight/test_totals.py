import msgspec
import pytest

from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.decision_log import DecisionLog
from tests.unit.core.insight.test_decision_log import decide

SIZE = 16


def finished(log: DecisionLog, *, best: int = 0, usage: Usage | None = None) -> None:
    decision = msgspec.structs.replace(decide(), best_overlap_blocks=best)
    record = log.decided(b"r", decision, BlockHashes.of([], SIZE), 1.0)
    log.first_token(record, 1.5)
    log.ended(record, "finished", 200, usage, 3.5)
    while not log.settle():
        pass


def test_a_finished_request_counts_once_everywhere() -> None:
    log = DecisionLog()

    finished(log, usage=Usage(100, 5, None))

    totals = log.totals
    assert (totals.ttft_s.total, totals.duration_s.total) == (0.5, 2.5)
    assert totals.itl_s.total == pytest.approx(2.0 / 4)
    assert totals.output_tokens == 5


def test_what_load_cost_in_overlap_is_best_less_predicted() -> None:
    log = DecisionLog()
    held = decide().overlap_blocks

    finished(log, best=held + 7)
    finished(log, best=0)

    assert log.totals.best_tokens - log.totals.predicted_tokens == 7 * SIZE


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    log = DecisionLog()

    finished(log, usage=Usage(100, 1, None))
    finished(log)

    assert log.totals.itl_s.cumulative()[-1][1] == 0


def test_what_did_not_finish_is_not_timed() -> None:
    log = DecisionLog()
    record = log.decided(b"r", decide(), BlockHashes.of([], SIZE), 1.0)
    log.ended(record, "client_gone", 200, None, 2.0)
    whole = log.decided(b"s", decide(), BlockHashes.of([], SIZE), 1.0)
    log.ended(whole, "finished", 200, None, 2.0)
    log.settle()

    assert log.totals.duration_s.cumulative()[-1][1] == 1
    assert log.totals.ttft_s.cumulative()[-1][1] == 0
