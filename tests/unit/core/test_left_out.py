from kvmesh.core.left_out import (
    FRESH_S,
    MOST_NAMED,
    NOBODY,
    LeftOut,
    LeftOutByAll,
    WorkerLeftOut,
    find_left_out,
)
from kvmesh.core.membership import Membership
from kvmesh.core.outcomes import failed_attempt


def test_who_is_left_out_is_named_in_order_with_the_reason() -> None:
    reasons = {"w3": "draining", "w1": "not ready"}

    found = find_left_out(["w3", "w2", "w1"], reasons.get)

    assert found == LeftOut(2, (WorkerLeftOut("w1", "not ready"), WorkerLeftOut("w3", "draining")))
    assert find_left_out(["w2"], reasons.get) is NOBODY


def test_many_are_counted_and_some_named() -> None:
    names = [f"w{number:03d}" for number in range(MOST_NAMED + 5)]

    found = find_left_out(names, lambda _: "gone")

    assert found.count == MOST_NAMED + 5
    assert [one.worker for one in found.named] == names[:MOST_NAMED]


def test_what_is_known_of_others_is_asked_for_now_and_then() -> None:
    members = Membership()
    members.add("w1", 0.0)
    members.add("w2", 0.0)
    by_all = LeftOutByAll(members)
    assert by_all.find(0.0) is NOBODY

    members.note("w1", failed_attempt("cut"), 0.0)
    first = by_all.find(0.0)

    assert [one.worker for one in first.named] == ["w1"]
    assert by_all.find(FRESH_S / 2) is first
    assert by_all.find(FRESH_S) is not first
