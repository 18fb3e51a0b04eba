from kvmesh.core.admission.sibling_counters import SharedLimits, newest


def test_the_last_change_wins_and_one_name_of_two_at_once() -> None:
    old, late = SharedLimits(1.0, "b"), SharedLimits(2.0, "a")
    same = SharedLimits(2.0, "b", {"max_queued": 3})

    assert newest([late, old]) is late
    assert newest([late, same, old]) is newest([same, old, late]) is same
    assert newest([]) == SharedLimits()
