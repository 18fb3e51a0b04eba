"""Answers that are odd and legal, in many dialects, whole and in pieces: none is taken for bad."""

import pytest

from benchmarks.faults.bench_legal import judge_legal

ANSWERS = 60
"""Of each dialect; `python -m benchmarks.faults.bench_legal` plays 100,000 in all."""


@pytest.mark.parametrize("seed", range(50))
def test_no_answer_that_is_odd_and_legal_is_taken_for_bad(seed: int) -> None:
    found = judge_legal(ANSWERS, 1000 + seed)

    assert found.failures == {}, found.first[:2000]
    assert (found.ejections, found.ends) == (0, {"finished 2xx": ANSWERS})
