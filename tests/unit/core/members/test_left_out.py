from kvmesh.core.members.left_out import FRESH_S, MOST_NAMED, NOBODY, LeftOutByAll, find_left_out
from kvmesh.core.members.membership import Membership


def test_names_are_bounded_and_all_are_counted() -> None:
    names = [f"w{number:03}" for number in range(500)]

    found = find_left_out(names, lambda name: None if name == "w000" else "draining")

    assert (found.count, [one.worker for one in found.named]) == (499, names[1 : MOST_NAMED + 1])
    assert {one.why for one in found.named} == {"draining"}


def test_members_that_no_request_may_go_to_are_told_with_their_reason() -> None:
    members = Membership()
    for name in ("w0", "w1", "w2"):
        members.add(name, 0.0)
    left_out = LeftOutByAll(members)
    assert left_out.find(0.0) is NOBODY

    members.observe("w1", 1, 0.0, draining=True)
    found = left_out.find(1.0)

    assert [(one.worker, one.why) for one in found.named] == [("w1", "draining")]


def test_what_was_found_holds_for_a_moment() -> None:
    members = Membership()
    for name in ("w0", "w1"):
        members.add(name, 0.0)
    members.observe("w1", 1, 0.0, draining=True)
    left_out = LeftOutByAll(members)
    first = left_out.find(1.0)
    members.observe("w1", 1, 1.0, ready=False, why="its engine hangs")

    assert left_out.find(1.0 + FRESH_S / 2) is first
    later = left_out.find(1.0 + FRESH_S)
    assert [one.why for one in later.named] == ["its engine hangs"]
    assert left_out.find(0.5).named == later.named
