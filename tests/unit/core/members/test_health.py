import pytest

from kvmesh.core.members.health import EJECT_STREAK, FORGET_EJECTIONS_S, Health
from kvmesh.core.members.health_record import Stage
from kvmesh.core.members.outcomes import (
    SERVED,
    UNKNOWN,
    Attempt,
    failed_attempt,
    status_attempt,
)

CUT = failed_attempt("cut", 0.5)
RESET = failed_attempt("reset", 0.5)
REFUSED = failed_attempt("refused")
ERROR = status_attempt(500, 0.01)
FLEET = [f"w{number}" for number in range(6)]


def make_health(*, asks: bool = True) -> Health:
    health = Health()
    health.asks = asks
    return health


def eject(health: Health, member: str, now: float) -> None:
    for _ in range(EJECT_STREAK):
        health.note(member, ERROR, now)
    assert health.stage(member) is Stage.EJECTED


def admitted(health: Health, now: float) -> set[str]:
    return set(health.admit(FLEET, now)[0])


def test_who_is_out_for_silence_hangs_until_it_is_gone_or_back() -> None:
    health = make_health()
    hung = failed_attempt("hung", 9.0)
    health.note("w0", hung, 0.0)
    assert health.hangs("w0")

    health.answered("w0", "slow", 1.0)
    assert (health.stage("w0"), health.hangs("w0")) == (Stage.EJECTED, True)
    health.answered("w0", "down", 2.0)
    assert (health.stage("w0"), health.hangs("w0")) == (Stage.DOWN, False)
    health.answered("w0", "ok", 3.0)
    assert (health.stage("w0"), health.hangs("w0")) == (Stage.TRICKLE, True)
    health.note("w0", SERVED, 4.0)
    assert (health.stage("w0"), health.hangs("w0")) == (Stage.IN, False)
    eject(health, "w1", 5.0)
    assert not health.hangs("w1")


def test_three_errors_in_a_row_eject_but_not_with_an_answer_between() -> None:
    health = make_health()
    for attempt in (ERROR, ERROR, SERVED, ERROR, ERROR):
        assert not health.note("w0", attempt, 0.0)
    assert health.is_suspect("w0")

    assert health.note("w0", ERROR, 0.0)

    assert health.stage("w0") is Stage.EJECTED
    assert (health.recent("w0"), health.ejections) == ((5, 6), 1)
    assert admitted(health, 0.5) == set(FLEET[1:])
    assert health.is_left_out("w0", 0.5)
    assert health.retry_in_s("w0", 0.25) == 0.75


def test_half_of_the_recent_attempts_failing_ejects_where_the_others_fare_well() -> None:
    health = make_health()
    for number in range(20):
        health.note(f"w{1 + number % 5}", SERVED, 0.0)

    for _ in range(3):
        health.note("w0", SERVED, 0.0)
        assert health.stage("w0") is Stage.IN
        health.note("w0", ERROR, 0.0)

    assert health.stage("w0") is Stage.EJECTED


def test_who_is_not_there_is_asked_each_second_until_it_answers() -> None:
    health = make_health()
    assert health.note("w0", REFUSED, 0.0)
    assert health.stage("w0") is Stage.DOWN

    assert (health.due(0.0), health.due(0.9)) == (["w0"], [])
    assert not health.answered("w0", "down", 0.9)
    assert health.due(1.0) == ["w0"]
    assert not health.note("w0", SERVED, 1.1), "an older request"
    assert not health.began("w0", 1.1)
    assert health.stage("w0") is Stage.DOWN
    assert health.answered("w0", "ok", 1.2)

    assert health.stage("w0") is Stage.TRICKLE
    assert "w0" in admitted(health, 1.2)


def test_an_ejected_member_is_asked_after_its_back_off_and_then_tried() -> None:
    health = make_health()
    eject(health, "w0", 0.0)
    assert health.due(0.9) == []
    assert not health.answered("w0", "ok", 0.9), "asked by somebody else: its back-off counts"

    assert health.due(1.0) == ["w0"]
    assert health.answered("w0", "ok", 1.1)

    assert health.chosen("w0", 1.2, "trial")
    assert not health.chosen("w0", 1.2, "second")
    assert "w0" not in admitted(health, 1.3)
    assert health.words("w0", 1.3) == "ejected, 3 of 3 failed (500), one request is on trial"
    assert not health.answered("w0", "ok", 1.3)
    assert not health.note("w0", UNKNOWN, 1.4, "older")
    assert health.note("w0", SERVED, 1.5, "trial")
    assert health.stage("w0") is Stage.IN
    eject(health, "w0", 2.0)
    assert health.retry_in_s("w0", 2.0) == 2.0


def test_back_offs_double_to_the_longest_and_a_slow_answer_shortens_none() -> None:
    health = Health(backoff_s=1.0, max_backoff_s=3.0)
    backs: list[float] = []
    for now in (0.0, 10.0, 20.0):
        eject(health, "w0", now)
        backs.append(health.retry_in_s("w0", now))
        health.answered("w0", "slow", now + 0.5)
        assert health.retry_in_s("w0", now + 0.5) == backs[-1] - 0.5
        assert health.began("w0", now + 4.0)

    assert backs == [1.0, 2.0, 3.0]


def test_a_long_good_time_makes_the_next_back_off_the_shortest() -> None:
    health = make_health()
    for now in (0.0, 10.0):
        eject(health, "w0", now)
        assert health.began("w0", now + 1.0)
    assert health.retry_in_s("w0", 12.0) == 0.0

    eject(health, "w0", 12.0 + FORGET_EJECTIONS_S)

    assert health.retry_in_s("w0", 12.0 + FORGET_EJECTIONS_S) == 1.0


def test_overload_is_rest_for_as_long_as_it_asks_however_it_stands() -> None:
    health = make_health()
    health.note("w0", status_attempt(429, retry_after_s=4.0), 0.0)
    eject(health, "w1", 0.0)
    health.answered("w1", "ok", 1.0)
    health.chosen("w1", 1.0, "trial")

    assert health.note("w1", status_attempt(429, retry_after_s=3.0), 1.0, "trial")

    assert "w0" not in admitted(health, 2.0)
    assert health.retry_in_s("w0", 2.0) == 2.0
    assert "w1" not in admitted(health, 2.0)
    assert health.is_left_out("w0", 2.0)
    assert health.words("w0", 2.0) == "overloaded, asked for 2.0 s of rest"
    assert (health.admit(FLEET, 2.0)[1], admitted(health, 4.0)) == (4.0, set(FLEET))
    assert not health.is_left_out("w0", 4.0)
    assert health.stage("w1") is Stage.TRICKLE


def test_forgiveness_undoes_what_one_request_did_as_if_it_had_not_been() -> None:
    health = make_health()
    for number in range(4):
        health.note("w0", SERVED, 0.1 * number)
    health.note("w0", RESET, 0.5, "own")
    health.answered("w0", "ok", 0.6)
    health.note("w0", RESET, 1.0, "poison")
    assert health.stage("w0") is Stage.EJECTED

    assert health.forgive("poison", 1.1) == ["w0"]

    assert health.stage("w0") is Stage.IN
    assert health.is_suspect("w0"), "its own failure stands"
    assert health.recent("w0") == (1, 5)
    health.note("w0", RESET, 1.2)
    assert health.retry_in_s("w0", 1.2) == pytest.approx(1.0), "nor did its back-off grow"


def test_rest_that_one_request_brought_is_forgiven_unless_another_brought_more() -> None:
    health = make_health()
    busy = status_attempt(429, retry_after_s=4.0)
    health.note("w0", busy, 0.0, "poison")
    health.note("w1", busy, 0.0, "poison")
    health.note("w1", busy, 1.0, "other")

    health.forgive("poison", 1.0)

    assert admitted(health, 1.1) == set(FLEET) - {"w1"}


def test_more_was_taken_back_than_is_remembered_one_by_one() -> None:
    health = make_health()
    health.note("w0", ERROR, 0.0, "poison")
    for _ in range(50):
        health.note("w0", SERVED, 0.1)
    assert health.recent("w0") == (0, 20)

    health.forgive("poison", 0.2)

    assert health.recent("w0") == (0, 20)


def test_failing_has_a_price_where_the_others_do_not_fail() -> None:
    health = make_health()
    for name in FLEET[1:]:
        for _ in range(10):
            health.note(name, SERVED, 0.0)
    health.note("w0", ERROR, 0.0)
    health.note("w0", ERROR, 0.0)

    share, lost_ms = health.price("w0", 0.0)

    assert share == pytest.approx(2.0 / 4.0)
    assert lost_ms == pytest.approx(10.0)
    assert health.price("w1", 0.0) == (0.0, 0.0)
    for name in FLEET[1:]:
        for _ in range(10):
            health.note(name, ERROR, 0.0)
    assert health.price("w0", 0.0)[0] == pytest.approx((2.0 + 2 * 50 / 102) / 4.0 - 50 / 102)


def test_a_worse_way_to_fail_costs_more_and_no_more_than_everything() -> None:
    def share(attempt: Attempt, times: int = 1) -> float:
        health = make_health()
        for _ in range(times):
            health.note("w0", attempt, 0.0)
        return health.price("w0", 0.0)[0]

    assert share(status_attempt(502)) < share(ERROR) < share(CUT)
    assert share(CUT, 50) == 1.0


def test_every_stage_has_words() -> None:
    health = make_health()
    health.note("w0", REFUSED, 0.0)
    health.note("w1", RESET, 0.0)
    eject(health, "w2", 0.0)

    assert health.words("w0", 0.0) == "does not answer its health check, 1 of 1 failed"
    assert health.standing("w1", 0.0) == "suspect"
    assert health.reason("w1") == "suspect, its last request failed (reset)"
    assert health.words("w1", 0.0) == "suspect, its last request failed (reset), being asked"
    health.answered("w1", "ok", 0.1)
    eject(health, "w3", 0.0)
    health.answered("w3", "ok", 1.0)
    health.note("w4", status_attempt(429), 0.0)
    assert [health.standing(f"w{number}", 0.4) for number in range(6)] == [
        "down",
        "in",
        "ejected",
        "trickle",
        "overloaded",
        "in",
    ]
    assert health.reason("w0") == "does not answer its health check"
    assert health.reason("w2") == health.reason("w3") == "ejected, requests fail there (500)"
    assert (health.reason("w4"), health.reason("w5")) == ("overloaded, asked for rest", "")
    assert health.words("w2", 0.4) == "ejected, 3 of 3 failed (500), asked again in 0.6 s"
    assert health.is_left_out("w0", 0.0)


def test_a_bad_answer_is_named_in_words() -> None:
    health = make_health()
    for _ in range(EJECT_STREAK):
        health.note("w0", failed_attempt("bad_answer:html", 0.1), 0.0)
        health.note("w1", failed_attempt("bad_answer", 0.1), 0.0)

    html = "bad_answer:html, it answers 200 that is a web page"
    assert health.reason("w0") == f"ejected, requests fail there ({html})"
    assert health.words("w0", 0.5) == f"ejected, 3 of 3 failed ({html}), asked again in 0.5 s"
    assert health.reason("w1").endswith("(bad_answer, it answers 200 that is none)")


def test_an_answer_of_who_has_nothing_against_it_is_just_counted() -> None:
    health = make_health()
    health.note("w0", ERROR, 0.0)

    assert health.served("w0", 0.5)

    assert not health.is_suspect("w0")
    assert (health.recent("w0"), health.served_s("w0")) == ((1, 2), 0.5)
    eject(health, "w0", 1.0)
    assert not health.served("w0", 1.1)
