"""The sender of one worker's events, where its dump and its encoder may raise at any call.

The journal loses messages and acknowledgements and is remade; a replica folds what it stored. In
the end the replica holds what the engine holds.
"""

from collections.abc import Iterator
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh.core.blocks.events import (
    ROOT,
    Batch,
    Cleared,
    Event,
    Removed,
    Stored,
    WorkerId,
    decode_batch,
    encode_batch,
)
from kvmesh.core.blocks.hashing import pack_hashes, unpack_hashes
from kvmesh.core.journal import event_sender
from kvmesh.core.journal.event_sender import EventSender, SenderLimits, Sends
from kvmesh.core.journal.ordering import FIRST_SEQ, Ordering
from tests.property.support.faults import PlantedError, Trial, raises_at

W = WorkerId("w")
LIMITS = SenderLimits(
    flush_events=3, window=3, deadline_s=1.0, ring_s=3.0, max_pending_events=8, resync_pause_s=0.5
)


class SenderMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.trial = Trial()
        self.encoded = 0
        plain = encode_batch

        def encode(batch: Batch) -> bytes:
            self.trial.count("encode_batch")
            self.encoded += len(batch.events)
            return plain(batch)

        self.patched = mock.patch.object(event_sender, "encode_batch", encode)
        self.patched.start()
        self.held: set[int] = set()
        self.sender = EventSender(1, self.trial.may_raise(self.dump), LIMITS)
        self.now = 0.0
        self.acks: list[tuple[int, int]] = []
        self.remake()

    def dump(self) -> Iterator[Event]:
        yield from (Stored(ROOT, pack_hashes([one])) for one in sorted(self.held))
        self.trial.count("dump's end")

    @rule()
    def remake(self) -> None:
        """Have somebody delete the journal: replicas begin again with nothing."""
        self.stored, self.known = 0, set[int]()
        self.ordering = Ordering()
        self.remade = self.sender.statistics().events > 0
        self.acks.clear()

    @rule(hashes=st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True))
    def change(self, hashes: list[int]) -> None:
        events: list[Event] = []
        for one in hashes:
            packed = pack_hashes([one])
            events.append(Removed(packed) if one in self.held else Stored(ROOT, packed))
            self.held ^= {one}
        self.sender.add(events)

    @rule(at=raises_at, lost=st.integers(0, 7))
    def send(self, at: int, lost: int) -> None:
        before = self.sender.statistics()
        sends = self.trial.attempt(at, self.sender.send, self.now)
        if isinstance(sends, PlantedError):
            after = self.sender.statistics()
            waiting = after.pending + after.events
            assert waiting >= before.pending + before.events, "what waited is in none of both"
        else:
            self.append(sends, lost)
        after = self.sender.statistics()
        assert self.encoded == after.events, "a number was given to nothing"

    @rule(lost=st.integers(0, 7), later_s=st.floats(0.0, 3.0))
    def retry(self, lost: int, later_s: float) -> None:
        self.now += later_s
        self.append(self.sender.retry(self.now), lost)

    @rule(lost=st.integers(0, 7))
    def ask_again(self, lost: int) -> None:
        cursor = self.ordering.cursor(W)
        asked = (cursor.epoch, cursor.next_seq) if cursor else (0, 1)
        self.append(self.sender.recover(*asked, self.now), lost)

    @rule(which=st.integers(0, 5))
    def acknowledge(self, which: int) -> None:
        if which < len(self.acks):
            self.sender.acknowledge(*self.acks.pop(which), self.now)

    def append(self, sends: Sends, lost: int) -> None:
        for number, (token, data) in enumerate(sends):
            if not lost >> number & 1:
                self.stored += 1
                self.acks.append((token, self.stored))
                self.fold(data)

    def fold(self, data: bytes) -> None:
        admission = self.ordering.admit(W, decode_batch(data))
        if admission.fence:
            self.known.clear()
        for event in admission.events:
            if isinstance(event, Cleared):
                self.known.clear()
            elif isinstance(event, Stored):
                self.known.update(unpack_hashes(event.hashes))
            elif isinstance(event, Removed):
                self.known.difference_update(unpack_hashes(event.hashes))

    @invariant()
    def no_more_is_in_flight_than_may_be(self) -> None:
        if hasattr(self, "sender"):
            assert self.sender.statistics().window.in_flight <= LIMITS.window

    def teardown(self) -> None:
        """Let time pass without a fault: replica and engine agree."""
        if not hasattr(self, "sender"):
            return
        for _ in range(60):
            self.now += 1.0
            for rest in (self.sender.send, self.sender.retry):
                self.append(rest(self.now), 0)
                while self.acks:
                    self.acknowledge(0)
            cursor = self.ordering.cursor(W)
            upto = cursor.next_seq if cursor else FIRST_SEQ
            behind = self.remade if cursor is None else cursor.gap
            if behind or self.sender.confirmed_seq() >= upto:
                self.ask_again(0)
        assert self.known == self.held
        assert self.sender.due_s() is None
        assert not self.sender.is_waiting()
        self.patched.stop()


TestSender = SenderMachine.TestCase
TestSender.settings = settings(max_examples=60, stateful_step_count=25)
