import pytest

from kvmesh.core.members.health import EJECT_STREAK
from kvmesh.core.members.health_record import TRICKLE_S
from kvmesh.core.members.membership import Change, ChangeKind, Membership
from kvmesh.core.members.outcomes import SERVED, UNKNOWN, failed_attempt, status_attempt

CUT = failed_attempt("cut")
ERROR = status_attempt(500)


def make_members(*names: str, backoff_s: float = 1.0, max_backoff_s: float = 30.0) -> Membership:
    members = Membership(backoff_s=backoff_s, max_backoff_s=max_backoff_s)
    for name in names or ("w1", "w2"):
        members.add(name, 0.0)
    return members


def kinds(*changes: Change | None) -> list[ChangeKind | None]:
    return [change.kind if change else None for change in changes]


def test_a_member_lives_until_three_and_a_half_seconds_after_its_last_sign() -> None:
    members = Membership()

    assert members.observe("w1", 1, 0.0) == Change(ChangeKind.JOINED, "w1", 1)
    assert members.observe("w1", 1, 1.0) is None
    assert members.usable(4.4) == ("w1",)
    assert members.expire(4.4) == []
    assert members.expire(4.5) == [Change(ChangeKind.LEFT, "w1", 1)]
    assert members.usable(4.5) == ()
    assert members.why_not("w1", 4.5) == "unknown"
    assert len(members) == 0


def test_nobody_is_given_up_but_by_expire_so_that_what_came_is_read_before() -> None:
    members = Membership()
    members.observe("w1", 1, 0.0)
    assert members.usable(60.0) == ("w1",)
    assert members.why_not("w1", 60.0) is None

    assert members.observe("w1", 1, 60.0) is None

    assert members.expire(60.0) == []


def test_a_silent_member_that_answers_stays_usable_until_it_refuses() -> None:
    members = Membership()
    members.signs.asked = True
    members.observe("w1", 1, 0.0)
    assert members.due(2.1) == ["w1"]
    members.answered_http("w1", 2.2)

    assert members.expire(3.5) == [Change(ChangeKind.SILENT, "w1", 1)]
    assert members.usable(3.5) == ("w1",)
    assert [row.silent for row in members.view(3.5)] == [True]
    assert members.observe("w1", 1, 4.0) == Change(ChangeKind.HEARD, "w1", 1)
    assert [row.silent for row in members.view(4.0)] == [False]
    for _ in range(2):
        members.signs.refused("w1", 6.5)
    assert members.expire(6.5) == [Change(ChangeKind.LEFT, "w1", 1)]


def test_a_draining_member_is_not_asked() -> None:
    members = Membership()
    members.signs.asked = True
    members.observe("w1", 1, 0.0, draining=True)

    assert members.due(2.5) == []
    assert members.expire(3.5) == [Change(ChangeKind.LEFT, "w1", 1)]


def test_an_answer_of_readiness_counts_more_than_old_heartbeats_and_less_than_new_ones() -> None:
    members = Membership()
    members.observe("r1", 1, 0.0, ready=False)
    members.answered_http("r1", 1.0)
    assert members.usable(1.0) == ()

    members.answered_http("r1", 2.5)

    assert members.usable(2.5) == ("r1",)
    members.answered_http("stranger", 2.5)
    assert members.members() == ("r1",)


def test_who_is_admitted_again_is_silent_and_usable() -> None:
    members = Membership()

    assert members.readmit("w1", 7, 10.0) == Change(ChangeKind.JOINED, "w1", 7)

    assert members.usable(10.0) == ("w1",)
    assert members.signs.silent == {"w1"}
    assert members.epoch("w1") == 7


def test_a_larger_epoch_is_a_restart_and_an_older_one_is_ignored() -> None:
    members = Membership()
    members.observe("w1", 5, 0.0)
    members.add("w2", 0.0)
    members.note("w1", CUT, 0.0)

    assert members.observe("w1", 4, 0.5) is None
    assert members.usable(0.5) == ("w2",)
    assert members.observe("w1", 6, 0.5) == Change(ChangeKind.RESTARTED, "w1", 6)
    assert members.usable(0.5) == ("w1", "w2")
    assert members.epoch("w1") == 6
    assert members.epoch("w3") is None


def test_a_member_from_configuration_never_expires() -> None:
    members = Membership()

    assert kinds(members.add("w1", 0.0)) == [ChangeKind.JOINED]
    assert members.add("w1", 1.0) is None
    assert members.epoch("w1") == 0
    members.observe("w1", 0, 2.0)

    assert members.expire(1e9) == []
    assert members.usable(1e9) == ("w1",)


def test_draining_and_unready_members_stay_but_get_nothing() -> None:
    members = Membership()
    members.observe("w1", 1, 0.0)

    assert kinds(members.observe("w1", 1, 1.0, draining=True)) == [ChangeKind.UPDATED]
    assert (members.usable(1.0), members.why_not("w1", 1.0)) == ((), "draining")
    assert kinds(members.observe("w1", 1, 2.0, ready=False)) == [ChangeKind.UPDATED]
    assert (members.usable(2.0), members.why_not("w1", 2.0)) == ((), "not ready")
    assert kinds(members.observe("w1", 1, 3.0)) == [ChangeKind.UPDATED]
    assert (members.usable(3.0), members.why_not("w1", 3.0)) == (("w1",), None)
    assert members.members() == ("w1",)
    assert "w1" in members


def test_a_failure_leaves_a_member_out_longer_each_time() -> None:
    members = make_members(max_backoff_s=3.0)
    now = 0.0

    for number, wait in enumerate((1.0, 2.0, 3.0, 3.0)):
        changed = kinds(members.note("w1", CUT, now))
        assert changed == [None if number else ChangeKind.SUSPECTED], "out until one is served"
        assert members.usable(now + wait - 0.1) == ("w2",)
        now += wait
        assert members.usable(now) == ("w1", "w2")
        members.health.chosen("w1", now)
    assert members.usable(now) == ("w2",)


def test_failures_reported_while_out_count_once() -> None:
    members = make_members()

    changes = kinds(*(members.note("w1", CUT, 0.1 * number) for number in range(5)))

    assert changes == [ChangeKind.SUSPECTED, None, None, None, None]
    assert members.why_not("w1", 0.5) == "ejected, 5 of 5 failed (cut), asked again in 0.5 s"


def test_errors_that_an_engine_answers_leave_it_out_when_there_are_several_in_a_row() -> None:
    members = make_members()

    for number in range(EJECT_STREAK - 1):
        assert members.note("w1", ERROR, 0.1 * number) is None
    assert members.usable(0.3) == ("w1", "w2")

    assert kinds(members.note("w1", ERROR, 0.4)) == [ChangeKind.SUSPECTED]
    assert members.usable(0.5) == ("w2",)


def test_one_on_trial_gets_one_request_until_its_outcome() -> None:
    members = make_members()
    members.note("w1", CUT, 0.0)
    assert members.usable(1.0) == ("w1", "w2")

    members.health.chosen("w1", 1.0, "r1")

    assert members.usable(1.0) == ("w2",)
    assert members.why_not("w1", 1.0) == "ejected, 1 of 1 failed (cut), one request is on trial"
    members.note("w1", CUT, 2.0, "r1")
    assert members.usable(3.9) == ("w2",)
    assert members.usable(4.0) == ("w1", "w2")
    members.health.chosen("w1", 4.0, "r2")
    assert kinds(members.note("w1", SERVED, 4.5, "r2")) == [ChangeKind.RECOVERED]
    assert members.usable(4.5) == ("w1", "w2")
    members.health.chosen("w1", 4.5)
    assert members.usable(4.5) == ("w1", "w2")


def test_the_end_of_an_older_request_is_not_the_end_of_the_one_on_trial() -> None:
    members = make_members()
    members.note("w1", CUT, 0.0)
    members.usable(1.0)
    members.health.chosen("w1", 1.0, "trial")

    members.note("w1", UNKNOWN, 1.1, "older")

    assert members.usable(1.2) == ("w2",)
    members.note("w1", UNKNOWN, 1.3, "trial")
    assert members.usable(1.4) == ("w1", "w2")


def test_an_answer_that_begins_ends_a_trial_well() -> None:
    members = make_members()
    members.note("w1", CUT, 0.0)
    members.usable(1.0)
    members.health.chosen("w1", 1.0, "r1")

    members.health.began("w1", 1.5)

    assert members.usable(1.5) == ("w1", "w2")
    members.health.began("w2", 1.5)
    members.health.began("stranger", 1.5)
    assert members.usable(1.5) == ("w1", "w2")


def test_a_probe_whose_outcome_never_comes_is_given_up() -> None:
    members = make_members()
    members.note("w1", CUT, 0.0)
    members.usable(1.0)
    members.health.chosen("w1", 1.0)

    assert members.usable(1.0 + TRICKLE_S - 0.1) == ("w2",)
    assert members.usable(1.0 + TRICKLE_S) == ("w1", "w2")


def test_strangers_and_trusted_members_change_nothing() -> None:
    members = make_members("w1")

    assert members.note("w1", SERVED, 0.0) is None
    assert members.note("w2", SERVED, 0.0) is None
    assert members.note("w2", CUT, 0.0) is None
    assert members.answered("w1", "down", 0.0) is None
    assert members.answered("w2", "down", 0.0) is None
    assert members.forgive("unheard of", 0.0) == []
    assert members.remove("w2") is None
    members.health.chosen("w2", 0.0)

    assert members.usable(0.0) == ("w1",)


def test_a_heartbeat_alone_does_not_end_suspicion() -> None:
    members = Membership(backoff_s=10.0)
    members.observe("w1", 1, 0.0)
    members.add("w2", 0.0)
    members.note("w1", CUT, 0.0)

    members.observe("w1", 1, 1.0)

    assert members.usable(1.0) == ("w2",)


def test_a_member_alone_is_never_left_out_for_failed_requests() -> None:
    members = make_members("w1")

    for number in range(10):
        members.note("w1", CUT, 0.1 * number)

    assert members.usable(0.95) == ("w1",)
    assert members.health.spared == 1
    assert members.why_not("w1", 0.95) is None


def test_a_third_may_be_out_for_failed_requests_and_the_likeliest_of_the_others_are_let_in() -> (
    None
):
    members = make_members(*(f"w{number}" for number in range(6)))

    for number in range(5):
        members.note(f"w{number}", CUT, 0.1 * number)

    assert members.usable(0.5) == ("w0", "w1", "w2", "w5"), "w3 and w4 failed last"
    assert members.health.spared == 3


def test_who_is_asked_and_is_not_there_is_out_however_many_those_are() -> None:
    members = make_members("w1", "w2", "w3")
    members.health.asks = True

    for name in ("w1", "w2"):
        assert kinds(members.note(name, failed_attempt("refused"), 0.0)) == [ChangeKind.SUSPECTED]
    assert members.usable(0.0) == ("w3",)
    assert members.why_not("w1", 0.0) == "does not answer its health check, 1 of 1 failed"

    assert members.answered("w1", "ok", 0.5) is None, "a trial comes before trust"
    assert members.usable(0.5) == ("w1", "w3")
    members.health.chosen("w1", 0.5)
    assert kinds(members.note("w1", SERVED, 0.6)) == [ChangeKind.RECOVERED]
    assert members.usable(0.6) == ("w1", "w3")


def test_a_suspect_is_in_again_with_its_answer() -> None:
    members = make_members()
    members.health.asks = True

    assert kinds(members.note("w1", CUT, 0.0)) == [ChangeKind.SUSPECTED]
    assert members.usable(0.0) == ("w2",)
    assert members.why_not("w1", 0.0) == "suspect, its last request failed (cut), being asked"

    assert kinds(members.answered("w1", "ok", 0.01)) == [ChangeKind.RECOVERED]
    assert members.usable(0.01) == ("w1", "w2")


def test_what_a_request_that_is_to_blame_did_is_taken_back() -> None:
    members = make_members()
    members.note("w1", CUT, 0.0, "poison")
    assert members.usable(0.1) == ("w2",)

    assert members.forgive("poison", 0.1) == ["w1"]

    assert members.usable(0.1) == ("w1", "w2")
    assert members.forgive("poison", 0.1) == []


def test_the_same_answer_is_the_same_object() -> None:
    members = Membership()
    members.observe("w1", 1, 0.0)
    first = members.usable(0.0)

    members.observe("w1", 1, 3.0)

    assert members.usable(3.6) is first


def test_the_view_shows_everyone() -> None:
    members = Membership(backoff_s=4.0)
    members.observe("w2", 7, 0.0)
    members.add("w1", 0.0)
    members.note("w1", SERVED, 0.0)
    members.note("w1", CUT, 1.0)

    first, second = members.view(2.0)

    assert (first.member, first.usable, first.stage, first.retry_in_s) == (
        "w1",
        False,
        "ejected",
        3.0,
    )
    assert (first.failures, first.attempts) == (1, 2)
    assert (second.member, second.epoch, second.usable, second.retry_in_s) == ("w2", 7, True, 0.0)
    assert (second.failures, second.attempts, second.stage) == (0, 0, "in")
    assert second.last_sign_s == 2.0
    members.observe("w2", 7, 1.5)
    assert members.view(2.0)[1].last_sign_s == 0.5


def test_the_defaults_are_a_second_doubled_up_to_half_a_minute() -> None:
    members = Membership()
    members.add("w1", 0.0)
    members.add("w2", 0.0)
    now, waits = 0.0, list[float]()
    for _ in range(7):
        members.note("w1", CUT, now)
        waits.append(members.view(now)[0].retry_in_s)
        now += waits[-1]
        members.usable(now)
        members.health.chosen("w1", now)

    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@pytest.mark.parametrize(("reported_s", "rest_s"), [(0.0, 1.0), (5.0, 5.0), (1e9, 30.0)])
def test_an_overloaded_member_has_the_rest_that_it_asks_for(
    reported_s: float, rest_s: float
) -> None:
    members = make_members()

    assert members.note("w1", status_attempt(429, retry_after_s=reported_s), 0.0) is None

    assert members.why_not("w1", 0.5) == f"overloaded, asked for {rest_s - 0.5:.1f} s of rest"
    assert members.view(0.5)[0].retry_in_s == rest_s - 0.5
    members.note("w1", SERVED, 0.6)
    assert members.usable(rest_s - 0.1) == ("w2",), "what it had before it may still serve"
    assert members.usable(rest_s) == ("w1", "w2")


def test_an_expired_member_entered_again_with_an_older_epoch_is_usable() -> None:
    members = Membership()
    members.observe("a", 2, 0.0)

    members.add("a", 10.0, epoch=1)

    assert members.expire(10.0) == []
    assert members.usable(10.0) == ("a",)


def test_why_a_member_is_not_ready_is_said_in_its_own_words() -> None:
    members = make_members("w1")

    members.observe("w1", 0, 0.0, ready=False, why="its engine hangs")
    assert members.why_not("w1", 0.0) == "its engine hangs"

    members.observe("w1", 0, 0.0, ready=False)
    assert members.why_not("w1", 0.0) == "not ready"


def test_a_screened_member_gets_nothing_whatever_it_says_until_the_screen_lets_it() -> None:
    members, barred = make_members("a", "b", "c"), {"a": "elsewhere"}
    members.screen = lambda name: barred.get(name, "")
    members.screen_anew()

    assert members.usable(0.0) == ("b", "c")
    assert members.why_not("a", 0.0) == "elsewhere"
    assert members.why_not("b", 0.0) is None
    for _ in range(EJECT_STREAK):
        members.note("b", ERROR, 0.0)
        members.note("c", ERROR, 0.0)
    assert "a" not in members.last_resort(0.0)

    barred.clear()
    assert "a" not in members.usable(0.0)
    members.screen_anew()
    assert "a" in members.usable(0.0)
