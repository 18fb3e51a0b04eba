import pytest

from kvmesh._native import Record, Ring
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.decision_record import count_states, find_own, thin
from tests.reference.decision_log import ended
from tests.reference.insight.decision_record import MAX_ENDED
from tests.unit.core.insight.test_decision_log import HASHES, decide, enter


def test_a_tenants_requests_are_found_and_counted_apart() -> None:
    log = DecisionLog()
    for name, tenant in (("a", "ann"), ("a", "ben"), ("b", "ann")):
        enter(log, name).tenant = tenant
    ended(log, log.latest(1)[0], "finished", 200, None, 2.0)
    records = log.latest(10)

    assert find_own(records, b"a", "ann") is records[2]
    assert find_own(records, b"a", "ben") is records[1] is log.find(b"a")
    assert find_own(records, b"b", "ben") is None
    assert count_states(records, "ann") == {"finished": 1, "open": 1}
    assert count_states(records, "eve") == {}


def test_a_ring_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 record, not 0"):
        Ring(0, 9, 9, 0, thin)


def test_a_record_is_in_one_ring_once() -> None:
    ring = Ring(4, 99, 9, 0, thin)
    record = Record(b"a", decide(), HASHES, 1.0)
    ring.append(record)

    with pytest.raises(ValueError, match="in a ring already"):
        ring.append(record)
    assert len(ring) == 1


def test_a_record_that_left_the_ring_keeps_only_the_chosen_candidate_of_a_retry() -> None:
    ring = Ring(1, 99, 9, 0, thin)
    gone, newer = (Record(name, decide(), HASHES, 1.0) for name in (b"a", b"b"))
    for record in (gone, newer):
        ring.append(record)

    ring.take_again(gone, decide(whole=True))

    assert (gone.attempts, len(gone.decision.candidates), gone.kept) == (2, 1, 0)
    assert ring.candidates == 0


def test_ends_beyond_the_bound_are_dropped() -> None:
    ring = Ring(1, 99, 9, 0, thin)
    record = Record(b"a", decide(), HASHES, 1.0)
    ring.append(record)

    for _ in range(MAX_ENDED + 2):
        ring.end(record, "finished", 200, 2.0)

    assert (ring.waiting(), ring.dropped_ends) == ((1, MAX_ENDED), 2)


def test_a_record_that_may_not_wait_is_passed_over() -> None:
    ring = Ring(4, 1, 9, 0, thin)
    kept, dropped = (Record(name, decide(), HASHES, 1.0) for name in (b"a", b"b"))
    for record in (kept, dropped):
        ring.append(record)

    assert ring.next_decided() is kept
    assert ring.next_decided() is None
    assert (ring.dropped, ring.waiting(), list(dropped.known_hashes())) == (1, (0, 0), [])


def test_a_record_that_did_not_wait_leaves_the_ring_unheard() -> None:
    ring = Ring(2, 1, 9, 0, thin)
    records = [Record(name, decide(), HASHES, 1.0) for name in (b"a", b"b", b"c", b"d")]
    counts: list[int] = []
    for record in records:
        ring.append(record)
        counts.append(ring.dropped)

    # "a" waits, and is dropped when "c" comes; "b" never did; nor did "d" behind "c".
    assert counts == [0, 1, 2, 3]
    assert ring.next_decided() is records[2]
    assert ring.next_decided() is None
