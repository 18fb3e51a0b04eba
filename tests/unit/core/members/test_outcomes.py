import pytest

from kvmesh.core.members.outcomes import (
    Attempt,
    Verdict,
    failed_attempt,
    judge_status,
    status_attempt,
)


@pytest.mark.parametrize(
    ("status", "retry_after_s", "verdict"),
    [
        (200, 0.0, Verdict.SERVED),
        (299, 0.0, Verdict.SERVED),
        (101, 0.0, Verdict.CLIENT),
        (301, 0.0, Verdict.CLIENT),
        (400, 0.0, Verdict.CLIENT),
        (404, 0.0, Verdict.CLIENT),
        (413, 0.0, Verdict.CLIENT),
        (422, 0.0, Verdict.CLIENT),
        (429, 0.0, Verdict.OVERLOAD),
        (429, 2.0, Verdict.OVERLOAD),
        (500, 0.0, Verdict.WORKER),
        (500, 5.0, Verdict.WORKER),
        (501, 0.0, Verdict.CLIENT),
        (502, 0.0, Verdict.WORKER),
        (503, 0.0, Verdict.WORKER),
        (503, 0.5, Verdict.OVERLOAD),
        (599, 0.0, Verdict.WORKER),
        (600, 0.0, Verdict.CLIENT),
    ],
)
def test_a_status_says_whose_doing_the_answer_is(
    status: int, retry_after_s: float, verdict: Verdict
) -> None:
    assert judge_status(status, retry_after_s) is verdict
    assert status_attempt(status, 0.25, retry_after_s) == Attempt(
        verdict, str(status), 0.25, retry_after_s
    )


def test_the_numbers_that_travel_stay_as_they_are() -> None:
    assert [one.name for one in Verdict] == [
        "UNKNOWN",
        "SERVED",
        "CLIENT",
        "WORKER",
        "OVERLOAD",
        "PROMPT",
    ]
    assert list(Verdict) == list(range(6))


def test_a_failed_attempt_with_a_status_shows_what_the_status_does() -> None:
    reported = failed_attempt("status", 0.5, status=429, retry_after_s=2.0)

    assert reported == status_attempt(429, 0.5, 2.0)
    assert failed_attempt("reset", status=0) == failed_attempt("reset")
