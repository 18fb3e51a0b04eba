from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.routing.overdue import LONGER, SLACK, Usual, patience_s

# 200 ms of wait, and 1000 tokens of 0.1 ms each.
CHOSEN = Candidate(WorkerId("w"), 16, 1000, uncached_tokens=1000, wait_ms=200.0, ms_per_token=0.1)


def test_a_stream_is_overdue_long_after_its_prefill_was_to_be_done() -> None:
    assert patience_s(CHOSEN, 10.0) == 10.0 + SLACK * 0.3
    assert patience_s(CHOSEN, 10.0, usual=Usual(30.0)) == 10.0 + SLACK * 0.3


def test_a_whole_answer_has_time_for_all_its_tokens() -> None:
    patience = patience_s(CHOSEN, 10.0, whole_tokens=100, usual=Usual(30.0))

    assert patience == 10.0 + SLACK * (0.3 + 3.0)


def test_of_an_answer_of_unknown_length_and_speed_the_usual_is_expected() -> None:
    assert patience_s(CHOSEN, 1.0, whole_tokens=0) == 1.0 + SLACK * (0.3 + 512 * 0.05)


def test_where_no_stream_told_the_time_of_a_token_the_usual_answer_does() -> None:
    short = patience_s(CHOSEN, 1.0, whole_tokens=100, usual=Usual(residence_ms=200.0))
    long = patience_s(CHOSEN, 1.0, whole_tokens=100, usual=Usual(residence_ms=1e6))

    assert short == 1.0 + SLACK * (0.3 + LONGER * 0.2)
    assert long == 1.0 + SLACK * (0.3 + 100 * 0.05)
