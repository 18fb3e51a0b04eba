from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.checkpoint_schedule import (
    CheckpointOptions,
    CheckpointSchedule,
    Kept,
    name_of,
)

W = WorkerId("gpu-1-dp0")
OPTIONS = CheckpointOptions(batches=100, bytes_per_s=10.0, pause_s=1.0, again_s=2.0, offers=2)


def kept(seq: int, *, size: int = 100, now: float = 0.0, number: int = 1) -> Kept:
    return Kept(name_of(W, 7, number), seq, size, now)


def test_the_first_checkpoint_is_due_at_once_and_the_next_when_it_may_cost_as_much() -> None:
    schedule = CheckpointSchedule(OPTIONS)
    assert schedule.is_due(W, 5, 0.0)
    assert schedule.stored(W, kept(5)) == ""

    assert not schedule.is_due(W, 5, 50.0)
    assert not schedule.is_due(W, 6, 9.9)
    assert schedule.is_due(W, 6, 10.0)
    assert schedule.stored(W, kept(6, now=10.0, number=2)) == name_of(W, 7, 1)
    assert schedule.batches() == {W: 6}


def test_many_batches_make_one_due_earlier_and_so_does_another_engine() -> None:
    schedule = CheckpointSchedule(OPTIONS)
    schedule.stored(W, kept(50))

    assert not schedule.is_due(W, 150, 0.9)
    assert schedule.is_due(W, 150, 1.0)
    assert schedule.is_due(W, 3, 1.0)


def test_who_takes_over_keeps_the_newest_of_each_worker_and_takes_another_soon() -> None:
    schedule = CheckpointSchedule(OPTIONS)
    names = [name_of(W, 6, 40), name_of(W, 7, 2), name_of(W, 7, 1)]

    gone = schedule.adopt({**dict.fromkeys(names, 10), "idx-1-2-3-4": 10}, 0.0)

    assert (gone, schedule.to_offer(W, 1, 0.0)) == ([names[0], names[2]], names[1])
    assert schedule.is_due(W, 5, 0.0)


def test_what_is_kept_is_offered_some_times_to_each_incarnation() -> None:
    schedule = CheckpointSchedule(OPTIONS)
    assert schedule.to_offer(W, 1, 0.0) == ""
    schedule.stored(W, kept(5))

    assert (schedule.to_offer(W, 0, 0.0), schedule.to_offer(W, 1, 0.0)) == ("", name_of(W, 7, 1))
    assert (schedule.to_offer(W, 1, 1.9), schedule.to_offer(W, 1, 2.0)) == ("", name_of(W, 7, 1))
    assert (schedule.to_offer(W, 1, 9.0), schedule.to_offer(W, 2, 9.0)) == ("", name_of(W, 7, 1))
    schedule.refused(W)
    assert schedule.to_offer(W, 2, 99.0) == ""


def test_a_worker_that_is_not_heard_for_long_is_forgotten_with_its_checkpoint() -> None:
    schedule = CheckpointSchedule(OPTIONS)
    schedule.stored(W, kept(5))
    schedule.is_due(W, 5, 0.0)
    schedule.is_due(WorkerId("new"), 1, 0.0)

    assert list(schedule.forget(3599.0)) == []
    assert list(schedule.forget(3600.0)) == [name_of(W, 7, 1)]
    assert schedule.to_offer(W, 1, 3600.0) == ""
