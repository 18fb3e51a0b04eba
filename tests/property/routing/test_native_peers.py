"""Twin replicas that hear the same messages of their peers: one folds them record by record in
Python, the other in the compiled core. What they know afterwards is the same to the last bit.
"""

from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh.core.admission.shares import Shares
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import grade
from kvmesh.core.members.loads import Demand
from kvmesh.core.routing import event_fold
from kvmesh.errors import CodecError
from tests.property.support.records import (
    bare,
    failed,
    grew,
    message,
    named,
    placed,
    state_begins,
    state_ends,
)
from tests.property.support.replica import Replica

PEERS: Final = ("a", "ü")
MEMBERS: Final = ("w0", "w1")
NAMES: Final = (*MEMBERS, "s" * 512, "w\u4e00")
NUMBERS: Final = (0, 1, 2, 3, 2**32 - 1)
PROMPTS: Final = ([*range(100, 103)], [*range(100, 148)], [*range(100, 600)], [*range(7, 40)])
STEPS_S: Final = (0.0, 0.001, 0.3, 0.6, 4.0)

numbers = st.sampled_from(NUMBERS)
u32s = st.sampled_from((0, 1, 40, 8_000, 2**32 - 1))


@st.composite
def bookings(draw: st.DrawFn) -> bytes:
    prompt = draw(st.sampled_from(PROMPTS))
    blocks = draw(st.sampled_from((len(prompt), len(prompt) + 1, 2**32 - 1)))
    known = draw(st.sampled_from((0, 5, len(prompt))))
    graded = list(grade(prompt[:known], blocks))
    tokens = draw(st.one_of(st.just(4 * blocks % 2**32), u32s))
    flags = draw(st.integers(0, 7))
    amounts = (blocks, tokens, draw(u32s), draw(u32s))
    return placed(draw(numbers), draw(st.integers(0, 4)), amounts, graded, flags=flags)


records = st.one_of(
    bookings(),
    bookings(),
    st.builds(bare, st.sampled_from((1, 3)), numbers),
    st.builds(bare, st.sampled_from((1, 3)), numbers),
    st.builds(grew, numbers, st.sampled_from((0, 1, 5, 900, 2**40))),
    st.builds(
        failed,
        numbers,
        st.integers(0, 9),
        st.sampled_from(("", "reset", "refused", "503", "ü" * 40)),
        st.sampled_from((0.0, 0.5, -1.0, float("nan"), 1e300)),
        st.sampled_from((0.0, 2.0, float("inf"))),
    ),
    st.builds(named, st.integers(0, 3), st.sampled_from(NAMES)),
    st.just(state_begins()),
    st.just(state_ends()),
)


class Twins(RuleBasedStateMachine):
    """`lost` messages never came; those before `sent` came twice."""

    @initialize(
        block_size=st.sampled_from((1, 4, 16)), late=st.sampled_from(((), ("w0",), MEMBERS))
    )
    def begin(self, block_size: int, late: tuple[str, ...]) -> None:
        self.now = 0.0
        self.sent = dict.fromkeys(PEERS, 1)
        self.epoch = dict.fromkeys(PEERS, 1)
        self.pure, self.compiled = (
            Replica(*MEMBERS, block_size=block_size, compiled=compiled, late=late)
            for compiled in (False, True)
        )
        for peer in PEERS:
            names = [named(index, name) for index, name in enumerate(NAMES[:3])]
            self.tell(peer, *names)

    def tell(self, peer: str, *reported: bytes, data: bytes | None = None) -> None:
        whole = message(*reported, epoch=self.epoch[peer], first_seq=self.sent[peer])
        self.sent[peer] += len(reported)
        answers = list[bool | str | None]()
        for twin in (self.pure, self.compiled):
            try:
                answers.append(twin.peers.receive(peer, data or whole, self.now))
            except CodecError as error:
                answers.append(str(error))
        assert answers[0] == answers[1]

    @rule(peer=st.sampled_from(PEERS), reported=st.lists(records, max_size=12))
    def receive(self, peer: str, reported: list[bytes]) -> None:
        self.tell(peer, *reported)

    @rule(peer=st.sampled_from(PEERS), number=numbers, booked=bookings())
    def serve(self, peer: str, number: int, booked: bytes) -> None:
        self.tell(peer, booked, bare(1, number))
        self.now += 0.25
        self.tell(peer, grew(number, 17), bare(3, number))

    @rule(peer=st.sampled_from(PEERS), reported=st.lists(records, max_size=6))
    def tell_the_state(self, peer: str, reported: list[bytes]) -> None:
        self.tell(peer, state_begins(), *reported, state_ends())

    @rule(peer=st.sampled_from(PEERS), lost=st.integers(1, 3))
    def lose(self, peer: str, lost: int) -> None:
        self.sent[peer] += lost

    @rule(
        peer=st.sampled_from(PEERS), back=st.integers(1, 8), reported=st.lists(records, max_size=12)
    )
    def hear_twice(self, peer: str, back: int, reported: list[bytes]) -> None:
        self.sent[peer] = max(1, self.sent[peer] - back)
        self.tell(peer, *reported)

    @rule(peer=st.sampled_from(PEERS), by=st.sampled_from((-1, 1)))
    def restart(self, peer: str, by: int) -> None:
        self.epoch[peer] = max(1, self.epoch[peer] + by)
        self.sent[peer] = 1
        self.tell(peer, named(0, "w1"))

    @rule(
        peer=st.sampled_from(PEERS),
        reported=st.lists(records, min_size=1, max_size=4),
        cut=st.data(),
    )
    def hear_garbage(self, peer: str, reported: list[bytes], cut: st.DataObject) -> None:
        data = bytearray(message(*reported, epoch=self.epoch[peer], first_seq=self.sent[peer]))
        at = cut.draw(st.integers(0, len(data) - 1))
        data[at] ^= cut.draw(st.integers(1, 255))
        if data[8:16] == self.epoch[peer].to_bytes(8, "little") and not any(data[20:24]):
            self.tell(peer, data=bytes(data[: cut.draw(st.sampled_from((at, len(data))))]))

    @rule(peer=st.sampled_from(PEERS), good=st.booleans(), reported=st.lists(records, max_size=3))
    def receive_shares(self, peer: str, good: bool, reported: list[bytes]) -> None:
        shares = Shares(1, 2, [], True)
        tail = None if good else b"\xc1"
        epoch, first_seq = self.epoch[peer], self.sent[peer]
        data = message(
            *reported, epoch=epoch, first_seq=first_seq, shares=shares if good else None, tail=tail
        )
        self.tell(peer, *reported, data=data)

    @rule(after_s=st.sampled_from(STEPS_S))
    def wait(self, after_s: float) -> None:
        self.now += after_s

    @rule()
    def expire(self) -> None:
        for twin in (self.pure, self.compiled):
            for booking in twin.sequences.expire(self.now):
                twin.peers.distrust(booking.owner)
            twin.peers.forget_strangers(self.now)

    @rule(worker=st.sampled_from(NAMES))
    def remove_worker(self, worker: str) -> None:
        for twin in (self.pure, self.compiled):
            twin.scheduler.remove_worker(WorkerId(worker))

    @rule(peer=st.sampled_from(PEERS))
    def remove_peer(self, peer: str) -> None:
        for twin in (self.pure, self.compiled):
            twin.peers.remove(peer)

    @rule(peer=st.sampled_from(PEERS), number=numbers)
    def book_under_an_id_of_a_peers(self, peer: str, number: int) -> None:
        for twin in (self.pure, self.compiled):
            twin.sequences.add(f"{peer}#{number}", WorkerId("w0"), Demand(40, 40), self.now)

    @rule(peer=st.sampled_from(PEERS), number=numbers)
    def end_behind_their_backs(self, peer: str, number: int) -> None:
        for twin in (self.pure, self.compiled):
            twin.sequences.finish(f"{peer}#{number}")

    @rule(worker=st.sampled_from(MEMBERS), score=st.integers(-1, 1))
    def learn_how_late_one_caches(self, worker: str, score: int) -> None:
        for twin in (self.pure, self.compiled):
            late = twin.scheduler.workers.late
            late.update({name: score for name in late if name == worker})

    @rule(worker=st.sampled_from(MEMBERS), present=st.booleans())
    def join_or_leave(self, worker: str, present: bool) -> None:
        for twin in (self.pure, self.compiled):
            if present:
                twin.membership.add(worker, self.now)
            else:
                twin.membership.remove(worker)

    @invariant()
    def both_know_the_same(self) -> None:
        assert self.pure.view() == self.compiled.view()
        for peer in PEERS:
            assert self.pure.peers.known_upto(peer) == self.compiled.peers.known_upto(peer)
        known = [
            {
                name: (one.republished, one.unconfirmed, one.booked, one.workers)
                for name, one in peers
            }
            for peers in (twin.peers._peers.items() for twin in (self.pure, self.compiled))
        ]
        assert known[0] == known[1]


TestTwins = Twins.TestCase
TestTwins.settings = settings(stateful_step_count=25)


@pytest.mark.parametrize("compiled", [False, True])
def test_bounds_hold_for_records_too(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    for name, most in (("MOST_BOOKINGS", 6), ("MOST_IN_ALL", 8), ("MOST_STRANGERS", 2)):
        monkeypatch.setattr(event_fold, name, most)
    replica = Replica("w0", compiled=compiled)
    reported = [placed(number, number % 5, (9, 40, 30, 2)) for number in range(20)]
    names = [named(index, f"w{index}") for index in range(5)]

    for peer in ("a", "b"):
        replica.peers.receive(peer, message(*names), 0.0)
        replica.peers.receive(peer, message(*reported, first_seq=6), 0.0)

    assert len(replica.ids("a")) == 6
    assert len(replica.ids("b")) == 2
    assert replica.peers.statistics().refused == 32
    assert {one.worker for one in replica.sequences.bookings.values()} == {"w0", "w1", "w2"}
