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
