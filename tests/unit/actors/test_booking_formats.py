"""What replicas tell their bookings in, and how a long state is told."""

import random
from itertools import pairwise

from kvmesh.actors.kernel import Effect, Log, Publish, Wake
from kvmesh.actors.messages import (
    BookingsWait,
    RouterGone,
    RouterHeartbeat,
    RouterSeen,
    Started,
    StateWanted,
    Tick,
)
from kvmesh.actors.replica_sync import ReplicaSync, ReplicaSyncOptions
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.booking_events import StateBegins, StateEnds
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.peer_records import PlacedRecord, RecordBatch, read_records
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.formats import FIRST, FormatRange, Formats
from tests.unit.actors.effects import of
from tests.unit.actors.test_replica_sync import Driver

NEXT = Formats(bookings=FormatRange(1, 2))
"""What a build reads that has a format 2, which is format 1 by another number."""


def started(*peers: tuple[str, Formats]) -> Driver:
    """Return a replica that had time to hear of its peers."""
    driver = Driver(reads=NEXT)
    for name, formats in peers:
        driver.publish(seen(name, formats))
    driver.now = 1.1999  # a timer may be early by the resolution of its clock
    driver.publish(Tick("format"))
    return driver


def seen(name: str, formats: Formats) -> RouterSeen:
    return RouterSeen(RouterHeartbeat(name, "code", "", ready=True, epoch=1, formats=formats))


OWN_SUBJECT = "kvmesh.seq.code.r1"


def records(effects: list[Effect]) -> list[RecordBatch]:
    sent = [one.data for one in of(Publish, effects) if one.subject == OWN_SUBJECT]
    return [read_records("r1", data, NEXT.bookings) for data in sent]


def numbers(effects: list[Effect]) -> list[int]:
    """Return the formats of what is told."""
    return [one.data[0] for one in of(Publish, effects) if one.subject == OWN_SUBJECT]


def kinds(batch: RecordBatch) -> list[str]:
    return [type(one).__name__ for one in batch.events]


STATE = ["StateBegins", "Named", "PlacedRecord", "StateEnds"]


def test_what_is_booked_before_the_start_is_told_behind_it() -> None:
    sequences = new_sequences(4)
    scheduler = Scheduler(
        RouterOptions(block_size=4), random.Random(1), membership=Membership(), sequences=sequences
    )
    sync = ReplicaSync(scheduler, ReplicaSyncOptions("r1", "code", 7))
    sequences.add("q", WorkerId("w"), Demand(40, 30), 0.0)
    sync.outbox.placed(sequences.bookings["q"])

    sync.receive(Started(), 0.0)

    [batch] = records(list(sync.receive(BookingsWait(), 0.0)))
    assert kinds(batch) == ["Named", "PlacedRecord"]


def test_bookings_are_told_in_the_old_format_until_peers_had_time_to_be_heard_of() -> None:
    driver = Driver(reads=NEXT)
    driver.now = 1.1
    driver.publish(seen("r2", NEXT))
    old = driver.book("q")
    assert (driver.sync.statistics().format, numbers(old)) == (1, [1])
    driver.now = 1.1999  # a timer may be early by the resolution of its clock

    effects = driver.publish(Tick("format"))

    [batch] = records(effects)
    assert (driver.sync.statistics().format, numbers(effects)) == (2, [2])
    assert [one.event for one in of(Log, effects)] == ["bookings are sent in another format"]
    assert batch.first_seq == 1 + len(records(old)[0].events)
    assert kinds(batch) == STATE


def test_a_replica_that_does_not_read_the_new_format_is_told_in_the_old_one_while_it_lives() -> (
    None
):
    driver = started(("r2", NEXT))
    driver.book("q")

    to_old = driver.publish(seen("r3", FIRST))
    again = [*driver.publish(seen("r3", FIRST)), *driver.publish(seen("r4", NEXT))]
    held = driver.sync.statistics().held_by
    assert of(Log, [*driver.publish(RouterGone("r3")), *driver.publish(Tick("beat"))]) == []
    driver.now += 1.2
    to_new = driver.publish(Tick("beat"))

    [state] = records(to_old)
    assert (numbers(to_old), kinds(state)) == ([1], STATE)
    assert again == []
    assert held == "r3"
    [switched] = [one.fields for one in of(Log, to_new)]
    assert switched == {"format": 2, "held_by": ""}
    assert numbers(to_new) == [1, 2]
    assert [one.first_seq for one in records(to_new)] == [state.first_seq + 4] * 2
    assert driver.sync.statistics().format == 2


def test_what_waits_goes_in_the_format_that_it_was_written_in() -> None:
    driver = started(("r2", NEXT))
    driver.book("q")
    driver.first_token("q")

    effects = driver.publish(seen("r3", FIRST))

    last, state = records(effects)
    assert numbers(effects) == [2, 1]
    assert (kinds(last), kinds(state)) == (["Prefilled"], STATE)
    assert state.first_seq == last.first_seq + 1


def test_a_long_state_is_told_in_slices_between_which_others_are_served() -> None:
    driver = started()
    for number in range(600):
        driver.book(f"r{number}")
    driver.publish(Tick("flush"))
    driver.now = 5.0

    turns = [driver.publish(StateWanted("r2"))]
    driver.sequences.finish("r599")
    driver.finished("r599")
    driver.book("new")
    assert driver.publish(StateWanted("r3")) == []
    while Wake(0.0, Tick("state")) in turns[-1]:
        turns.append(driver.publish(Tick("state")))

    batches = [batch for effects in turns for batch in records(effects)]
    events = [event for batch in batches for event in batch.events]
    assert len(turns) == 5
    assert all(one.first_seq + len(one.events) == two.first_seq for one, two in pairwise(batches))
    assert isinstance(events[0], StateBegins)
    assert isinstance(events[-1], StateEnds)
    reported = [one.request_id for one in events if isinstance(one, PlacedRecord)]
    assert len(reported) == len(set(reported)) == 600
    assert driver.publish(Tick("state")) == []


def test_a_change_of_format_during_a_state_tells_it_anew() -> None:
    driver = started(("r2", NEXT))
    for number in range(300):
        driver.book(f"r{number}")
    driver.publish(Tick("flush"))
    driver.now = 5.0
    driver.publish(StateWanted("r2"))

    switched = driver.publish(seen("r3", FIRST))
    rest = [effect for _ in range(3) for effect in driver.publish(Tick("state"))]

    effects = [*switched, *rest]
    events = [event for batch in records(effects) for event in batch.events]
    assert set(numbers(effects)) == {1}
    assert isinstance(events[0], StateBegins)
    assert isinstance(events[-1], StateEnds)
    assert len(events) == 303


def test_what_was_not_told_is_logged_at_the_next_beat() -> None:
    driver = started()
    driver.sequences.add("q", WorkerId("\ud800"), Demand(40, 30), 0.0)
    driver.placed("q")

    first, second = driver.publish(Tick("beat")), driver.publish(Tick("beat"))

    assert [one.fields for one in of(Log, first)] == [{"events": 1}]
    assert of(Log, second) == []
    assert driver.publish(BookingsWait()) == []
