from unittest.mock import ANY

from kvmesh.bounds import MAX_ORDINAL
from kvmesh.core.blocks.events import (
    ROOT,
    Batch,
    Cleared,
    Reuse,
    Stored,
    decode_batch,
    encode_batch,
)
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.journal.event_sender import (
    EventSender,
    SenderLimits,
    Sends,
    is_followable,
)
from kvmesh.core.journal.ordering import NOTHING_FITS
from kvmesh.formats import FormatRange

STATE = [Stored(ROOT, pack_hashes([1, 2]))]
LIMITS = SenderLimits(flush_events=2, window=2, max_pending_events=3)


def change(number: int) -> Stored:
    return Stored(ROOT, pack_hashes([number]))


def started(limits: SenderLimits = LIMITS, epoch: int = 7) -> EventSender:
    """Return a sender whose first dump is stored at sequence 1: events 1 and 2."""
    sender = EventSender(epoch, lambda: STATE, limits)
    confirm(sender, sender.send(0.0), 1)
    return sender


def confirm(sender: EventSender, sends: Sends, sequence: int) -> None:
    for offset, (token, _) in enumerate(sends):
        assert sender.acknowledge(token, sequence + offset, 0.0)


def batches(sends: Sends) -> list[Batch]:
    return [decode_batch(data) for _, data in sends]


def test_overflow_becomes_a_dump_under_the_next_numbers() -> None:
    sender = started()
    sender.add([change(3), change(4), change(5)])
    flying = sender.send(0.0)
    sender.add(change(number) for number in range(6, 12))
    sender.add([change(99)])
    assert sender.is_full()
    assert sender.send(0.0) == []
    confirm(sender, flying, 2)

    [dump] = batches(sender.send(0.0))
    assert (dump.first_seq, dump.events, sender.statistics().dumps) == (6, [Cleared(), *STATE], 2)


def test_a_replica_that_misses_recent_events_gets_them_again() -> None:
    sender = started()
    sender.add([change(3)])
    sent = sender.send(0.0)
    confirm(sender, sent, 2)

    again = sender.recover(7, 3, now=0.1)

    assert ([data for _, data in again], sender.confirmed_seq()) == ([data for _, data in sent], 2)


def test_several_replicas_that_miss_the_same_get_one_answer() -> None:
    sender = started()
    sender.add([change(3)])
    confirm(sender, sender.send(0.0), 2)

    assert sender.recover(7, 3, now=0.1)
    assert sender.recover(7, 3, now=0.2) == []
    assert sender.recover(7, 3, now=1.2)


def test_no_second_dump_is_made_while_the_last_batch_of_one_is_under_way() -> None:
    sender = EventSender(7, lambda: STATE, SenderLimits(flush_events=1, window=2))
    first, last = sender.send(0.0)
    sender.acknowledge(first[0], 1, 0.0)

    assert sender.recover(7, NOTHING_FITS, 9.0) == []

    assert not sender.is_waiting()
    sender.acknowledge(last[0], 2, 9.0)
    sender.recover(7, NOTHING_FITS, 20.0)
    assert sender.is_waiting()


def test_a_replica_that_misses_the_next_event_or_asks_while_a_dump_waits_gets_nothing() -> None:
    sender = started()
    assert sender.recover(7, 3, 9.0) == []
    assert sender.recover(7, 1, 9.0) != [], "and that was no answer"

    waiting = EventSender(7, lambda: STATE, LIMITS)
    assert waiting.recover(7, 0, 9.0) == []
    confirm(waiting, waiting.send(9.0), 1)
    assert waiting.recover(7, 1, 9.0) != [], "the first question had no answer of its own"


def test_a_later_epoch_in_the_journal_is_outrun() -> None:
    sender = started()

    assert (sender.recover(20, 5, now=0.1), sender.confirmed_seq()) == ([], 0)

    [dump] = batches(sender.send(0.1))
    assert (dump.epoch, dump.first_seq, dump.events) == (21, 1, [Cleared(), *STATE])
    assert sender.epoch == 21


def test_an_epoch_that_has_none_behind_it_is_not_followed() -> None:
    """Asked for 2^64-1, a sender once sent what nobody could decode, and its process ended."""
    sender = started()

    assert sender.recover(MAX_ORDINAL, NOTHING_FITS, 0.0) == []
    assert (sender.epoch, sender.is_waiting()) == (7, False)
    sender.recover(MAX_ORDINAL - 1, NOTHING_FITS, 0.0)
    assert sender.epoch == MAX_ORDINAL
    dump = sender.send(0.0)
    assert batches(dump)[0].epoch == MAX_ORDINAL
    confirm(sender, dump, 9)
    sender.recover(MAX_ORDINAL, NOTHING_FITS, 1.0)
    assert sender.is_waiting(), "in its own epoch it still sends what is missed"
    assert is_followable(7)
    assert not is_followable(sender.epoch)


def test_an_older_format_begins_with_a_dump_and_a_newer_one_just_goes_on() -> None:
    sender = EventSender(7, lambda: STATE, LIMITS, journal_format=1)
    confirm(sender, sender.send(0.0), 1)

    sender.write(2)
    sender.add([Reuse()])
    newer = [decode_batch(data, FormatRange(1, 2)) for _, data in sender.send(0.0)]
    sender.write(1)
    older = batches(sender.send(0.0))

    assert [(one.version, one.first_seq, one.events) for one in newer] == [(2, 3, [Reuse()])]
    assert [(one.version, one.first_seq) for one in older] == [(1, 4)]
    assert older[0].events == [Cleared(), *STATE]
    assert sender.retry(1.0) == [(ANY, encode_batch(older[0]))]


def test_a_sender_says_when_something_waits_and_when_a_batch_is_full() -> None:
    sender = started()
    assert not sender.is_waiting()
    sender.add([change(3)])
    assert sender.is_waiting()
    assert not sender.is_full()
    sender.add([change(4)])

    assert sender.is_full()
