from kvmesh.core.blocks.events import ENDS, ROOT, Cleared, Event, Removed, Reuse, Stored
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.engines.kv_events.closure import MAX_RUN
from kvmesh.core.journal.outbox import Outbox


def stored(parent: int, *hashes: int, tier: int = 0) -> Stored:
    return Stored(parent, pack_hashes(hashes), tier)


def removed(*hashes: int, tier: int = 0) -> Removed:
    return Removed(pack_hashes(hashes), tier)


def take(outbox: Outbox, most: int) -> list[Event]:
    batch = outbox.first(most)
    assert outbox.first(most) == batch, "it stays until it is dropped"
    outbox.drop(len(batch))
    return batch


def test_runs_that_continue_each_other_become_one() -> None:
    outbox = Outbox(10)

    outbox.add([stored(ROOT, 1, 2), stored(2, 3), stored(1, 4)])

    assert take(outbox, 10) == [stored(ROOT, 1, 2, 3), stored(1, 4)]


def test_ends_become_one_whatever_their_order_and_a_rule_stays_alone() -> None:
    outbox = Outbox(10)

    outbox.add([Reuse(), stored(ROOT, 9, tier=ENDS), stored(ROOT, 4, 5, tier=ENDS)])
    outbox.add([stored(ROOT, 7, tier=ENDS + 1), removed(4, tier=ENDS), removed(9, tier=ENDS)])

    assert take(outbox, 10) == [
        Reuse(),
        stored(ROOT, 9, 4, 5, tier=ENDS),
        stored(ROOT, 7, tier=ENDS + 1),
        removed(4, 9, tier=ENDS),
    ]


def test_a_store_is_not_merged_into_a_removal_or_a_clearing() -> None:
    outbox = Outbox(10)

    outbox.add([removed(1), stored(1, 2), Cleared(), stored(ROOT, 3)])

    assert take(outbox, 10) == [Cleared(), stored(ROOT, 3)]
    outbox.add([removed(1), stored(1, 2)])
    assert take(outbox, 10) == [removed(1), stored(1, 2)]


def test_merged_runs_stay_within_a_message() -> None:
    outbox = Outbox(10)
    long = tuple(range(1, MAX_RUN + 1))

    outbox.add([stored(ROOT, *long), stored(MAX_RUN, MAX_RUN + 1)])

    assert len(outbox) == 2


def test_too_many_events_are_all_dropped_and_said_so() -> None:
    outbox = Outbox(2)

    assert outbox.add([stored(ROOT, 1), stored(ROOT, 2)])
    assert not outbox.add([stored(ROOT, 3)])
    assert len(outbox) == 0


def test_a_dump_replaces_everything_and_does_not_count_as_too_many() -> None:
    outbox = Outbox(1)
    outbox.add([stored(ROOT, 9)])
    outbox.restart([stored(ROOT, 1), stored(ROOT, 2)])

    assert outbox.add([stored(ROOT, 3)])
    assert not outbox.add([stored(ROOT, 4)])
    outbox.restart([])
    assert take(outbox, 9) == [Cleared()]
