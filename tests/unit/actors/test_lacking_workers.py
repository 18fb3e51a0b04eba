"""An index without live workers is not served from in silence."""

from kvmesh.actors.kernel import Log
from kvmesh.actors.lacking_workers import GRACE_S, SETTLE_S, LackingWorkers
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.ordering import Cursor
from kvmesh.core.journal.recovery import Recovery
from tests.unit.actors.effects import of

W = WorkerId("w")


def test_a_start_waits_for_the_blocks_of_live_workers_and_not_for_ever() -> None:
    recovery = Recovery()
    lacking = LackingWorkers(recovery)
    whole = lacking.why_not(0.0, 0.0)

    recovery.receive(W, 1, 4, 3.0)

    assert whole == ""
    assert lacking.why_not(3.0, None) == ""
    assert lacking.why_not(3.0, 0.0) == (
        "asking for the blocks of 1 worker that the index does not have"
    )
    assert lacking.why_not(SETTLE_S, 0.0) == ""


def test_a_worker_whose_format_is_not_read_is_not_asked_and_so_not_waited_for() -> None:
    recovery = Recovery()
    lacking = LackingWorkers(recovery)
    recovery.describe(W, events=True, complete=True, readable=False)
    recovery.receive(W, 1, 4, 0.0)

    assert lacking.why_not(0.0, 0.0) == ""
    assert list(lacking.check(GRACE_S)) == []
    assert recovery.unknown(GRACE_S) == {W: 0.0}


def test_a_worker_that_was_heard_before_its_first_event_makes_nobody_wait() -> None:
    recovery = Recovery()
    lacking = LackingWorkers(recovery)
    recovery.receive(W, 1, 0, 0.5)
    recovery.receive(W, 1, 4, 1.0)

    assert lacking.why_not(1.0, 0.0) == ""
    assert list(lacking.check(1.0 + GRACE_S)) == []
    assert recovery.unknown(1.0) == {W: 1.0}


def test_it_is_said_once_until_all_are_known() -> None:
    recovery = Recovery()
    lacking = LackingWorkers(recovery)
    recovery.receive(W, 1, 4, 0.0)

    early = list(lacking.check(GRACE_S / 2))
    said = list(lacking.check(GRACE_S)), list(lacking.check(GRACE_S))
    recovery.progress(W, Cursor(1, 5), 2.0, whole=True)
    known = list(lacking.check(2.0))
    recovery.forget(W)
    recovery.receive(W, 1, 5, 2.0)
    again = list(lacking.check(3.5))

    assert (early, said[1], known) == ([], [], [])
    (log,) = of(Log, said[0])
    assert log.event == "index lacks live workers, asking them"
    assert log.fields == {"workers": 1, "first": "'w'"}
    assert len(again) == 1
