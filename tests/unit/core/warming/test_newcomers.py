"""Who is kept out for its empty cache, and for how long."""

import random

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import failed_attempt
from kvmesh.core.members.worker_info import Trust, WorkerInfo
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.warming.newcomers import WARMING, Allowance, Newcomers, WarmOptions

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")


class Fleet:
    """Two workers with full caches, and a router that would warm others."""

    def __init__(self) -> None:
        self.now = 100.0
        self.membership = Membership()
        self.scheduler = Scheduler(
            RouterOptions(),
            random.Random(1),
            membership=self.membership,
            sequences=new_sequences(16),
            routed=new_approx(thinned=True),
        )
        self.newcomers = Newcomers(WarmOptions(), self.scheduler)
        self.membership.screens.append(self.newcomers.screen)
        for number, worker in enumerate((W1, W2)):
            self.membership.observe(worker, 1, self.now)
            self.cache(worker, 1000, number)
        assert self.usable() == (W1, W2)
        self.newcomers.armed = True

    def cache(self, worker: WorkerId, blocks: int, which: int = 0) -> None:
        hashes = BlockHashes.of([which * 100_000 + n for n in range(blocks)], 16)
        self.scheduler.overlaps.record(worker, hashes, self.now)

    def trust(self, worker: WorkerId, trust: Trust) -> None:
        self.scheduler.workers.describe(worker, WorkerInfo(trust=trust))

    def usable(self) -> tuple[str, ...]:
        return self.membership.usable(self.now)

    def look(self, after_s: float = 0.25, *, held: bool = False) -> None:
        self.now += after_s
        for worker in (W1, W2, W3):
            if worker in self.membership:
                epoch = self.membership.epoch(worker)
                assert epoch is not None
                self.membership.observe(worker, epoch, self.now)
        self.newcomers.look(self.now, held=held)


@pytest.fixture
def fleet() -> Fleet:
    """Return a fleet whose third worker has just joined."""
    fleet = Fleet()
    fleet.membership.observe(W3, 1, fleet.now)
    return fleet


def test_a_newcomer_waits_until_it_has_all(fleet: Fleet) -> None:
    assert fleet.usable() == (W1, W2)
    assert fleet.membership.why_not(W3, fleet.now) == WARMING
    fleet.look()
    fleet.look()
    assert fleet.usable() == (W1, W2)

    fleet.newcomers.done(W3)
    fleet.newcomers.done(W3)

    assert fleet.usable() == (W1, W2, W3)


def test_it_waits_no_longer_than_its_cache_grows(fleet: Fleet) -> None:
    fleet.usable()
    for blocks in (10, 20, 30, 40):
        fleet.look(1.0)
        fleet.cache(W3, blocks)
        assert W3 in fleet.newcomers.waiting
    fleet.look(1.0)

    fleet.look(1.5)

    assert W3 not in fleet.newcomers.waiting


@pytest.mark.parametrize("emptied", [True, False])
def test_what_is_known_of_the_life_before_lets_nobody_in(fleet: Fleet, emptied: bool) -> None:
    """Its events are read late: until then what it held counts as gone, and as nothing new."""
    fleet.newcomers.armed = False
    assert fleet.usable() == (W1, W2, W3)
    fleet.cache(W3, 1000, 7)
    fleet.newcomers.armed = True
    fleet.trust(W3, Trust.CATCHING_UP)
    fleet.newcomers.forget([W3])
    assert fleet.scheduler.overlaps.cached_blocks((W3,)) == [0]
    if not emptied:
        fleet.cache(W3, 1000, 7)
    fleet.membership.screen_anew()
    assert fleet.usable() == (W1, W2)
    fleet.look()
    fleet.look()
    assert fleet.usable() == (W1, W2)

    fleet.trust(W3, Trust.EXACT)
    fleet.look()

    assert (W3 in fleet.usable()) is not emptied


def test_the_time_of_an_engine_that_does_not_answer_begins_when_it_does(fleet: Fleet) -> None:
    fleet.usable()
    fleet.membership.health.note(W3, failed_attempt("reset"), fleet.now)
    fleet.membership.health.answered(W3, "down", fleet.now)
    for _ in range(60):
        fleet.look()
    assert W3 in fleet.newcomers.waiting

    fleet.membership.health.answered(W3, "ok", fleet.now)
    for _ in range(7):
        fleet.look()

    assert W3 not in fleet.newcomers.waiting


@pytest.mark.parametrize("sends", [True, False])
def test_a_newcomer_that_the_sender_lets_in_waits_no_longer(fleet: Fleet, sends: bool) -> None:
    """At the sender itself bookings may be of requests that its last life has lost."""
    fleet.usable()
    fleet.look()
    fleet.newcomers.sends = sends
    fleet.scheduler.sequences.correct(W3, 1, 10, 100)
    fleet.look()
    assert W3 in fleet.newcomers.waiting, "what the engine reports may be its warming"

    fleet.scheduler.sequences.add("theirs", W3, Demand(900, 900), fleet.now, owner="r2")
    fleet.look()

    assert (W3 in fleet.usable()) is not sends


def test_it_waits_no_longer_than_the_longest(fleet: Fleet) -> None:
    fleet.usable()
    for step in range(11):
        fleet.look(1.0)
        fleet.cache(W3, 10 * (step + 1))

    assert W3 not in fleet.newcomers.waiting


def test_nobody_waits_while_all_others_are_busy(fleet: Fleet) -> None:
    fleet.usable()
    fleet.scheduler.sequences.add("a", W1, Demand(900_000, 900_000), fleet.now)
    fleet.look()
    assert W3 in fleet.newcomers.waiting

    fleet.scheduler.sequences.add("b", W2, Demand(900_000, 900_000), fleet.now)
    fleet.look()

    assert fleet.usable() == (W1, W2, W3)


def test_nobody_waits_while_requests_do_or_no_one_else_is_there(fleet: Fleet) -> None:
    fleet.usable()
    fleet.look(held=True)
    assert fleet.usable() == (W1, W2, W3)

    fleet.membership.observe(W3, 2, fleet.now)
    assert fleet.usable() == (W1, W2)
    fleet.membership.remove(W1)
    fleet.membership.remove(W2)
    fleet.look()

    assert fleet.usable() == (W3,)


def test_it_does_not_wait_for_workers_of_other_models(fleet: Fleet) -> None:
    for worker, model in ((W1, "a"), (W2, "a"), (W3, "b")):
        fleet.scheduler.workers.describe(worker, WorkerInfo(models=(model,)))
    fleet.usable()

    fleet.look()

    assert fleet.usable() == (W1, W2, W3)


def test_one_that_left_meanwhile_is_forgotten(fleet: Fleet) -> None:
    fleet.usable()
    fleet.membership.remove(W3)

    fleet.look()

    assert not fleet.newcomers.waiting


def test_one_whose_cache_is_full_does_not_wait(fleet: Fleet) -> None:
    fleet.usable()
    fleet.cache(W3, 300)

    fleet.look()

    assert fleet.usable() == (W1, W2, W3)


def test_one_that_woke_is_a_newcomer_again(fleet: Fleet) -> None:
    fleet.usable()
    fleet.newcomers.done(W3)

    fleet.newcomers.forget([W3])
    fleet.membership.screen_anew()

    assert fleet.usable() == (W1, W2)


def test_without_anything_to_give_nobody_waits() -> None:
    fleet = Fleet()
    fleet.newcomers.armed = False
    fleet.membership.observe(W3, 1, fleet.now)
    fleet.look()

    assert fleet.usable() == (W1, W2, W3)


def test_a_fleet_that_comes_at_once_serves_at_once() -> None:
    fleet = Fleet()
    newcomers = Newcomers(WarmOptions(), fleet.scheduler)
    newcomers.armed = True

    assert [newcomers.screen(one) for one in (W1, W2)] == ["", ""]  # both caches are full


def test_who_was_read_of_before_it_is_heard_serves_at_once_and_who_restarts_does_not(
    fleet: Fleet,
) -> None:
    """A router that starts reads the index first, then hears of one worker after the other."""
    fleet.cache(W3, 300)
    assert fleet.usable() == (W1, W2, W3)

    fleet.membership.observe(W3, 2, fleet.now)  # its old blocks are still in the index

    assert fleet.usable() == (W1, W2)


def test_a_share_of_what_requests_had_computed_may_be_spent() -> None:
    allowance = Allowance(0.1)

    allowance.earn(1000, 2, 10_000)
    assert allowance.tokens == pytest.approx(200.0)
    allowance.earn(1000, 2, 10_000)
    allowance.spend(250)
    assert allowance.tokens == pytest.approx(-50.0)
    allowance.earn(900_000, 2, 10_000)
    assert allowance.tokens == 10_000.0
    allowance.earn(5, 2, 10_000)  # counters begin anew
    assert allowance.tokens == 10_000.0


def test_it_counts_what_newcomers_were_given(fleet: Fleet) -> None:
    fleet.cache(W3, 5)
    fleet.usable()
    fleet.look()
    fleet.cache(W3, 30)
    fleet.look()

    assert fleet.newcomers.grown_blocks == 25


def test_it_has_longer_to_grow_first_where_another_replica_sends(fleet: Fleet) -> None:
    fleet.newcomers.sends = False
    fleet.usable()
    for _ in range(3):
        fleet.look(1.0)
    assert W3 in fleet.newcomers.waiting

    fleet.look(1.0)

    assert W3 not in fleet.newcomers.waiting
