from kvmesh.core.admission.shares import ShareRow
from kvmesh.core.admission.sibling_counters import MAX_PEERS, SiblingCounters


def row(charged: int, returned: int = 0, key: int = 1, born: int = 1) -> ShareRow:
    return ShareRow(key, born, charged, returned, 0)


def test_siblings_and_their_tenants_are_bounded() -> None:
    counters = SiblingCounters(3)
    for number in range(2 * MAX_PEERS):
        counters.meet(f"r{number}", 1, 0)
        for key in range(9):
            counters.take(f"r{number}", row(1, key=key))

    assert counters.sizes() == [3] * MAX_PEERS
