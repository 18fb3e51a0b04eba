"""Bookings told to a sibling, some of which cannot be encoded: those fail alone."""

import random
from functools import partial
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh.actors.kernel import Effect, Log, Message, Publish, Wake
from kvmesh.actors.messages import BookingsWait, BusMessage, Started, StateWanted, Tick
from kvmesh.actors.replica_sync import ReplicaSync, ReplicaSyncOptions
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.index.approx import new_approx
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.scheduler import Scheduler

W = WorkerId("w")
BLOCK = 4
POISON = "\ud800"
"""A name that is no text: whatever has it cannot be encoded."""

tokens = st.integers(1, 400)


class Replica:
    """A router that only shares its bookings."""

    def __init__(self, name: str) -> None:
        self.sequences = new_sequences(BLOCK, lease_s=1e9)
        scheduler = Scheduler(
            RouterOptions(block_size=BLOCK),
            random.Random(1),
            membership=Membership(),
            sequences=self.sequences,
            routed=new_approx(),
        )
        options = ReplicaSyncOptions(name, "code", 7, max_events=5, max_bytes=2000)
        self.sync = ReplicaSync(scheduler, options)
        self.sync.outbox.on_first = partial(self.tell, BookingsWait())
        self.now = 0.0
        self.sent: list[Publish] = []
        self.logs = 0
        self.woken: list[Message] = []
        self.tell(Started())

    def tell(self, message: Message) -> None:
        effects: list[Effect] = list(self.sync.receive(message, self.now))
        self.sent += [one for one in effects if isinstance(one, Publish)]
        self.logs += sum(isinstance(one, Log) and one.level == "error" for one in effects)
        self.woken += [one.message for one in effects if isinstance(one, Wake)]


class SharingMachine(RuleBasedStateMachine):
    """One replica books; the other learns all that can be told, in whatever company it comes."""

    @initialize()
    def begin(self) -> None:
        self.ours, self.theirs = Replica("a"), Replica("b")
        self.serial = count()
        self.open: dict[str, tuple[bool, int]] = {}
        self.poisoned = 0

    @rule(prompt=tokens, output=tokens, poison=st.booleans())
    def book(self, prompt: int, output: int, poison: bool) -> None:
        name, worker = f"r{next(self.serial)}", WorkerId(W + POISON) if poison else W
        demand = Demand(prompt, min(prompt, 20), output)
        self.ours.sequences.add(name, worker, demand, self.ours.now)
        self.ours.sync.outbox.placed(self.ours.sequences.bookings[name])
        self.open[name] = poison, prompt
        self.poisoned += poison

    @rule(which=st.integers(0, 9), grown=tokens)
    def go_on(self, which: int, grown: int) -> None:
        for name in list(self.open)[which : which + 1]:
            self.ours.sequences.first_token(name, self.ours.now)
            self.ours.sync.outbox.first_token(name)
            self.ours.sequences.grow(name, grown, self.ours.now)

    @rule(which=st.integers(0, 9))
    def end(self, which: int) -> None:
        for name in list(self.open)[which : which + 1]:
            del self.open[name]
            self.ours.sequences.finish(name)
            self.ours.sync.outbox.ended(name)

    @rule()
    def tick(self) -> None:
        self.ours.now += 1.0
        self.ours.tell(Tick("beat"))

    @rule()
    def flush(self) -> None:
        while self.ours.woken:
            message = self.ours.woken.pop()
            if message == Tick("flush"):
                self.ours.tell(message)

    @rule(lost=st.integers(0, 3))
    def deliver(self, lost: int) -> None:
        sent, self.ours.sent = self.ours.sent, []
        for number, one in enumerate(sent):
            if number != lost - 1:
                self.theirs.tell(BusMessage(one.subject, one.data))

    @rule()
    def ask_for_all(self) -> None:
        self.ours.now += 1.0
        self.ours.tell(StateWanted("b"))

    @invariant()
    def what_cannot_be_told_is_counted(self) -> None:
        if hasattr(self, "ours"):
            assert self.ours.sync.statistics().untold >= self.poisoned

    def teardown(self) -> None:
        """Tell all once more: the sibling knows every booking that can be told, and no other."""
        if not hasattr(self, "ours"):
            return
        self.flush()
        self.tick()
        self.ask_for_all()
        self.deliver(0)
        reported = sorted(prompt for poison, prompt in self.open.values() if not poison)
        assert sorted(one.prompt_tokens for one in self.theirs.sequences.owned("a")) == reported
        assert bool(self.ours.logs) == bool(self.poisoned)
        assert self.theirs.sync.peers.known_upto("a") is not None


TestSharing = SharingMachine.TestCase
TestSharing.settings = settings(max_examples=60, stateful_step_count=25)
