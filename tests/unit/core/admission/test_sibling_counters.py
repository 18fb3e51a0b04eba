from kvmesh.core.admission.shares import ShareRow
from kvmesh.core.admission.sibling_counters import MAX_PEERS, SiblingCounters


def met(serial: int = 0) -> SiblingCounters:
    counters = SiblingCounters(3)
    assert counters.meet("r2", 1, serial)
    return counters


def row(charged: int, returned: int = 0, key: int = 1, born: int = 1) -> ShareRow:
    return ShareRow(key, born, charged, returned, 0)


def test_each_token_is_new_once() -> None:
    counters = met()

    assert counters.take("r2", row(40, 10)) == (40, 10)
    assert (counters.take("r2", row(40, 10)), counters.take("r2", row(30, 20))) == ((0, 0), (0, 10))
    assert counters.take("r2", row(45, 15)) == (5, 0)


def test_what_was_charged_before_the_first_message_is_not_new() -> None:
    counters = met(serial=5)

    assert counters.take("r2", row(10**6, born=5)) == (0, 0)
    assert counters.take("r2", row(10**6 + 3, born=5)) == (3, 0)
    assert counters.take("r2", row(7, key=2, born=6)) == (7, 0)


def test_siblings_and_their_tenants_are_bounded() -> None:
    counters = SiblingCounters(3)
    for number in range(2 * MAX_PEERS):
        counters.meet(f"r{number}", 1, 0)
        for key in range(9):
            counters.take(f"r{number}", row(1, key=key))

    assert counters.sizes() == [3] * MAX_PEERS
