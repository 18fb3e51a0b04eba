"""The link between two processes, where codec, transport and receivers may raise at any call."""

from collections.abc import Sequence
from itertools import count
from unittest import mock

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh.errors import CodecError
from kvmesh.transport import local
from kvmesh.transport.local import LocalLink
from tests.property.support.faults import PlantedError, Trial, raises_at
from tests.property.support.pipe import Pipe, Turns

FRAME = 200
POISON = 10**25
kinds = st.sampled_from(("plain", "plain", "plain", "long", "poison", "too long"))


class Codec:
    """Msgpack; `encode` may raise."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def encode(self, messages: Sequence[tuple[int, object]]) -> bytes:
        self._trial.count("encode")
        return msgspec.msgpack.encode(messages)

    def decode(self, data: memoryview) -> list[tuple[int, object]]:
        return msgspec.msgpack.decode(data, type=list[tuple[int, object]])


class End:
    """Who sends, and who receives; either may raise."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.got: list[int] = []
        self.lost = 0

    def on_message(self, message: tuple[int, object]) -> None:
        self.got.append(message[0])
        self._trial.ledger.end(message[0], "arrived")
        self._trial.count("on_message")

    def on_unsent(self, message: tuple[int, object], error: Exception) -> None:
        assert not isinstance(error, AssertionError), error
        self._trial.ledger.end(message[0], "told unsent")
        self._trial.count("on_unsent")

    def on_lost(self) -> None:
        self.lost += 1


class LinkMachine(RuleBasedStateMachine):
    """What is sent arrives once and in order, or its sender is told, or the link is lost."""

    @initialize()
    def begin(self) -> None:
        self.trial, self.turns = Trial(), Turns()
        self.patched = mock.patch.multiple(
            local, MAX_FRAME_BYTES=FRAME, MAX_BACKLOG_BYTES=10 * FRAME
        )
        self.patched.start()
        self.end = End(self.trial)
        self.serial = count()
        self.turns.inside(self.connect)

    def connect(self) -> None:
        link = LocalLink[tuple[int, object], tuple[int, object]]
        self.ours, self.theirs = link(Codec(self.trial)), link(Codec(self.trial))
        self.pipe = Pipe(self.ours)
        self.pipe.write = self.trial.may_raise(self.pipe.write)  # type: ignore[method-assign]
        for one, transport in ((self.ours, self.pipe), (self.theirs, Pipe(self.theirs))):
            one.attach(self.end)
            one.connection_made(transport)

    @rule(many=st.lists(kinds, min_size=1, max_size=6), at=raises_at)
    def send(self, many: list[str], at: int) -> None:
        size = {"plain": 1, "long": FRAME // 2, "too long": 2 * FRAME}

        def send_all() -> None:
            for kind in many:
                n = next(self.serial)
                body: object = POISON if kind == "poison" else "x" * size[kind]
                if not self.ours._lost:
                    self.trial.ledger.accept(n)
                self.ours.send((n, body))

        if len(self.pipe.written) > 2 * FRAME:
            self.deliver(len(self.pipe.written), 0)
        self.trial.attempt(at, self.turns.inside, send_all)

    @rule(most=st.integers(1, 2 * FRAME), at=raises_at)
    def deliver(self, most: int, at: int) -> None:
        self.trial.attempt(at, self.turns.inside, self.pipe.deliver, self.theirs, most)

    @invariant()
    def order_is_kept_and_a_lost_link_says_so(self) -> None:
        if not hasattr(self, "end"):
            return
        assert self.end.got == sorted(self.end.got)
        assert self.end.lost == self.ours._lost == (self.trial.raised["write"] > 0)
        assert not self.ours._outbox, "a turn of the loop later nothing waits"
        assert all(
            isinstance(one, PlantedError | OverflowError | CodecError)
            for one in self.turns.reported
        )

    def teardown(self) -> None:
        """What was accepted ended, unless the link did."""
        if not hasattr(self, "end"):
            return
        while self.pipe.written:
            self.deliver(10**9, 0)
        assert self.ours._lost or not self.trial.ledger.open
        self.patched.stop()
        self.turns.close()


TestLink = LinkMachine.TestCase
TestLink.settings = settings(max_examples=60, stateful_step_count=20)
