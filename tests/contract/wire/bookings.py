"""What replicas tell of bookings, as records."""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from kvmesh._native import BookingOutbox
from kvmesh.core.admission.shares import ShareRow, Shares
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.outcomes import Attempt, Verdict
from kvmesh.core.routing.booking_events import Ended, Grew, Prefilled, StateBegins, StateEnds
from kvmesh.core.routing.peer_records import (
    Named,
    PlacedRecord,
    Record,
    RecordBatch,
    read_records,
)
from tests.contract.wire.case import EPOCH, WORKER, WireCase

SIZE: Final = 16
PROMPT: Final = list(range(1000, 1300))
"""Hashes of 300 blocks: every grade of those below 1,024 is met."""

GRADED: Final = [
    *(PROMPT[depth - 1] for depth in range(4, 33, 4)),
    *(PROMPT[depth - 1] for depth in range(48, 257, 16)),
    PROMPT[-1],
]
SHARES: Final = Shares(9, 512, [ShareRow(2**62, 3, 4096, 128, 2)], True)


class Teller:
    """A replica's own bookings, and the outbox that tells of them."""

    def __init__(self) -> None:
        self.sequences = new_sequences(SIZE)
        self.outbox = BookingOutbox(self.sequences, EPOCH)

    def place(self, request_id: str, demand: Demand, worker: WorkerId = WORKER) -> None:
        self.sequences.add(request_id, worker, demand, 0.0)
        self.outbox.placed(self.sequences.bookings[request_id])

    def message(self, shares: bytes = b"") -> bytes:
        [message] = self.outbox.take(1 << 16, 1 << 20, shares)
        return message


def life(teller: Teller) -> bytes:
    known = BlockHashes.of(PROMPT, SIZE)
    teller.place("a", Demand(300 * SIZE + 3, 900, 20, (), hashes=known))
    teller.place("b", Demand(20 * SIZE, 30, 0, (77,), streams=False, turn=True), WorkerId("w0"))
    teller.outbox.first_token("a")
    teller.sequences.first_token("a", 1.0)
    teller.sequences.grow("a", 300, 2.0)
    teller.outbox.publish_growth()
    teller.outbox.ended("a")
    teller.outbox.ended("b", Attempt(Verdict.OVERLOAD, "429", 0.25, 30.0))
    return teller.message()


LIFE: Final[list[Record]] = [
    Named(0, WORKER),
    PlacedRecord("p#1", 0, 300, 4803, 900, 2, pack_hashes(GRADED), True, True, False),
    Named(1, "w0"),
    PlacedRecord("p#2", 1, 20, 320, 30, 0, pack_hashes([0, 0, 0, 77]), False, False, True),
    Prefilled("p#1"),
    Grew("p#1", 300),
    Ended("p#1"),
    Ended("p#2", Verdict.OVERLOAD, "429", 0.25, 30.0),
]


def state(teller: Teller) -> bytes:
    teller.place("a", Demand(20, 20, 0, ()))
    teller.message()
    teller.outbox.begin_state()
    teller.outbox.republish(teller.sequences.owned())
    teller.outbox.end_state()
    return teller.message()


STATE: Final[list[Record]] = [
    StateBegins(),
    Named(0, WORKER),
    PlacedRecord("p#1", 0, 2, 20, 20, 0),
    StateEnds(),
]


def beat(teller: Teller) -> bytes:
    return teller.outbox.beat(msgspec.msgpack.encode(SHARES))


def of_records(tell: Callable[[Teller], bytes], value: RecordBatch) -> WireCase:
    return WireCase(lambda: tell(Teller()), lambda data: read_records("p", data), value)


def bookings() -> Iterator[tuple[str, WireCase]]:
    yield "bookings_life", of_records(life, RecordBatch(EPOCH, 1, LIFE))
    yield "bookings_state", of_records(state, RecordBatch(EPOCH, 3, STATE))
    yield "bookings_beat", of_records(beat, RecordBatch(EPOCH, 1, [], SHARES))
