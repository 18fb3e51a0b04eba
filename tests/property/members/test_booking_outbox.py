"""What is told by records is what is booked, as a naive peer reads it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh._native import BookingOutbox
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import sharing_keys
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.loads import LOCAL, MOST_TOKENS, Demand, new_sequences
from kvmesh.core.members.outcomes import UNKNOWN, Attempt, Verdict
from kvmesh.core.routing.booking_events import Ended, Grew, Prefilled, StateBegins, StateEnds
from kvmesh.core.routing.peer_records import Named, PlacedRecord, read_records

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
    """Requests of one replica, told by its outbox."""

    @initialize()
    def begin(self) -> None:
        self.sequences = new_sequences(SIZE)
        self.outbox = BookingOutbox(self.sequences, EPOCH)
        self.outbox.on_first = self._called
        self.gathers = False
        self.now = 0.0
        self.reader = Reader()
        self.reported: dict[str, list[object]] = {}

    def _called(self) -> None:
        assert not self.gathers, "it was called and has not said that it is done"
        assert self.outbox.waiting
        self.gathers = True

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
        self.sequences.add(request_id, worker, demand, self.now, owner=owner)
        booking = self.sequences.bookings[request_id]
        self.outbox.placed(booking)
        if booking.owner == LOCAL and request_id not in self.reported:
            prompt_tokens = min(booking.prompt_tokens, (1 << 32) - 1)
            self.reported[request_id] = [str(booking.worker), prompt_tokens, False, 0]

    @rule(request_id=ids)
    def first_token(self, request_id: str) -> None:
        self.sequences.first_token(request_id, self.now)
        self.outbox.first_token(request_id)
        if request_id in self.reported:
            self.reported[request_id][2] = True

    @rule(request_id=ids, tokens=st.integers(0, 100) | st.just(MOST_TOKENS))
    def grow(self, request_id: str, tokens: int) -> None:
        self.sequences.grow(request_id, tokens, self.now)

    @rule(request_id=ids, attempt=st.none() | attempts)
    def end(self, request_id: str, attempt: Attempt | None) -> None:
        self.outbox.ended(request_id, *([] if attempt is None else [attempt]))
        self.sequences.finish(request_id)
        self.reported.pop(request_id, None)

    @rule(worker=workers)
    def lose_worker(self, worker: WorkerId) -> None:
        self.sequences.remove_worker(worker)

    @rule()
    def beat(self) -> None:
        self.outbox.publish_growth()
        live = self.sequences.bookings
        for request_id in tuple(self.reported):
            if request_id not in live or live[request_id].owner != LOCAL:
                del self.reported[request_id]
            elif (output := live[request_id].output_tokens) > 0:
                self.reported[request_id][3] = output

    @rule(between=st.booleans())
    def state(self, between: bool) -> None:
        self.beat()
        owned = self.sequences.owned()
        self.outbox.begin_state()
        self.outbox.republish(owned[:2])
        if between and owned:
            self.outbox.ended(owned[-1].request_id, UNKNOWN)
            self.sequences.finish(owned[-1].request_id)
        self.outbox.republish(owned[2:])
        self.outbox.end_state()
        live = self.sequences.bookings
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
        shares = b"\x95\x00\x00\x90\xc2\xc0" if size == 64 else b""
        taken = self.outbox.take(events, size, shares if self.outbox.waiting else b"")
        assert all(message[4] <= events for message in taken)
        for message in taken:
            self.reader.read(message if not shares else without_shares(message, shares))
        assert self.reader.rows() == sorted(self.reported.values(), key=str)

    @rule()
    def be_quiet(self) -> None:
        self.outbox.gathering = self.gathers = False

    @invariant()
    def what_is_told_is_counted(self) -> None:
        assert self.outbox.gathering == self.gathers
        assert self.outbox.next_seq == self.reader.next_seq


def without_shares(message: bytes, shares: bytes) -> bytes:
    if not message[1]:
        return message
    assert message.endswith(shares)
    return message[:1] + b"\x00" + message[2 : -len(shares)]


TestOutboxes = Outboxes.TestCase
TestOutboxes.settings = settings(stateful_step_count=30)


def test_a_message_holds_as_many_events_as_asked() -> None:
    sequences = new_sequences(SIZE)
    outbox = BookingOutbox(sequences, EPOCH)
    for number in range(4):
        sequences.add(f"r{number}", WorkerId("w"), Demand(8, 8, 8), 0.0)
        outbox.placed(sequences.bookings[f"r{number}"])

    # The first tells the worker's name, too.
    assert [message[4] for message in outbox.take(2, 1 << 20)] == [2, 2, 1]
