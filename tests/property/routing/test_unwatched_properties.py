"""Answers that nobody sees, at an engine whose true state is known: what must hold whatever comes.

Replicas follow requests of their own at one worker, hear of each other's bookings at once, and the
same reports. The model is the engine: who is there, whose prompt is computed, who is over.
"""

import random
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.unwatched import Over, Unwatched, UnwatchedOptions
from kvmesh.core.routing.unwatched_reports import TRIES

SIZE = 16
BLOCKS = 3
W1 = WorkerId("w1")
OPTIONS = UnwatchedOptions(report_age_s=0.0, most_s=10_000.0)


class Asked(msgspec.Struct, frozen=True):
    """One request: sent by a replica after a pause, computed and answered after such times."""

    replica: int
    pause_s: float
    prefill_s: float
    decode_s: float
    tokens: int


asked = st.lists(
    st.builds(
        Asked,
        st.integers(0, 1),
        st.sampled_from([0.0, 0.1, 1.0, 7.0]),
        st.sampled_from([0.0, 0.05, 0.5]),
        st.sampled_from([0.0, 0.3, 2.0, 30.0]),
        st.sampled_from([0, 1, 160, 100_000]),
    ),
    min_size=1,
    max_size=12,
)


class Replica:
    """One router, which sees its events and reports and nothing of answers."""

    def __init__(self) -> None:
        membership = Membership()
        membership.add(W1, 0.0)
        self.index = KvIndex()
        self.scheduler = Scheduler(
            RouterOptions(block_size=SIZE),
            random.Random(1),
            membership=membership,
            sequences=new_sequences(SIZE),
            index=self.index,
        )
        self.unwatched = Unwatched(self.scheduler, OPTIONS)
        self.prefilled: list[str] = []

    def booked(self) -> set[str]:
        return set(self.scheduler.sequences.bookings)


class Play:
    """A worker and two replicas, second by second."""

    def __init__(self, requests: Sequence[Asked], others: int) -> None:
        self.replicas = (Replica(), Replica())
        self.others = others
        self.ended: list[str] = []
        self.ended_now: defaultdict[str, list[str]] = defaultdict(list)
        sent_s, free_s = 0.0, 0.0
        self.times: list[tuple[float, float, float]] = []
        for one in requests:
            sent_s += one.pause_s
            free_s = max(free_s, sent_s) + one.prefill_s
            self.times.append((sent_s, free_s, free_s + one.decode_s))
        self.requests = requests
        self.now = 0.0

    def name(self, number: int) -> str:
        return f"r{number}"

    def hashes(self, number: int) -> list[int]:
        return [1000 * number + one for one in range(1, BLOCKS + 1)]

    def step(self, now: float, *, reports: bool) -> None:
        for number, (one, times) in enumerate(zip(self.requests, self.times, strict=True)):
            if self.now <= times[0] < now:
                self.send(number, one, times[0])
            if self.now <= times[1] < now:
                for replica in self.replicas:
                    replica.index.store(W1, ROOT, pack_hashes(self.hashes(number)))
        self.now = now
        self.ended_now.clear()
        if reports:
            here = sum(sent < now <= end for sent, _, end in self.times)
            for replica in self.replicas:
                replica.unwatched.report(W1, here + self.others, now)
        for replica in self.replicas:
            self.check(replica)

    def send(self, number: int, one: Asked, now: float) -> None:
        name, own = self.name(number), self.replicas[one.replica]
        hashes = BlockHashes.of(self.hashes(number), SIZE)
        request = RouteRequest(name, hashes, BLOCKS * SIZE, expected_output_tokens=one.tokens)
        own.scheduler.schedule(request, now)
        own.unwatched.add(name, hashes, now + 0.5)
        peer = self.replicas[1 - one.replica]
        demand = Demand(BLOCKS * SIZE, BLOCKS * SIZE, one.tokens)
        peer.scheduler.sequences.add(name, W1, demand, now, owner="peer")

    def check(self, replica: Replica) -> None:
        peer = self.replicas[replica is self.replicas[0]]
        for found in replica.unwatched.check(self.now):
            if isinstance(found, Over):
                self.ended.append(found.request_id)
                self.ended_now[found.why].append(found.request_id)
                for one in (replica, peer):
                    one.scheduler.finish(found.request_id, self.now)
            else:
                replica.prefilled.append(found.request_id)
                for one in (replica, peer):
                    one.scheduler.assume_first_token(found.request_id, self.now)


@given(asked, st.lists(st.booleans(), min_size=30, max_size=60), st.sampled_from([0, 0, 3]))
def test_whatever_engines_tell_each_request_ends_once_and_load_is_what_is_reported(
    requests: list[Asked], reports: list[bool], others: int
) -> None:
    play = Play(requests, others)

    booked: set[str] = set()
    late = 0
    for second, tells in enumerate(reports, 1):
        play.step(float(second), reports=tells)
        booked = play.replicas[0].booked()
        here = sum(sent < play.now <= end for sent, _, end in play.times)

        assert booked == play.replicas[1].booked()
        assert len(play.ended) == len(set(play.ended))
        assert not booked & set(play.ended)
        if tells:
            # Replicas may each take the other's for over: both end one then, and one too many.
            late = late + 1 if len(booked) > here + others else 0
            assert late < TRIES
            over = len(booked) + sum(map(len, play.ended_now.values())) - here - others
            assert len(play.ended_now["report"]) <= max(0, over + 1)
        else:
            assert not play.ended_now["report"]

    sent = {play.name(number) for number, times in enumerate(play.times) if times[0] < play.now}
    assert booked | set(play.ended) == sent


@given(asked)
def test_no_prefill_is_over_twice_nor_before_its_blocks_are_there(requests: list[Asked]) -> None:
    play = Play(requests, 0)
    computed_s = {play.name(number): times[1] for number, times in enumerate(play.times)}

    for tick in range(1, 120):
        play.step(tick / 2.0, reports=False)
        for replica in play.replicas:
            assert len(replica.prefilled) == len(set(replica.prefilled))
            assert all(computed_s[one] < play.now for one in replica.prefilled)


@given(asked)
def test_without_any_sign_everything_ends_in_time(requests: list[Asked]) -> None:
    play = Play([msgspec.structs.replace(one, prefill_s=1e9) for one in requests], 0)

    for second in range(10, 14_000, 100):
        play.step(float(second), reports=False)

    assert play.replicas[0].booked() == set()
    assert len(play.ended) == len(requests)
