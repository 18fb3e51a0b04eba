import pytest

from kvmesh.core.members.blame import Blame
from kvmesh.core.members.outcomes import Verdict, failed_attempt, status_attempt

RESET = failed_attempt("reset", 0.5)


def test_a_request_that_two_sound_workers_failed_is_to_blame() -> None:
    blame = Blame()

    first = blame.judge(RESET, sent=True, suspect=False)
    second = blame.judge(status_attempt(500, 0.1), sent=True, suspect=False)

    assert first == RESET
    assert (second.verdict, second.kind, second.lost_s) == (Verdict.PROMPT, "500", 0.1)
    assert (blame.prompt, blame.sent) == (True, True)


def test_a_worker_that_failed_its_last_request_too_says_nothing_of_this_one() -> None:
    blame = Blame()

    for _ in range(3):
        assert blame.judge(RESET, sent=True, suspect=True) == RESET
    assert blame.judge(RESET, sent=True, suspect=False) == RESET

    assert not blame.prompt


def test_what_never_left_is_not_the_requests_doing() -> None:
    blame = Blame()

    for _ in range(3):
        assert blame.judge(failed_attempt("refused"), sent=False, suspect=False).kind == "refused"

    assert (blame.prompt, blame.sent) == (False, False)


def test_several_workers_without_room_may_have_none_for_this_client() -> None:
    blame = Blame()
    busy = status_attempt(429)

    assert blame.judge(busy, sent=True, suspect=False) is busy
    rejected = [blame.rejected_by_all]
    blame.judge(busy, sent=True, suspect=True)
    rejected.append(blame.rejected_by_all)

    assert rejected == [False, True]
    assert not blame.prompt


@pytest.mark.parametrize("kind", ["hung", "timeout"])
def test_no_prompt_is_to_blame_for_a_worker_that_was_late(kind: str) -> None:
    blame, late = Blame(), failed_attempt(kind)

    for _ in range(3):
        assert blame.judge(late, sent=True, suspect=False) is late
    assert blame.judge(RESET, sent=True, suspect=False) is RESET

    assert not blame.prompt
