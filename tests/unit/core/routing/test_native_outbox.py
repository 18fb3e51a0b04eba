"""The records of bookings, byte by byte."""

import gc
import struct
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from kvmesh._native import ActiveSequences, Booking, BookingOutbox
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import sharing_keys
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.outcomes import UNKNOWN, Attempt, Verdict
from kvmesh.core.routing.peer_records import read_records
from kvmesh.formats import FormatRange

W = WorkerId("w1")
MOST_RETRIED, MOST_WORKERS = 1024, 1 << 14
SIZE = 16


class Replica:
    """Bookings, and the outbox that is told of them."""

    def __init__(self) -> None:
        self.sequences = new_sequences(SIZE)
        self.outbox = BookingOutbox(self.sequences, 7)

    def book(
        self, request_id: str, tokens: int = 40, worker: str = W, hashes: object = None
    ) -> Booking:
        known = cast("BlockHashes | None", hashes)
        keys = () if known is None else tuple(sharing_keys(known.upto(1 << 40)))
        demand = Demand(tokens, 30, 20, keys, hashes=known)
        self.sequences.add(request_id, WorkerId(worker), demand, 0.0)
        booking = self.sequences.bookings[request_id]
        self.outbox.placed(booking)
        return booking

    def records(self) -> bytes:
        return b"".join(message[24:] for message in self.outbox.take(1 << 20, 1 << 30))


@pytest.fixture
def replica() -> Replica:
    return Replica()


def test_a_request_is_three_records_of_fixed_size(replica: Replica) -> None:
    prompt = BlockHashes.of(list(range(100, 120)), SIZE)
    replica.book("q", 20 * SIZE + 3, hashes=prompt)
    replica.outbox.first_token("q")
    replica.outbox.ended("q")

    [message] = replica.outbox.take(256, 65536)

    graded = pack_hashes([103, 107, 111, 115, 119])
    assert message == (
        struct.pack("<BBHIQQ", 1, 0, 0, 4, 7, 1)
        + struct.pack("<BBHI8s", 7, 0, 2, 0, b"w1")
        + struct.pack("<BBHIIIIIII", 0, 3, 5, 1, 0, 20, 323, 30, 2, 0)
        + graded
        + struct.pack("<BBHI", 1, 0, 0, 1)
        + struct.pack("<BBHI", 3, 0, 0, 1)
    )
    assert (replica.outbox.next_seq, replica.outbox.waiting) == (5, 0)


def test_only_so_many_failed_requests_keep_their_numbers(replica: Replica) -> None:
    for number in range(MOST_RETRIED + 1):
        replica.book(f"r{number}")
        replica.outbox.ended(f"r{number}", UNKNOWN)
        replica.sequences.finish(f"r{number}")
    replica.records()

    replica.book("r0")
    replica.book("r1")

    assert struct.unpack_from("<I28xI", replica.records(), 4) == (MOST_RETRIED + 2, 2)


def test_what_nobody_takes_is_left_out_at_a_bound_and_peers_find_the_gap(replica: Replica) -> None:
    booking = replica.book("q")
    replica.outbox.take(1, 1)
    reported = replica.outbox.next_seq
    events = (4 << 20) // 32 + 2

    for _ in range(events):
        replica.outbox.republish([booking])

    left_out = replica.outbox.untold
    assert 0 < left_out == replica.outbox.next_seq - reported
    [message] = replica.outbox.take(1 << 30, 1 << 30)
    assert struct.unpack_from("<Q", message, 16)[0] == reported + left_out
    assert left_out + replica.outbox.next_seq - reported - left_out == events


def test_a_message_has_the_format_that_is_told(replica: Replica) -> None:
    replica.book("q")
    replica.outbox.format = 2

    [message] = replica.outbox.take(256, 65536)

    assert [message[0], replica.outbox.beat()[0]] == [2, 2]
    assert read_records("p", message, FormatRange(2, 2)).first_seq == 1


def test_messages_end_at_either_bound_and_the_last_has_the_shares(replica: Replica) -> None:
    for number in range(5):
        replica.book(f"r{number}")

    by_events = replica.outbox.take(4, 65536, b"shares")
    for number in range(5):
        replica.outbox.first_token(f"r{number}")
    by_bytes = replica.outbox.take(256, 16, b"shares")

    assert [(one[1], one[4], len(one)) for one in by_events] == [(0, 4, 136), (1, 2, 94)]
    assert [(one[1], one[4], len(one)) for one in by_bytes] == [(0, 2, 40), (0, 2, 40), (1, 1, 38)]
    assert replica.outbox.take(4, 16, b"shares") == [replica.outbox.beat(b"shares")]
    assert replica.outbox.take(4, 16) == []
    assert replica.outbox.beat() == struct.pack("<BBHIQQ", 1, 0, 0, 0, 7, 12)


def test_a_name_that_is_no_text_or_too_long_is_counted(replica: Replica) -> None:
    replica.book("a", worker="\ud800")
    replica.book("b", worker="x" * 513)
    replica.book("c", worker="")
    replica.outbox.republish(replica.sequences.owned())

    assert (replica.records(), replica.outbox.untold) == (b"", 6)


def test_tokens_that_are_none_are_counted_and_break_nothing(replica: Replica) -> None:
    booking = replica.sequences
    hashes = BlockHashes([-1] * 100, SIZE)
    booking.add("q", W, Demand(100, 30, hashes=hashes), 0.0)

    replica.outbox.placed(booking.bookings["q"])

    assert (replica.records(), replica.outbox.untold) == (b"", 1)


def test_so_many_workers_have_numbers_and_none_is_used_twice(replica: Replica) -> None:
    for number in range(MOST_WORKERS + 1):
        replica.book(f"r{number}", worker=f"w{number}")
    replica.records()

    replica.book("q", worker="w0")

    kind, _, _, worker = struct.unpack_from("<BBHI", replica.records())
    assert (kind, worker) == (7, MOST_WORKERS + 1)


MISUSES: dict[str, Callable[[BookingOutbox], object]] = {
    "placed no booking": lambda one: one.placed(cast("Booking", "q")),
    "first token of a number": lambda one: one.first_token(cast("str", 1)),
    "end of a number": lambda one: one.ended(cast("str", 1)),
    "an attempt that is none": lambda one: one.ended("q", cast("Attempt", 1)),
    "an attempt of another kind": lambda one: one.ended(
        "q", Attempt(Verdict.WORKER, cast("str", 1))
    ),
    "an attempt that took no time": lambda one: one.ended(
        "q", Attempt(Verdict.WORKER, "", cast("float", "x"))
    ),
    "nothing to retell": lambda one: one.republish(cast("list[Booking]", 1)),
    "strangers to retell": lambda one: one.republish(cast("list[Booking]", [1])),
    "take without bounds": lambda one: one.take(),  # type: ignore[call-arg]
    "take of words": lambda one: one.take(cast("int", "a"), 1),
    "take of too many": lambda one: one.take(1, 1 << 70),
    "shares that are no bytes": lambda one: one.take(1, 1, cast("bytes", "a")),
    "a beat of words": lambda one: one.beat(cast("bytes", "a")),
    "a beat of two": lambda one: one.beat(b"", b""),  # type: ignore[call-arg]
    "no sequences": lambda one: type(one)(cast("ActiveSequences", 1), 1),
    "a negative epoch": lambda one: type(one)(new_sequences(4), -1),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_of_the_compiled_outbox_is_an_error(misuse: str) -> None:
    replica = Replica()
    replica.book("q")

    with pytest.raises((TypeError, ValueError, OverflowError, AttributeError)):
        MISUSES[misuse](replica.outbox)

    assert replica.outbox.waiting == 2


def test_who_is_called_may_do_anything_to_the_compiled_outbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: raised.append(one.exc_type))
    replica = Replica()
    outbox = replica.outbox

    def meddle() -> None:
        outbox.on_first = None
        outbox.take(1, 1)
        outbox.begin_state()
        raise KeyError("meddled")

    outbox.on_first = meddle
    replica.book("q")

    assert (raised, outbox.next_seq, outbox.waiting) == ([KeyError], 3, 1)


def test_an_outbox_that_calls_who_holds_it_is_collected() -> None:
    replica = Replica()

    def hold(outbox: BookingOutbox) -> BookingOutbox:
        return outbox

    replica.outbox.on_first = partial(hold, replica.outbox)
    seen = weakref.ref(replica.outbox.on_first)
    del replica

    gc.collect()

    assert seen() is None


def test_keys_that_somebody_puts_among_bookings_harm_nothing() -> None:
    replica, asked = Replica(), list[int]()

    class Key(str):
        __slots__ = ()

        def __hash__(self) -> int:
            return hash("q")

        def __eq__(self, other: object) -> bool:
            asked.append(1)
            replica.outbox.ended("q")
            replica.outbox.take(1 << 20, 1 << 20)
            return False

    bookings = replica.sequences.bookings
    bookings[Key("other")] = replica.book("a")
    replica.book("q")
    for number in range(100):
        replica.book(f"r{number}")

    replica.outbox.publish_growth()

    assert asked
    bookings.clear()
