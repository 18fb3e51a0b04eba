"""What one replica tells of its bookings, another hears: afterwards both count the same load."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import ActiveSequences, BookingOutbox
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import sharing_keys
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.outcomes import Attempt, Verdict
from tests.property.support.replica import Replica

SIZE: Final = 4
WORKERS: Final = ("w0", "w1", "a stranger")
FIGURES: Final = (
    *("prefill_tokens", "prompt_tokens", "active_requests", "active_blocks", "expected_blocks"),
    *("silent", "waiting_requests", "shared"),
)
TURNS: Final = ("place", "place", "first", "grow", "end", "fail", "tell", "tell", "lose", "state")

turns = st.lists(
    st.tuples(
        st.sampled_from(TURNS),
        st.integers(0, 5),
        st.sampled_from(WORKERS),
        st.sampled_from((0, 3, 17, 64, 400, 1300)),
        st.booleans(),
        st.booleans(),
    ),
    max_size=60,
)


class Teller:
    """One replica's own bookings, and the outbox that tells of them."""

    def __init__(self) -> None:
        self.sequences = new_sequences(SIZE)
        self.outbox = BookingOutbox(self.sequences, 1)

    def place(self, name: str, worker: str, blocks: int, *, streams: bool, known: bool) -> None:
        prompt = BlockHashes.of(list(range(1, blocks + 1)), SIZE)
        keys = tuple(sharing_keys(prompt.upto(blocks))) if known else ()
        demand = Demand(
            SIZE * blocks + 1,
            2 * blocks,
            9,
            keys,
            streams=streams,
            hashes=prompt if known else None,
        )
        if self.sequences.add(name, WorkerId(worker), demand, 0.0):
            self.outbox.placed(self.sequences.bookings[name])

    def go_on(self, turn: str, name: str, tokens: int, now: float) -> None:
        match turn:
            case "first":
                self.sequences.first_token(name, now)
                self.outbox.first_token(name)
            case "grow":
                self.sequences.grow(name, tokens, now)
            case "end":
                self.sequences.finish(name)
                self.outbox.ended(name)
            case _:
                self.sequences.finish(name)
                self.outbox.ended(name, Attempt(Verdict.WORKER, "reset", 0.5))

    def take(self) -> list[bytes]:
        self.outbox.publish_growth()
        return self.outbox.take(7, 1 << 16)

    def state(self) -> list[bytes]:
        self.outbox.begin_state()
        self.outbox.republish(self.sequences.owned())
        self.outbox.end_state()
        return self.take()


def load_of(sequences: ActiveSequences) -> dict[str, list[object]]:
    return {
        worker: [getattr(sequences.loads(WorkerId(worker)), name) for name in FIGURES]
        for worker in WORKERS
    }


@pytest.mark.parametrize("compiled", [False, True])
@given(turns=turns)
def test_a_peer_counts_what_is_booked_here(
    compiled: bool, turns: list[tuple[str, int, str, int, bool, bool]]
) -> None:
    teller, replica, now = Teller(), Replica("w0", "w1", compiled=compiled), 0.0
    replica.peers.receive("p", teller.outbox.beat(), now)
    # Who missed an end may take a prefill that nobody sees end for done too early.
    lossy = any(turn[0] == "lose" for turn in turns)
    for turn, number, worker, blocks, streams, known in turns:
        now += 0.01
        name = f"q{number}"
        match turn:
            case "place":
                teller.place(name, worker, blocks, streams=streams or lossy, known=known)
            case "tell" | "state":
                for data in teller.take() if turn == "tell" else teller.state():
                    replica.peers.receive("p", data, now)
            case "lose":
                teller.take()
            case _:
                teller.go_on(turn, name, blocks, now)

    for data in [*teller.take(), teller.outbox.beat()]:
        replica.peers.receive("p", data, now)
    if replica.peers.incomplete():
        for data in teller.state():
            assert replica.peers.receive("p", data, now) is not None

    assert replica.peers.incomplete() == []
    assert replica.peers.known_upto("p") == (1, teller.outbox.next_seq)
    assert len(replica.ids("p")) == len(teller.sequences.owned())
    assert load_of(replica.sequences) == load_of(teller.sequences)
