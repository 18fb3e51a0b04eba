"""What is told by records is what is booked; the naive outbox writes the same bytes."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh._native import ActiveSequences, BookingOutbox
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import sharing_keys
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.loads import LOCAL, MOST_TOKENS, Demand, new_sequences
from kvmesh.core.members.outcomes import UNKNOWN, Attempt, Verdict
from kvmesh.core.routing.booking_events import Ended, Grew, Prefilled, StateBegins, StateEnds
from kvmesh.core.routing.peers.records import Named, PlacedRecord, read_records
from tests.reference.routing import outbox as model

SIZE = 4
EPOCH = 7

ids = st.integers(0, 6).map(lambda number: f"r{number}")
workers = st.sampled_from([WorkerId("w1"), WorkerId("worker-two"), WorkerId("wörker")])
amounts = st.integers(0, 90) | st.sampled_from([0, 1 << 32, MOST_TOKENS, 1 << 70])
prompts = st.tuples(st.integers(0, 2), st.integers(0, 40) | st.sampled_from([257, 300, 1500]))
attempts = st.builds(
    Attempt,
    st.sampled_from([one for one in Verdict if one is not Verdict.SERVED]),
    st.sampled_from(
        ["", "429", "reset", "kind of a failure that is longer than it may be", "\ud800é"]
    ),
    st.floats(),
    st.floats(0, 50),
)


class Reader:
    """A naive peer: what it believes of the sender's bookings, by their numbers."""

    def __init__(self) -> None:
        self.next_seq = 1
        self.names: dict[int, str] = {}
        self.bookings: dict[str, list[object]] = {}
        self.unconfirmed: set[str] | None = None

    def read(self, message: bytes) -> None:
        batch = read_records("p", message)
        assert batch.epoch == EPOCH
        assert batch.first_seq == self.next_seq
        self.next_seq += len(batch.events)
        for event in batch.events:
            match event:
                case Named(worker, name):
                    self.names[worker] = name
                case StateBegins():
                    self.unconfirmed = set(self.bookings)
                case StateEnds():
                    for request_id in self.unconfirmed or ():
                        del self.bookings[request_id]
                    self.unconfirmed = None
                case PlacedRecord():
                    self._place(event)
                case Prefilled(request_id):
                    self.bookings[request_id][2] = True
                case Grew(request_id, tokens):
                    self.bookings[request_id][3] = tokens
                case Ended(request_id):
                    del self.bookings[request_id]
                    self._confirm(request_id)

    def _place(self, event: PlacedRecord) -> None:
        known = self.bookings.get(event.request_id)
        row = [self.names[event.worker], event.prompt_tokens, False, 0]
        if known is None or self.unconfirmed is None:
            self.bookings[event.request_id] = row
        else:
            assert known[:2] == row[:2], "a state tells what was told before"
        self._confirm(event.request_id)

    def _confirm(self, request_id: str) -> None:
        if self.unconfirmed is not None:
            self.unconfirmed.discard(request_id)

    def rows(self) -> list[list[object]]:
        return sorted(self.bookings.values(), key=str)


class Outboxes(RuleBasedStateMachine):
    """Requests of one replica, told by a naive outbox and by one of the compiled core."""

    @initialize()
    def begin(self) -> None:
        self.sequences: list[ActiveSequences] = [new_sequences(SIZE), new_sequences(SIZE)]
        self.outboxes: list[BookingOutbox | model.BookingOutbox] = [
            model.BookingOutbox(self.sequences[0], EPOCH),
            BookingOutbox(self.sequences[1], EPOCH),
        ]
        self.calls = [0 for _ in self.outboxes]
        for place, outbox in enumerate(self.outboxes):
            outbox.on_first = lambda place=place: self._called(place)
        self.now = 0.0
        self.reader = Reader()
        self.reported: dict[str, list[object]] = {}

    def _called(self, place: int) -> None:
        self.calls[place] += 1

    @rule(
        request_id=ids,
        worker=workers,
        tokens=st.tuples(amounts, amounts),
        prompt=prompts,
        kind=st.sampled_from(["hashes", "keys", "theirs"]),
        flags=st.tuples(st.booleans(), st.booleans()),
    )
    def book(
        self,
        *,
        request_id: str,
        worker: WorkerId,
        tokens: tuple[int, int],
        prompt: tuple[int, int],
        kind: str,
        flags: tuple[bool, bool],
    ) -> None:
        family, blocks = prompt
        known = [family << 40 | depth for depth in range(blocks)]
        demand = Demand(
            blocks * SIZE + tokens[0] % SIZE if kind == "hashes" else tokens[0],
            tokens[1],
            tokens[1],
            tuple(sharing_keys(known)),
            flags[0],
            BlockHashes.of(known, SIZE) if kind == "hashes" else None,
            flags[1],
        )
        owner = "r2" if kind == "theirs" else LOCAL
        for sequences, outbox in zip(self.sequences, self.outboxes, strict=True):
            sequences.add(request_id, worker, demand, self.now, owner=owner)
            outbox.placed(sequences.bookings[request_id])
        booking = self.sequences[0].bookings[request_id]
        if booking.owner == LOCAL and request_id not in self.reported:
            prompt_tokens = min(booking.prompt_tokens, (1 << 32) - 1)
            self.reported[request_id] = [str(booking.worker), prompt_tokens, False, 0]

    @rule(request_id=ids)
    def first_token(self, request_id: str) -> None:
        for sequences, outbox in zip(self.sequences, self.outboxes, strict=True):
            sequences.first_token(request_id, self.now)
            outbox.first_token(request_id)
        if request_id in self.reported:
            self.reported[request_id][2] = True

    @rule(request_id=ids, tokens=st.integers(0, 100) | st.just(MOST_TOKENS))
    def grow(self, request_id: str, tokens: int) -> None:
        for sequences in self.sequences:
            sequences.grow(request_id, tokens, self.now)

    @rule(request_id=ids, attempt=st.none() | attempts)
    def end(self, request_id: str, attempt: Attempt | None) -> None:
        for sequences, outbox in zip(self.sequences, self.outboxes, strict=True):
            if attempt is None:
                outbox.ended(request_id)
            else:
                outbox.ended(request_id, attempt)
            sequences.finish(request_id)
        self.reported.pop(request_id, None)

    @rule(worker=workers)
    def lose_worker(self, worker: WorkerId) -> None:
        for sequences in self.sequences:
            sequences.remove_worker(worker)

    @rule()
    def beat(self) -> None:
        for outbox in self.outboxes:
            outbox.publish_growth()
        live = self.sequences[0].bookings
        for request_id in tuple(self.reported):
            if request_id not in live or live[request_id].owner != LOCAL:
                del self.reported[request_id]
            elif (output := live[request_id].output_tokens) > 0:
                self.reported[request_id][3] = output

    @rule(between=st.booleans())
    def state(self, between: bool) -> None:
        self.beat()
        for sequences, outbox in zip(self.sequences, self.outboxes, strict=True):
            owned = sequences.owned()
            outbox.begin_state()
            outbox.republish(owned[:2])
            if between and owned:
                outbox.ended(owned[-1].request_id, UNKNOWN)
                sequences.finish(owned[-1].request_id)
            outbox.republish(owned[2:])
            outbox.end_state()
        live = self.sequences[0].bookings
        self.reported = {
            one.request_id: [
                str(one.worker),
                min(one.prompt_tokens, (1 << 32) - 1),
                not one.prefilling,
                one.output_tokens,
            ]
            for one in live.values()
            if one.owner == LOCAL
        }

    @rule(events=st.integers(1, 5), size=st.sampled_from([1, 64, 1000, 1 << 20]))
    def take(self, events: int, size: int) -> None:
        waiting = self.outboxes[0].waiting
        shares = b"\x95\x00\x00\x90\xc2\xc0" if size == 64 else b""
        taken = [outbox.take(events, size, shares if waiting else b"") for outbox in self.outboxes]
        assert all(one == taken[0] for one in taken)
        for message in taken[0]:
            self.reader.read(message if not shares else without_shares(message, shares))
        assert self.reader.rows() == sorted(self.reported.values(), key=str)

    @rule()
    def be_quiet(self) -> None:
        for outbox in self.outboxes:
            outbox.gathering = False

    @invariant()
    def both_are_alike(self) -> None:
        seen = [
            (one.waiting, one.next_seq, one.untold, one.gathering, one.beat())
            for one in self.outboxes
        ]
        assert all(one == seen[0] for one in seen)
        assert len(set(self.calls)) == 1


def without_shares(message: bytes, shares: bytes) -> bytes:
    if not message[1]:
        return message
    assert message.endswith(shares)
    return message[:1] + b"\x00" + message[2 : -len(shares)]


TestOutboxes = Outboxes.TestCase
TestOutboxes.settings = settings(stateful_step_count=30)
