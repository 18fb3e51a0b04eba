from kvmesh.core.admission.ledger import (
    MAX_ACCOUNTS,
    PASSED_QUANTA,
    Ledger,
)
from kvmesh.core.admission.shares import MAX_ROWS, REST, ShareRow, Shares, key_of

A, B = key_of("a"), key_of("b")


def reported(*rows: ShareRow, serial: int = 0, left: int = 0, beat: bool = False) -> Shares:
    return Shares(serial, left, list(rows), beat)


def row(key: int, charged: int, returned: int = 0, waiting: int = 0, born: int = 1) -> ShareRow:
    return ShareRow(key, born, charged, returned, waiting)


def waiting(*tenants: str) -> Ledger:
    ledger = Ledger(100)
    for tenant in tenants:
        ledger.begin_waiting(tenant)
    return ledger


def test_who_waits_has_a_quantum_left_and_service_uses_it_up() -> None:
    ledger = waiting("a", "b")

    ledger.charge(A, 130)

    assert (ledger.left(A), ledger.left(B)) == (-30, 100)
    assert not ledger.refill()


def test_a_round_begins_when_nobody_who_waits_has_anything_left() -> None:
    ledger = waiting("a", "b")
    ledger.charge(A, 130)
    ledger.charge(B, 100)

    assert ledger.refill()

    assert (ledger.left(A), ledger.left(B)) == (70, 100)
    assert not ledger.refill()
    assert not Ledger(100).refill()


def test_service_while_nobody_waits_makes_no_debt() -> None:
    ledger = Ledger(100)
    ledger.charge(ledger.account("a"), 5000)
    ledger.receive("r2", 1, reported(left=100))

    ledger.begin_waiting("a")
    ledger.begin_waiting("b")

    assert ledger.left(A) == 0
    assert ledger.left(B) <= 100


def test_unused_service_is_given_back_but_no_more_than_was_charged() -> None:
    ledger = waiting("a", "b")
    ledger.charge(A, 100)
    ledger.charge(A, -7)

    ledger.give_back("a", 30)
    assert ledger.left(A) == 30
    ledger.give_back("a", 10**25)
    assert ledger.left(A) == 100
    ledger.give_back("nobody", 5)
    assert len(ledger) == 2


def test_a_sibling_that_dies_stays_charged_and_one_that_returns_is_not_charged_twice() -> None:
    ledger = waiting("a")
    ledger.receive("r2", 1, reported())
    ledger.receive(
        "r2", 1, reported(row(A, 40, waiting=1), row(B, 10, waiting=1, born=2), serial=2)
    )

    ledger.forget_waiting("r2")

    assert ledger.left(A) == 60
    assert not ledger.remote_claims()
    ledger.receive("r2", 1, reported(row(A, 40), serial=2))
    assert ledger.left(A) == 60
    # Killed and started again: its counters begin anew, older news of it counts no more.
    ledger.receive("r2", 2, reported())
    ledger.receive("r2", 2, reported(row(A, 5), serial=1))
    ledger.receive("r2", 1, reported(row(A, 99), serial=2))
    assert ledger.left(A) == 55


def test_nobody_waits_at_a_sibling_that_died() -> None:
    ledger = waiting("a")
    assert not ledger.waits_remotely()
    ledger.receive(
        "r2", 1, reported(row(key_of("b"), 0, waiting=3), row(key_of("a"), 0, waiting=1))
    )
    assert ledger.remote_claims()
    assert ledger.waits_remotely()
    assert not ledger.held_back_remotely()
    ledger.receive("r2", 1, reported(row(key_of("b"), 10**6, waiting=3)))
    assert ledger.held_back_remotely()

    ledger.forget_waiting("r2")

    assert not ledger.waits_remotely()
    assert not ledger.held_back_remotely()
    assert ledger.statistics().waiting == 1


def test_an_account_closed_and_opened_anew_at_a_sibling_begins_with_nothing() -> None:
    ledger = waiting("a")
    ledger.receive("r2", 1, reported())
    ledger.receive("r2", 1, reported(row(A, 40, born=1), serial=1))

    ledger.receive("r2", 1, reported(row(A, 10, born=5), serial=5))
    ledger.receive("r2", 1, reported(row(A, 90, born=1), serial=5))

    assert ledger.left(A) == 50


def test_who_waits_at_a_sibling_alone_has_a_claim_until_it_is_passed_over() -> None:
    ledger = waiting("a")
    ledger.receive("r2", 1, reported(row(B, 0, waiting=2), serial=1))
    ledger.charge(A, 100)
    assert ledger.remote_claims()
    assert not ledger.refill()

    ledger.pass_over()

    assert not ledger.remote_claims()
    assert ledger.refill()
    ledger.receive("r2", 1, reported(row(B, 0, waiting=3), serial=1))
    assert not ledger.remote_claims()
    ledger.receive("r2", 1, reported(row(B, 9, waiting=2), serial=1))
    assert ledger.remote_claims()
    ledger.pass_over()
    ledger.receive("r2", 1, reported(row(B, 9, waiting=2), serial=1, beat=True))
    assert ledger.remote_claims()
    ledger.receive("r2", 1, reported(row(B, 9), serial=1))
    assert not ledger.remote_claims()


def test_who_was_passed_over_keeps_a_claim_of_some_quanta() -> None:
    ledger = waiting("a")
    ledger.receive("r2", 1, reported(row(B, 0, waiting=1), serial=1))
    ledger.pass_over()
    ledger.charge(A, 100_000)
    ledger.refill()

    ledger.receive("r2", 1, reported(row(B, 0, waiting=1), serial=1, beat=True))

    assert (ledger.left(B), ledger.left(A)) == (100, 100 - PASSED_QUANTA * 100)
    assert ledger.remote_claims()


def test_only_what_changed_is_told_in_messages_of_a_bounded_size() -> None:
    ledger = waiting(*(str(number) for number in range(MAX_ROWS + 6)))

    assert ledger.updates
    first, second = ledger.publish(), ledger.publish()

    assert first is not None
    assert second is not None
    assert (len(first.rows), len(second.rows), first.serial) == (MAX_ROWS, 6, MAX_ROWS + 6)
    assert first.left == 100
    assert ledger.publish() is None
    assert [ledger.updates] == [False]
    ledger.receive("r2", 1, reported(row(REST, 0, waiting=1)))
    assert len(ledger.publish_again().rows) == MAX_ROWS
    assert Ledger(100).publish() is None
    assert Ledger(100).publish_again() == Shares(0, 0, [], beat=True)


def test_a_new_round_is_news_and_so_is_who_begins_or_ceases_to_wait() -> None:
    ledger = waiting("a")
    ledger.publish()
    ledger.begin_waiting("a")
    assert not ledger.updates
    ledger.charge(A, 100)
    ledger.publish()

    ledger.refill()

    assert ledger.publish() == Shares(1, 100, [])
    ledger.end_waiting(A)
    assert not ledger.updates
    ledger.end_waiting(A)
    assert ledger.updates


def test_tenants_beyond_those_that_wait_share_an_account() -> None:
    ledger = waiting(*(str(number) for number in range(MAX_ACCOUNTS)))

    one, other = ledger.begin_waiting("one more"), ledger.begin_waiting("another")

    assert (one, other, len(ledger)) == (REST, REST, MAX_ACCOUNTS + 1)
    ledger.charge(REST, 50)
    ledger.give_back("one more", 20)
    assert ledger.left(REST) == 70
    ledger.end_waiting(one)
    ledger.end_waiting(other)


def test_people_see_who_waits_first_then_who_is_ahead() -> None:
    ledger = waiting("a")
    ledger.charge(ledger.account("b"), 40)
    ledger.charge(ledger.account("c"), 70)
    ledger.receive("r2", 1, reported(row(key_of("d"), 0, waiting=1), serial=1))

    shown = ledger.shares(3)

    assert [one.tenant for one in shown] == ["a", f"#{key_of('d'):016x}", "c"]
    assert (shown[0].waiting, shown[1].waits_remotely, shown[2].service) == (1, True, 70)
    assert shown[2].deficit == 30
    ledger.begin_waiting("d")
    assert "d" in [one.tenant for one in ledger.shares(9)]


def test_a_closed_account_is_told_no_more() -> None:
    ledger = Ledger(100)
    for number in range(MAX_ACCOUNTS):
        ledger.charge(ledger.account(str(number)), 0)
    ledger.account("new")
    ledger.charge(key_of("new"), 5)

    shares = ledger.publish()

    assert shares is not None
    assert [one.charged for one in shares.rows] == [5]
