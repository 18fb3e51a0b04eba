from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.decision_record import count_states, find_own
from tests.unit.core.insight.test_decision_log import enter


def test_a_tenants_requests_are_found_and_counted_apart() -> None:
    log = DecisionLog()
    for name, tenant in (("a", "ann"), ("a", "ben"), ("b", "ann")):
        enter(log, name).tenant = tenant
    log.ended(log.latest(1)[0], "finished", 200, None, 2.0)
    records = log.latest(10)

    assert find_own(records, b"a", "ann") is records[2]
    assert find_own(records, b"a", "ben") is records[1] is log.find(b"a")
    assert find_own(records, b"b", "ben") is None
    assert count_states(records, "ann") == {"finished": 1, "open": 1}
    assert count_states(records, "eve") == {}
