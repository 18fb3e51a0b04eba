import pytest

from kvmesh._native import Ring
from kvmesh.core.insight.decision_record import count_states, find_own, thin
from tests.reference.decision_log import ended, naive_log
from tests.unit.core.insight.test_decision_log import enter


def test_a_tenants_requests_are_found_and_counted_apart() -> None:
    log = naive_log()
    for name, tenant in (("a", "ann"), ("a", "ben"), ("b", "ann")):
        enter(log, name).tenant = tenant
    ended(log, log.records.latest(1)[0], "finished", 200, None, 2.0)
    records = log.records.latest(10)

    assert find_own(records, b"a", "ann") is records[2]
    assert find_own(records, b"a", "ben") is records[1] is log.records.find(b"a")
    assert find_own(records, b"b", "ben") is None
    assert count_states(records, "ann") == {"finished": 1, "open": 1}
    assert count_states(records, "eve") == {}


def test_a_ring_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 record, not 0"):
        Ring(0, 9, 9, 0, thin)
