from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.ordering import NOTHING_FITS, Cursor
from kvmesh.core.journal.recovery import Missing, Recovery, RecoveryOptions
from kvmesh.core.members.worker_info import Trust

W = WorkerId("w")
OPTIONS = RecoveryOptions(grace_s=0.5, behind_s=1.0, repeat_s=2.0, degraded_s=5.0, outdated_s=5.0)


def followed(next_seq: int = 5, *, gap: bool = False, received: bool = True) -> Recovery:
    recovery = Recovery(OPTIONS)
    recovery.progress(W, Cursor(1, next_seq, gap), 0.0, whole=False)
    if received:
        recovery.receive(W, 1, next_seq - 1, 0.0)
    return recovery


def test_a_worker_never_read_is_not_known_yet() -> None:
    assert Recovery().trust(W, 0.0) is Trust.CATCHING_UP
    assert not Recovery().is_distrusted(W)


def test_a_long_doubt_degrades_a_worker() -> None:
    recovery = followed(gap=True)

    assert recovery.trust(W, 4.9) is Trust.CATCHING_UP
    assert recovery.trust(W, 5.0) is Trust.DEGRADED


def test_claimed_events_that_do_not_come_are_asked_for() -> None:
    recovery = followed()
    recovery.receive(W, 1, 6, 1.0)
    recovery.receive(W, 1, 8, 2.0)
    assert recovery.check(1.9) == []
    assert not recovery.is_distrusted(W)

    assert recovery.check(2.1) == []
    assert recovery.is_distrusted(W)
    assert recovery.check(2.7) == [Missing(W, 1, 5)]


def test_a_heartbeat_that_agrees_ends_being_behind() -> None:
    recovery = followed()
    recovery.receive(W, 1, 6, 1.0)
    recovery.receive(W, 1, 4, 1.5)

    recovery.check(9.0)

    assert not recovery.is_distrusted(W)


def test_skipped_records_make_every_worker_suspect_until_its_heartbeat_agrees() -> None:
    recovery = followed()
    recovery.suspect(1.0)
    assert recovery.is_distrusted(W)
    assert recovery.check(2.0) == []

    recovery.receive(W, 1, 4, 2.0)

    assert not recovery.is_distrusted(W)


def test_an_unread_epoch_is_asked_for_from_its_start() -> None:
    recovery = followed()
    recovery.receive(W, 2, 3, 1.0)

    recovery.check(2.0)

    assert recovery.check(2.5) == [Missing(W, 2, 1)]


def test_a_predecessor_shutting_down_is_left_alone() -> None:
    recovery = followed()
    recovery.progress(W, Cursor(3, 5), 0.0, whole=True)
    recovery.receive(W, 2, 90, 1.0)
    recovery.receive(W, 3, 4, 2.0)
    recovery.receive(W, 2, 91, 3.0)

    assert recovery.check(6.0) == []


def test_a_worker_stuck_in_an_old_epoch_is_told_after_a_while() -> None:
    recovery = followed()
    recovery.progress(W, Cursor(3, 5), 0.0, whole=True)
    for now in (1.0, 3.0, 6.0):
        recovery.receive(W, 2, 90, now)

    assert recovery.check(6.0) == [Missing(W, 3, NOTHING_FITS, outdated=True)]


def test_a_worker_that_lost_its_engines_history_is_degraded() -> None:
    recovery = followed()
    recovery.describe(W, events=True, complete=False)

    assert recovery.trust(W, 1.0) is Trust.DEGRADED


def test_a_worker_that_cannot_be_read_is_degraded_and_not_asked_while_it_writes_so() -> None:
    recovery = followed()
    recovery.pass_over(W, 1.0)
    asked = recovery.check(2.0)
    recovery.receive(W, 1, 9, 3.0)
    recovery.describe(W, events=True, complete=True, readable=False)

    assert recovery.trust(W, 1.0) is Trust.DEGRADED
    assert recovery.is_distrusted(W)
    assert (asked, recovery.check(5.0)) == ([], [])

    recovery.describe(W, events=True, complete=True)
    recovery.receive(W, 1, 9, 6.0)
    assert recovery.trust(W, 6.0) is Trust.DEGRADED
    assert recovery.check(6.0) == [Missing(W, 1, NOTHING_FITS)]

    recovery.progress(W, Cursor(1, 12), 7.0, whole=True)
    assert recovery.trust(W, 7.0) is Trust.EXACT


def test_a_worker_that_says_it_writes_what_is_not_read_is_degraded_before_it_does() -> None:
    recovery = followed()

    recovery.describe(W, events=True, complete=True, readable=False)
    recovery.receive(W, 1, 4, 1.0)

    assert recovery.trust(W, 1.0) is Trust.DEGRADED
    assert recovery.is_distrusted(W)


def test_live_workers_of_which_nothing_was_read_are_unknown() -> None:
    recovery = Recovery(OPTIONS)
    recovery.receive(W, 1, 3, 1.0)
    recovery.receive(W, 1, 4, 2.0)
    unknown = recovery.unknown(2.0)
    gone = recovery.unknown(20.0)

    recovery.progress(W, Cursor(1, 5), 2.0, whole=True)

    assert (unknown, gone) == ({W: 1.0}, {})
    assert recovery.unknown(2.0) == {}


def test_a_worker_that_reads_its_engines_history_is_not_exact() -> None:
    recovery = Recovery(OPTIONS)
    recovery.progress(W, Cursor(1, 5), 0.0, whole=False)
    recovery.describe(W, events=True, complete=True, catching_up=True)
    assert recovery.trust(W, 0.0) is Trust.CATCHING_UP

    recovery.describe(W, events=True, complete=True)
    assert recovery.trust(W, 0.0) is Trust.EXACT
