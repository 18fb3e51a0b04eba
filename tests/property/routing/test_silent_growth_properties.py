"""Answers that nobody sees grow, against a model that counts token by token."""

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import ActiveSequences
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import key_depth
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.silent_growth import UnseenWork, grow_unseen

SIZE = 4
WORKERS = [WorkerId("w1"), WorkerId("w2")]
workers = st.sampled_from(WORKERS)


class Asked(msgspec.Struct, frozen=True):
    """One request, and what became of it: when its prefill ended, how many tokens were seen."""

    worker: WorkerId
    prompt: int
    expected: int
    keys: int
    streams: bool
    prefilled_s: float | None
    seen: int


class Inspection(msgspec.Struct, frozen=True):
    """One tick: what the engines report (a worker left out tells nothing) and the pace then."""

    passed_s: float
    used: dict[WorkerId, int]
    token_ms: float


requests = st.lists(
    st.builds(
        Asked,
        workers,
        st.integers(0, 20) | st.sampled_from([64, 150, 5000]),
        st.integers(0, 30),
        st.integers(0, 3) | st.just(30),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([None, 0.0, 0.0, 1.0, 2.5]),
        st.sampled_from([0, 0, 0, 5]),
    ),
    max_size=6,
)
uses_caches = st.lists(
    st.builds(
        Inspection,
        st.sampled_from([0.0, 0.5, 1.0, 3.0, 60.0, -2.0]),
        st.dictionaries(workers, st.integers(0, 50) | st.integers(0, 3000)),
        st.sampled_from([0.0, 125.0, 250.0, 1000.0]),
    ),
    min_size=1,
    max_size=6,
)


def book(asked: Sequence[Asked], owner: str = "") -> ActiveSequences:
    sequences = new_sequences(SIZE)
    for number, one in enumerate(asked):
        demand = Demand(
            one.prompt, one.prompt, one.expected, tuple(range(one.keys)), streams=one.streams
        )
        sequences.add(str(number), one.worker, demand, 0.0, owner=owner)
    for number, one in enumerate(asked):
        if one.prefilled_s is not None:
            sequences.first_token(str(number), one.prefilled_s)
            sequences.grow(str(number), one.seen, one.prefilled_s)
    return sequences


def seen_at(check: Inspection) -> UnseenWork:
    return UnseenWork(lambda _: check.token_ms, check.used.get)


def blocks(tokens: int) -> int:
    return -(-tokens // SIZE)


def come(one: Asked, began_s: float, check: Inspection, now: float) -> int:
    """Generate token by token until it is `now`, or all that is expected came."""
    tokens, most = 0, blocks(one.expected)
    while check.token_ms and began_s + (tokens + 1) * check.token_ms / 1000.0 <= now:
        tokens += 1
        if blocks(one.prompt + tokens) - blocks(one.prompt) >= most:
            return most
    return blocks(one.prompt + tokens) - blocks(one.prompt)


@given(requests, uses_caches)
def test_every_answer_grows_as_its_worker_generates_within_what_the_engine_uses(
    asked: list[Asked], taken: list[Inspection]
) -> None:
    sequences, untouched, now = book(asked), book(asked), 0.0

    for check in taken:
        now += check.passed_s
        grow_unseen(sequences, seen_at(check), now)
        before = {worker: sequences.loads(worker).active_blocks for worker in WORKERS}
        grow_unseen(sequences, seen_at(check), now)

        for worker in WORKERS:
            loads, still = sequences.loads(worker), untouched.loads(worker)
            assert loads.active_blocks == before[worker]
            due: dict[str, int] = {}
            waiting = 0
            for number, one in enumerate(asked):
                booking = untouched.bookings[str(number)]
                if one.worker != worker:
                    continue
                if booking.prefilling:
                    waiting += booking.private_blocks + key_depth(len(booking.keys))
                elif not one.streams and not booking.output_tokens:
                    due[str(number)] = come(one, booking.output_s, check, now)
            room = whole = sum(due.values())
            if worker in check.used:
                certain = still.active_blocks - waiting
                room = min(whole, max(0, check.used[worker] - certain))
            grown = {name: one * room // whole if whole else 0 for name, one in due.items()}
            assert {name: sequences.bookings[name].foreseen_blocks for name in due} == grown
            assert loads.active_blocks - still.active_blocks == sum(grown.values()) <= room
            assert still.expected_blocks - loads.expected_blocks == sum(grown.values())

    for number in range(len(asked)):
        sequences.finish(str(number))
    for worker in WORKERS:
        loads = sequences.loads(worker)
        assert (loads.active_blocks, loads.expected_blocks, loads.shared) == (0, 0, {})


@given(requests, uses_caches)
def test_a_replica_that_was_told_of_the_bookings_counts_the_same(
    asked: list[Asked], taken: list[Inspection]
) -> None:
    own, peer, now = book(asked), book(asked, owner="sibling"), 0.0

    for check in taken[:-1]:
        now += check.passed_s
        grow_unseen(own, seen_at(check), now)
    now += taken[-1].passed_s
    # The peer looks for the first time: how often one looked before does not matter.
    for sequences in (own, peer):
        grow_unseen(sequences, seen_at(taken[-1]), now)

    for worker in WORKERS:
        assert own.loads(worker).active_blocks == peer.loads(worker).active_blocks
        assert own.loads(worker).expected_blocks == peer.loads(worker).expected_blocks
