from kvmesh.core.journal.lease import RENEW_S, SAFETY_S, TTL_S, Lease


def test_a_lease_is_held_from_the_grant_until_just_before_the_key_may_expire() -> None:
    lease = Lease("r0")
    assert not lease.holds(0.0)

    lease.granted(7, sent_s=10.0)

    assert lease.holds(10.0 + TTL_S - SAFETY_S - 0.01)
    assert not lease.holds(10.0 + TTL_S - SAFETY_S)
    assert (lease.fence, lease.expected) == (7, 7)


def test_renewal_keeps_the_fence_and_taking_it_again_raises_it() -> None:
    lease = Lease("r0")
    lease.granted(7, 0.0)
    lease.granted(8, RENEW_S)

    assert (lease.fence, lease.expected) == (7, 8)

    lease.lost()
    assert (lease.holds(RENEW_S), lease.expected) == (False, None)

    lease.granted(12, 5.0)
    assert lease.fence == 12


def test_an_unknown_outcome_is_settled_by_what_is_stored() -> None:
    lease = Lease("r0")
    lease.granted(7, 0.0)

    lease.found(b"r0", 8)
    assert (lease.fence, lease.expected) == (7, 8)
    assert lease.holds(1.0)

    lease.found(b"r1", 9)
    assert not lease.holds(1.0)

    lease.found(None, 0)
    assert lease.expected is None


def test_what_is_read_back_extends_no_lease_for_it_may_be_an_earlier_write() -> None:
    lease = Lease("r0")
    lease.granted(7, 0.0)

    lease.found(b"r0", 7)

    assert not lease.holds(float(TTL_S))


def test_the_lease_of_an_earlier_life_is_renewed_before_it_is_used() -> None:
    lease = Lease("r0")

    lease.found(b"r0", 5)
    assert (lease.holds(0.0), lease.expected, lease.fence) == (False, 5, 5)

    lease.granted(6, 1.0)
    assert (lease.holds(1.0), lease.fence) == (True, 5)


def expected_of(lease: Lease) -> int | None:
    return lease.expected


GARBAGE = b'{"stream":"KVMESH_EVENTS_chat","seq":7}'


def test_garbage_counts_as_free_when_its_time_is_over_however_often_it_is_written() -> None:
    lease = Lease("r0")

    assert lease.refused(GARBAGE, 4, 10.0)
    assert not lease.refused(b"", 5, 10.0 + TTL_S)
    assert not lease.expected

    assert not lease.refused(GARBAGE, 6, 10.01 + TTL_S)
    assert expected_of(lease) == 6
    assert lease.taken is None
    assert not lease.holds(10.01 + TTL_S)

    lease.granted(7, 14.0)
    assert (lease.holds(14.0), lease.fence, lease.overridden) == (True, 7, 1)


def test_the_holder_writes_over_garbage_at_once_and_holds_the_lease_meanwhile() -> None:
    lease = Lease("r0")
    lease.granted(3, 10.0)

    assert lease.refused(GARBAGE, 4, 11.0)

    assert (lease.expected, lease.holds(11.0), lease.fence) == (4, True, 3)
    lease.granted(5, 11.0)
    lease.granted(6, 11.5)
    assert (lease.fence, lease.taken, lease.overridden) == (3, 6, 1)
    assert lease.refused(GARBAGE, 7, 12.0), "it is news again"


def test_another_holders_name_is_written_over_only_where_it_should_have_expired() -> None:
    lease = Lease("r0")

    for second in range(20):
        assert not lease.refused(b"r1", second, float(second))
        assert not lease.expected
    assert not lease.refused(b"r1", 19, 19.0 + 2 * TTL_S)
    assert not lease.expected
    lease.refused(b"r1", 19, 19.1 + 2 * TTL_S)
    expected = lease.expected
    lease.lost()

    assert [expected, lease.expected] == [19, None]
    lease.granted(20, 30.0)
    assert lease.overridden == 0


def test_an_own_name_of_another_life_is_waited_for_and_a_free_key_is_taken_anew() -> None:
    lease = Lease("r0")

    lease.refused(b"r0", 4, 0.0)
    assert (lease.expected, lease.taken) == (None, None)

    lease.refused(GARBAGE, 5, 1.0)
    assert not lease.refused(None, 0, 2.0)
    assert lease.refused(GARBAGE, 6, 2.0 + TTL_S), "its time begins anew"
    assert lease.expected is None
