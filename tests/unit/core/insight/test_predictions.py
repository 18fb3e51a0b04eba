import itertools
from typing import Any, cast

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.predictions import (
    AccessReport,
    AnswerSeen,
    CacheAccesses,
    PredictionOptions,
    Predictions,
)
from kvmesh.core.members.worker_info import Trust

A, B = WorkerId("a"), WorkerId("b")
BLOCK = 16
PROMPT = 640
HIT, OVER, UNDER = (320, 320), (320, 0), (0, 320)


class Clock:
    """Compares answers that come one second after the other, each decided when asked."""

    def __init__(self, options: PredictionOptions | None = None) -> None:
        self.predictions = Predictions(BLOCK, options)
        self.now = 0.0

    def answer(
        self,
        predicted: int,
        cached: int,
        *,
        counted: int = PROMPT,
        decided_s: float | None = None,
        reported: bool = True,
    ) -> bool:
        self.now += 1.0
        decided = self.now if decided_s is None else decided_s
        answer = AnswerSeen(
            PROMPT, counted, predicted, cached, decided, predicted if reported else None
        )
        return self.predictions.compare(A, answer, self.now) is not None

    def until_doubt(self, kind: tuple[int, int], *, at_most: int = 1000) -> int:
        """Return how many answers of one kind it takes."""
        return next(count for count in range(1, at_most + 1) if self.answer(*kind))


@pytest.mark.parametrize("kind", [OVER, UNDER])
def test_an_index_that_is_wrong_every_time_is_doubted_after_a_dozen_answers(
    kind: tuple[int, int],
) -> None:
    clock = Clock()

    assert clock.until_doubt(kind) == PredictionOptions().least
    report = clock.predictions.report(A)
    assert (report.doubted, report.doubts, report.recent_answers) == (True, 1, 0)
    told = report.predicted_tokens, report.cached_tokens
    assert told == (kind[0] * PredictionOptions().least, kind[1] * PredictionOptions().least)
    assert report.over + report.under == PredictionOptions().least


def test_a_share_of_misses_that_is_just_too_large_is_doubted() -> None:
    clock = Clock(PredictionOptions(least=4, window=4, trust_share=0.1, distrust_share=0.5))

    assert [clock.answer(*kind) for kind in (HIT, HIT, OVER, OVER)] == [False, False, False, True]


def test_answers_that_are_no_evidence_are_counted_but_prove_nothing() -> None:
    clock = Clock()

    assert not any(clock.answer(*OVER, reported=False) for _ in range(100))
    report = clock.predictions.report(A)
    assert (report.over, report.recent_answers) == (100, 0)


def test_a_block_or_a_tenth_of_the_prompt_more_or_less_is_no_miss() -> None:
    predictions = Predictions(BLOCK)
    for prompt, predicted, cached in ((100, 48, 32), (1000, 480, 576)):
        predictions.compare(A, AnswerSeen(prompt, prompt, predicted, cached, 0.0), 0.0)

    assert predictions.report(A).hits == 2


def test_doubts_that_do_not_help_come_ever_more_seldom_and_never_faster_than_the_pause() -> None:
    clock = Clock(PredictionOptions(pause_s=100.0, max_pause_s=400.0))
    times: list[float] = []
    for _ in range(5):
        clock.until_doubt(OVER, at_most=2000)
        times.append(clock.now)

    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == [100.0, 200.0, 400.0, 400.0]


def test_requests_decided_before_the_index_was_had_anew_are_no_evidence() -> None:
    clock = Clock(PredictionOptions(pause_s=0.0))
    clock.until_doubt(OVER)
    before = clock.now

    assert not any(clock.answer(*OVER, decided_s=before + 4.9) for _ in range(100))
    assert clock.predictions.report(A).recent_answers == 0


def test_a_worker_whose_predictions_hold_again_is_no_longer_doubted() -> None:
    clock = Clock(PredictionOptions(pause_s=10.0, max_pause_s=1000.0))
    for _ in range(4):
        clock.until_doubt(OVER)

    for _ in range(40):
        clock.answer(*HIT)

    assert not clock.predictions.report(A).doubted
    # The pause has begun anew too.
    clock.until_doubt(UNDER)
    assert clock.until_doubt(UNDER) < 20


def test_each_worker_is_judged_by_its_own_answers_until_it_is_forgotten() -> None:
    predictions = Predictions(BLOCK)
    for _ in range(20):
        predictions.compare(B, AnswerSeen(PROMPT, PROMPT, *HIT, 0.0), 0.0)
        predictions.compare(A, AnswerSeen(PROMPT, PROMPT, *OVER, 0.0, reported=320), 0.0)

    assert (predictions.workers(), predictions.report(B).doubts) == ((A, B), 0)
    assert predictions.report(A).cached_tokens == 0
    predictions.forget(A)
    predictions.forget(A)
    assert predictions.workers() == (B,)


@pytest.mark.parametrize(
    ("load", "trust", "evidence"),
    [
        ({}, Trust.EXACT, True),
        ({}, Trust.DEGRADED, False),
        ({}, Trust.APPROX, False),
        ({"prefill_tokens": 1}, Trust.EXACT, False),
        ({"waiting_requests": 1}, Trust.EXACT, False),
        ({"decode_blocks": 99, "capacity_blocks": 100}, Trust.EXACT, True),
        ({"decode_blocks": 100, "capacity_blocks": 100}, Trust.EXACT, False),
    ],
)
def test_only_what_began_at_once_and_was_no_guess_is_evidence(
    load: dict[str, int], trust: Trust, evidence: bool
) -> None:
    reported = Predictions(BLOCK).reported(
        Candidate(A, BLOCK, PROMPT, **cast("Any", load)), 3, trust, 0.0
    )

    assert reported == (3 * BLOCK if evidence else None)


def test_what_events_told_is_judged_and_not_what_decisions_promised() -> None:
    predictions = Predictions(BLOCK)
    for _ in range(100):
        answer = AnswerSeen(PROMPT, PROMPT, predicted=320, cached=0, decided_s=0.0, reported=0)
        assert predictions.compare(A, answer, 0.0) is None

    report = predictions.report(A)
    assert (report.over, report.recent_answers) == (100, 0)


def test_events_alone_are_asked_only_so_often() -> None:
    predictions = Predictions(BLOCK, PredictionOptions(check_every_s=0.5))

    asked = []
    for now in (0.0, 0.4, 0.5, 0.9, 1.1):
        asked.append(now >= predictions.check_at_s)
        if asked[-1]:
            predictions.reported(Candidate(A, BLOCK, PROMPT), 0, Trust.EXACT, now)

    assert asked == [True, False, True, False, True]


def test_another_block_size_allows_for_its_own_blocks() -> None:
    clock = Clock()
    clock.predictions.resize(128)

    clock.answer(320, 320 + 80)
    clock.predictions.resize(BLOCK)
    clock.answer(320, 320 + 80)

    report = clock.predictions.report(A)
    assert (report.hits, report.under) == (1, 1)


@pytest.mark.parametrize(
    ("usage", "report"),
    [
        (Usage(100, 4, 64), AccessReport(reported=1, tokens=64, blocks=4)),
        (Usage(100, 4, 63), AccessReport(reported=1, tokens=63, blocks=3)),
        (Usage(100, 4, 0), AccessReport(reported=1)),
        (Usage(100, 4, 10**25), AccessReport(reported=1, tokens=100, blocks=6)),
        (Usage(100, 4, -5), AccessReport(reported=1)),
        (Usage(100, 4, None), AccessReport(untold=1)),
        (None, AccessReport(untold=1)),
    ],
)
def test_what_an_answer_tells_is_counted_and_what_it_does_not_is_not_invented(
    usage: Usage | None, report: AccessReport
) -> None:
    accesses = CacheAccesses()

    accesses.count(A, usage, 16)

    assert accesses.reports == {A: report}


def test_answers_add_up_until_the_worker_is_forgotten() -> None:
    accesses = CacheAccesses()
    accesses.count(A, Usage(100, 4, 64), 16)
    accesses.count(A, Usage(100, 4, 96), 32)
    accesses.count(A, None, 16)

    assert accesses.reports[A] == AccessReport(reported=2, untold=1, tokens=160, blocks=7)

    accesses.forget(A)
    accesses.forget(A)
    assert accesses.reports == {}


def test_overlaps_are_exact_while_nine_of_ten_answers_are_right_within_a_block() -> None:
    clock = Clock()
    predictions = clock.predictions

    def word() -> Trust:
        return predictions.word(A, Trust.EXACT)

    for _ in range(9):
        clock.answer(320, 320 - BLOCK - 1, reported=False)
    assert word() is Trust.EXACT  # nine answers prove nothing yet
    assert predictions.report(A).right_share is None
    clock.answer(320, 320 - BLOCK, reported=False)
    assert word() is Trust.ESTIMATED
    assert predictions.word(A, Trust.APPROX) is Trust.APPROX
    assert predictions.word(B, Trust.EXACT) is Trust.EXACT
    assert predictions.report(A).right_share == 0.1

    for _ in range(56):
        clock.answer(320, 320, counted=PROMPT - 5, reported=False)
    assert word() is Trust.ESTIMATED  # 57 of the last 64 are right
    clock.answer(0, 0)  # nothing was predicted, nothing was there: it says nothing
    assert word() is Trust.ESTIMATED
    clock.answer(320, 320)
    assert word() is Trust.EXACT
    clock.answer(320, 0)
    clock.answer(320, 640)
    assert predictions.report(A).right_share == 58 / 64

    predictions.resize(4 * BLOCK)
    predictions.forget(A)
    assert word() is Trust.EXACT
    for _ in range(10):
        clock.answer(320, 320 - 4 * BLOCK)
    assert word() is Trust.EXACT
