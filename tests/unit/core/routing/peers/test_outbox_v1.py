"""What an older replica can read."""

import msgspec

from kvmesh._native import Booking
from kvmesh.core.admission.shares import Shares
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import sharing_keys
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.health.outcomes import UNKNOWN, Verdict, failed_attempt
from kvmesh.core.routing.booking_events import (
    MAX_HASHES,
    BookingBatch,
    BookingEvent,
    Ended,
    Grew,
    Placed,
    Prefilled,
    StateBegins,
    StateEnds,
    decode_bookings,
)
from kvmesh.core.routing.peers.outbox import MOST_BYTES
from kvmesh.core.routing.peers.outbox_v1 import OldBookingOutbox
from kvmesh.core.workers.loads import Demand
from kvmesh.core.workers.sequences import new_sequences

W = WorkerId("w")
SHARES = msgspec.msgpack.encode(Shares(1, 2, []))


class Replica:
    def __init__(self) -> None:
        self.sequences = new_sequences(4)
        self.outbox = OldBookingOutbox(self.sequences, 7)

    def book(self, request_id: str, hashes: BlockHashes | None = None, owner: str = "") -> Booking:
        tokens, keys = 40, tuple[int, ...]()
        if hashes is not None:
            tokens, keys = hashes.tokens_count, tuple(sharing_keys(hashes.upto(1 << 40)))
        demand = Demand(tokens, 30, 20, keys, hashes=hashes)
        self.sequences.add(request_id, W, demand, 0.0, owner=owner)
        booking = self.sequences.bookings[request_id]
        self.outbox.placed(booking)
        return booking

    def events(self) -> list[BookingEvent]:
        messages = self.outbox.take(1 << 20, 1 << 30)
        return [event for one in messages for event in decode_bookings(one).events]


def test_a_request_is_three_events_by_its_id() -> None:
    replica = Replica()
    replica.book("q")
    replica.outbox.first_token("q")
    replica.outbox.ended("q")

    [message] = replica.outbox.take(256, 65536)

    events: list[BookingEvent] = [Placed("q", W, 40, 30, 5), Prefilled("q"), Ended("q")]
    assert decode_bookings(message) == BookingBatch(1, 7, 1, events)
    assert decode_bookings(replica.outbox.beat(SHARES)) == BookingBatch(
        1, 7, 4, [], Shares(1, 2, [])
    )


def test_keys_are_each_sixteenth_hash_and_later_those_of_the_first_256_blocks() -> None:
    replica = Replica()
    prompt = list(range(1, 401))
    booking = replica.book("q", BlockHashes.of(prompt, 4))
    replica.sequences.first_token("q", 0.0)
    replica.outbox.retell([booking])

    before, after = (one for one in replica.events() if isinstance(one, Placed))

    assert before.keys == pack_hashes(prompt[15::16])
    assert before.hashes == pack_hashes(prompt)
    assert after.keys == pack_hashes(prompt[15:256:16])
    assert after.hashes == b""


def test_of_a_long_prompt_so_many_hashes_are_told() -> None:
    replica = Replica()
    prompt = list(range(MAX_HASHES + 10))
    replica.book("q", BlockHashes.of(prompt, 4))

    [placed] = replica.events()

    assert isinstance(placed, Placed)
    assert placed.hashes == pack_hashes(prompt[:MAX_HASHES])


def test_a_state_has_live_bookings_of_this_replica_as_they_are() -> None:
    replica = Replica()
    booking, gone = replica.book("q"), replica.book("gone")
    theirs = replica.book("theirs", owner="r2")
    replica.sequences.finish("gone")
    replica.sequences.first_token("q", 0.0)
    replica.sequences.grow("q", 9, 0.0)
    replica.events()

    replica.outbox.begin_state()
    replica.outbox.retell([booking, gone])
    replica.outbox.end_state()
    replica.outbox.tell_growth()

    placed = Placed("q", W, 40, 30, 5)
    state = [StateBegins(), placed, Prefilled("q"), Grew("q", 9), StateEnds()]
    assert replica.events() == state
    assert theirs.owner == "r2"


def test_growth_is_told_once_and_forgotten_with_the_request() -> None:
    replica = Replica()
    replica.book("q")
    replica.book("s")
    replica.sequences.grow("q", 9, 0.0)
    replica.events()

    replica.outbox.tell_growth()
    replica.outbox.tell_growth()
    replica.outbox.ended("q", failed_attempt("reset", 0.5))

    failed = Ended("q", Verdict.WORKER, "reset", 0.5, 0.0)
    assert replica.events() == [Grew("q", 9), failed]


def test_messages_end_at_either_bound_and_the_last_has_the_shares() -> None:
    replica = Replica()
    for number in range(5):
        replica.book(f"r{number}")
    by_events = replica.outbox.take(4, 65536, SHARES)
    for number in range(3):
        replica.outbox.ended(f"r{number}", UNKNOWN)
    by_bytes = replica.outbox.take(256, 200, SHARES)

    def shape(messages: list[bytes]) -> list[tuple[int, bool]]:
        batches = map(decode_bookings, messages)
        return [(len(one.events), one.shares is not None) for one in batches]

    assert shape(by_events) == [(4, False), (1, True)]
    assert shape(by_bytes) == [(2, False), (1, True)]
    assert shape(replica.outbox.take(1, 1, SHARES)) == [(0, True)]
    assert replica.outbox.take(1, 1) == []


def test_what_cannot_be_told_is_counted() -> None:
    replica = Replica()
    replica.book("\ud800")
    tokens = BlockHashes([-1] * 100, 4)
    replica.sequences.add("q", W, Demand(100, 30, hashes=tokens), 0.0)
    replica.outbox.placed(replica.sequences.bookings["q"])

    assert replica.events() == []
    assert replica.outbox.untold == 2


def test_what_nobody_takes_is_left_out_at_a_bound() -> None:
    replica = Replica()
    booking = replica.book("q", BlockHashes.of(list(range(MAX_HASHES)), 4))
    for _ in range(MOST_BYTES // (8 * MAX_HASHES) + 1):
        replica.outbox.placed(booking)

    left_out = replica.outbox.untold
    assert left_out > 100
    assert replica.outbox.next_seq == 1 + left_out
    assert 0 < replica.outbox.waiting < 10


def test_a_fresh_start_goes_on_with_a_number() -> None:
    replica = Replica()
    replica.book("q")

    replica.outbox.restart(50)
    replica.book("s")

    [message] = replica.outbox.take(256, 65536)
    assert decode_bookings(message).first_seq == 50
