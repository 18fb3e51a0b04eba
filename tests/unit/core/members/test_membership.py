from kvmesh.core.members.health import EJECT_STREAK
from kvmesh.core.members.membership import DRAINING, Change, ChangeKind, Membership
from kvmesh.core.members.outcomes import SERVED, failed_attempt, status_attempt


def kinds(*changes: Change | None) -> list[ChangeKind | None]:
    return [change.kind if change else None for change in changes]


CUT = failed_attempt("cut")
ERROR = status_attempt(500)


def make_members(*names: str, backoff_s: float = 1.0, max_backoff_s: float = 30.0) -> Membership:
    members = Membership(backoff_s=backoff_s, max_backoff_s=max_backoff_s)
    for name in names or ("w1", "w2"):
        members.add(name, 0.0)
    return members


def test_a_silent_member_that_answers_stays_usable_until_it_refuses() -> None:
    members = Membership()
    members.signs.asked = True
    members.observe("w1", 1, 0.0)
    assert members.due(2.1) == ["w1"]
    members.answered_http("w1", 2.2)

    assert members.expire(3.5) == [Change(ChangeKind.SILENT, "w1", 1)]
    assert (members.usable(3.5), [row.silent for row in members.view(3.5)]) == (("w1",), [True])
    assert members.observe("w1", 1, 4.0) == Change(ChangeKind.HEARD, "w1", 1)
    assert [row.silent for row in members.view(4.0)] == [False]
    for _ in range(2):
        members.signs.refused("w1", 6.5)
    assert members.expire(6.5) == [Change(ChangeKind.LEFT, "w1", 1)]


def test_an_answer_of_readiness_counts_more_than_old_heartbeats_and_less_than_new_ones() -> None:
    members = Membership()
    members.observe("r1", 1, 0.0, ready=False)
    members.answered_http("r1", 1.0)
    assert members.usable(1.0) == ()

    members.answered_http("r1", 2.5)

    assert members.usable(2.5) == ("r1",)
    members.answered_http("stranger", 2.5)
    assert members.members() == ("r1",)


def test_a_larger_epoch_is_a_restart_and_an_older_one_is_ignored() -> None:
    members = Membership()
    members.observe("w1", 5, 0.0)
    members.add("w2", 0.0)
    members.note("w1", CUT, 0.0)

    assert members.observe("w1", 4, 0.5) is None
    assert members.usable(0.5) == ("w2",)
    assert members.observe("w1", 6, 0.5) == Change(ChangeKind.RESTARTED, "w1", 6)
    assert (members.usable(0.5), members.epoch("w1")) == (("w1", "w2"), 6)
    assert members.epoch("w3") is None


def test_a_third_may_be_out_for_failed_requests_and_the_likeliest_of_the_others_are_let_in() -> (
    None
):
    members = make_members(*(f"w{number}" for number in range(6)))

    for number in range(5):
        members.note(f"w{number}", CUT, 0.1 * number)

    assert members.usable(0.5) == ("w0", "w1", "w2", "w5"), "w3 and w4 failed last"
    assert members.health.spared == 3


def test_why_a_member_is_not_ready_is_said_in_its_own_words() -> None:
    members = make_members("w1")

    members.observe("w1", 0, 0.0, ready=False, why="its engine hangs")
    assert members.why_not("w1", 0.0) == "its engine hangs"

    members.observe("w1", 0, 0.0, ready=False)
    assert members.why_not("w1", 0.0) == "not ready"


def test_a_screened_member_gets_nothing_whatever_it_says_until_the_screen_lets_it() -> None:
    members, barred = make_members("a", "b", "c"), {"a": "elsewhere"}
    members.screens.append(lambda name: barred.get(name, ""))
    members.screen_anew()

    assert (members.usable(0.0), members.why_not("a", 0.0)) == (("b", "c"), "elsewhere")
    assert members.why_not("b", 0.0) is None
    for _ in range(EJECT_STREAK):
        members.note("b", ERROR, 0.0)
        members.note("c", ERROR, 0.0)
    assert "a" not in members.last_resort(0.0)

    barred.clear()
    assert "a" not in members.usable(0.0)
    members.screen_anew()
    assert "a" in members.usable(0.0)


def test_a_suspect_is_in_again_with_its_answer() -> None:
    members = make_members()
    members.health.asks = True

    assert kinds(members.note("w1", CUT, 0.0)) == [ChangeKind.SUSPECTED]
    assert members.usable(0.0) == ("w2",)
    assert members.why_not("w1", 0.0) == "suspect, its last request failed (cut), being asked"

    assert kinds(members.answered("w1", "ok", 0.01)) == [ChangeKind.RECOVERED]
    assert members.usable(0.01) == ("w1", "w2")


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


def test_who_is_held_drains_whatever_it_says_until_it_is_let_go_or_removed() -> None:
    members = Membership()
    members.add("w0", 0.0)

    members.hold("w0", draining=True)
    members.hold("unknown", draining=True)
    members.observe("w0", 0, 1.0)
    members.observe("unknown", 0, 1.0)

    assert (members.usable(1.0), members.why_not("w0", 1.0)) == (("unknown",), DRAINING)
    members.hold("w0", draining=False)
    assert members.usable(1.0) == ("unknown", "w0")
    members.hold("w0", draining=True)
    members.remove("w0")
    members.observe("w0", 0, 2.0)
    assert members.usable(2.0) == ("unknown", "w0")


def test_it_names_those_that_are_not_ready_or_did_not_answer() -> None:
    membership = Membership()
    for name, ready in (("b", False), ("a", True), ("c", True), ("d", True)):
        membership.observe(name, 1, 0.0, ready=ready)
    membership.health.note("c", CUT, 0.0)
    assert membership.lost() == ["b"]
    membership.health.answered("c", "down", 0.0)

    assert membership.lost() == ["b", "c"]
