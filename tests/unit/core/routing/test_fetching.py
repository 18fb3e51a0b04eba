from typing import Any

import pytest

from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.insight.explain import view_decision
from kvmesh.core.members.fetch_times import PEER
from kvmesh.core.members.loads import Demand
from kvmesh.core.members.outcomes import SERVED, status_attempt
from kvmesh.core.members.worker_info import Trust, WorkerInfo
from kvmesh.core.routing.decision import Decision, RouteRequest
from tests.unit.core.routing.scheduling import decide, index_of, make_scheduler

A, B, C = (WorkerId(name) for name in "abc")
BLOCKS = 100
TOKENS = BLOCKS * 16
LMCACHE = "kvmesh/fetch/lmcache/one"
OFFLOADING = "kvmesh/fetch/offloading/10.0.0.1:5710"


class Fleet:
    """A scheduler over three workers; blocks and hashes are 1, 2, …"""

    def __init__(self, label: str = "", **options: Any) -> None:
        self.scheduler = make_scheduler(A, B, C, routed=True, **options)
        self.index = index_of(self.scheduler)
        self.labels = frozenset({label} if label else ())
        for worker in (A, B, C):
            self.describe(worker)

    def describe(
        self, worker: WorkerId, trust: Trust = Trust.EXACT, total_blocks: int = 100_000
    ) -> None:
        info = WorkerInfo(labels=self.labels, trust=trust, total_blocks=total_blocks)
        self.scheduler.workers.describe(worker, info)

    def store(self, worker: WorkerId, blocks: int, tier: int = 0) -> None:
        self.index.store(worker, ROOT, pack_hashes(range(1, blocks + 1)), tier=tier)

    def occupy(self, worker: WorkerId, tokens: int = 200_000) -> None:
        self.scheduler.sequences.add(f"busy {worker}", worker, Demand(tokens, tokens), 0.0)

    def busy(self, *workers: WorkerId) -> "Fleet":
        """Let A hold 96 blocks, and occupy it and `workers`."""
        self.store(A, 96)
        for worker in (A, *workers):
            self.occupy(worker)
        return self

    def decide(self, request: RouteRequest | None = None) -> Decision:
        return decide(self.scheduler, request or self.request())

    def request(self, request_id: str = "r1", **wishes: object) -> RouteRequest:
        hashes = BlockHashes.of(range(1, BLOCKS + 1), 16)
        return RouteRequest(request_id, hashes, TOKENS, **wishes)  # type: ignore[arg-type]  # any wish


def test_a_prefix_is_fetched_from_a_busy_worker_rather_than_computed_or_waited_for() -> None:
    fleet = Fleet(LMCACHE)
    fleet.store(A, 96)
    idle = fleet.scheduler.explain(fleet.request(), 0.0)
    assert (idle.worker, idle.brought) == (A, None)
    fleet.occupy(A)

    decision = fleet.decide()

    assert decision.worker in {B, C}
    assert decision.overlap_blocks == 0
    brought = decision.brought
    assert brought is not None
    assert (brought.source, brought.tokens) == (A, {PEER: 96 * 16})
    assert decision.chosen.uncached_tokens == 4 * 16 + 96 * 16 // 2
    assert (decision.chosen.fetch_from, decision.chosen.fetch_ms) == (A, brought.ms)
    view = view_decision(decision, router="r", bucket="b")
    assert view.why.endswith("fetches 1,536 tokens from a")
    assert fleet.scheduler.fetches.tokens[PEER] == 96 * 16


@pytest.mark.parametrize("label", ["", "kvmesh/fetch/pigeon/x"])
def test_who_cannot_fetch_computes(label: str) -> None:
    fleet = Fleet(label).busy()

    decision = fleet.decide()

    assert decision.brought is None
    assert (decision.chosen.uncached_tokens, fleet.scheduler.workers.fetchers) == (TOKENS, {})


@pytest.mark.parametrize("model", ["", "m"])
@pytest.mark.parametrize(("source", "fetched"), [((), True), (("m", "n"), True), (("n",), False)])
def test_blocks_of_another_model_are_not_fetched(
    model: str, source: tuple[str, ...], fetched: bool
) -> None:
    fleet = Fleet(LMCACHE)
    for worker, models in ((A, source), (B, ("m",)), (C, ("m",))):
        info = WorkerInfo(models=models, labels=fleet.labels, total_blocks=100_000)
        fleet.scheduler.workers.describe(worker, info)
    fleet.store(A, 96)
    fleet.occupy(A)

    decision = fleet.decide(fleet.request(model=model, pinned_worker=B))

    assert (decision.brought is not None) == fetched


@pytest.mark.parametrize("size", [0, 16, 32])
def test_blocks_of_another_size_are_not_fetched(size: int) -> None:
    fleet = Fleet(LMCACHE).busy()
    info = WorkerInfo(labels=fleet.labels, total_blocks=100_000, block_size=size)
    fleet.scheduler.workers.describe(B, info)

    decision = fleet.decide(fleet.request(pinned_worker=B))

    assert (decision.brought is not None) == (size != 32)


def test_groups_do_not_fetch_from_each_other() -> None:
    fleet = Fleet(LMCACHE)
    fleet.labels = frozenset({"kvmesh/fetch/lmcache/two"})
    fleet.describe(A)
    fleet.store(A, 96)
    fleet.occupy(A)

    assert fleet.decide().brought is None


@pytest.mark.parametrize("named", [False, True])
def test_an_engine_that_must_be_told_fetches_only_for_requests_that_can_tell(named: bool) -> None:
    fleet = Fleet(OFFLOADING).busy()

    assert (fleet.decide(fleet.request(names_source=named)).brought is not None) == named


def test_neither_little_nor_what_is_slow_to_come_nor_what_is_in_doubt_is_fetched() -> None:
    little, slow, doubted = (Fleet(LMCACHE) for _ in range(3))
    little.store(A, 10)
    for fleet in (slow, doubted):
        fleet.store(A, 96)
    per_token = slow.scheduler.speeds.fleet_ms_per_token
    for worker in (B, C):
        for _ in range(60):
            slow.scheduler.fetch_times.learn(worker, {PEER: 1_000}, 1e5, per_token, 0.0)
    doubted.describe(A, Trust.DEGRADED)

    for fleet in (little, slow, doubted):
        fleet.occupy(A)
        assert fleet.decide().brought is None


def test_of_two_that_hold_as_much_the_less_busy_one_is_the_source() -> None:
    fleet = Fleet(LMCACHE)
    for worker in (A, B):
        fleet.store(worker, 96)
        fleet.occupy(worker)
    fleet.scheduler.sequences.add("more", A, Demand(100, 100), 0.0)

    decision = fleet.decide()

    assert decision.brought is not None
    assert (decision.worker, decision.brought.source) == (C, B)


def test_a_source_may_hold_it_in_slower_memory_and_so_may_who_fetches() -> None:
    fleet = Fleet(LMCACHE)
    fleet.store(A, 96, tier=1)
    fleet.store(B, 40, tier=1)
    fleet.occupy(A)
    fleet.occupy(C)

    decision = fleet.decide()

    assert decision.brought is not None
    assert (decision.worker, decision.brought.source) == (B, A)
    assert decision.brought.tokens == {1: 40 * 16, PEER: 56 * 16}
    assert decision.brought.fetched_tokens == 56 * 16


@pytest.mark.parametrize(("blocks", "displaced"), [(100_000, 0), (50, 46), (10, 96), (0, 96)])
def test_what_takes_the_place_of_other_blocks_costs_as_much_as_they_will_be_missed(
    blocks: int, displaced: int
) -> None:
    fleet = Fleet(LMCACHE).busy()
    for worker in (B, C):
        fleet.describe(worker, total_blocks=blocks)
    for number in range(50):  # nearly all prompts begin with what somebody holds
        fleet.scheduler.explain(fleet.request(f"r{number}"), 0.0)
    share = 0.96 * (1.0 - 0.98**51)

    decision = fleet.scheduler.explain(fleet.request(pinned_worker=B), 0.0)

    assert decision.brought is not None
    price = min(int(share * displaced * 16), 96 * 16 // 2)
    assert decision.brought.worth_tokens == pytest.approx(96 * 16 // 2 + price, abs=1)
    assert decision.brought.ms == pytest.approx(96 * 16 * 0.025)


def test_what_sinks_to_host_memory_is_missed_less() -> None:
    device, host = Fleet(LMCACHE), Fleet(LMCACHE)
    for fleet in (device, host):
        fleet.store(A, 96)
        fleet.occupy(A)
        fleet.describe(B, total_blocks=60)
    host.index.store(C, ROOT, pack_hashes([7_777]), tier=1)

    prices: list[int] = []
    for fleet in (device, host):
        for number in range(50):
            fleet.scheduler.explain(fleet.request(f"r{number}"), 0.0)
        decision = fleet.scheduler.explain(fleet.request(pinned_worker=B), 0.0)
        assert decision.brought is not None
        prices.append(decision.brought.worth_tokens - 96 * 16 // 2)

    assert prices[1] == pytest.approx(prices[0] / 4, abs=1)


def bring(fleet: Fleet, number: int, tier_ms: float, now: float) -> None:
    """Have a request served whose first token comes as bringing its blocks takes `tier_ms`."""
    scheduler = fleet.scheduler
    decision = scheduler.schedule(fleet.request(f"r{number}", pinned_worker=A), now).record.decision
    assert decision.brought is not None
    computed = 4 * 16 * scheduler.speeds.ms_per_token(A)
    later = now + (computed + 96 * 16 * tier_ms) / 1000.0
    scheduler.first_token(f"r{number}", later)
    scheduler.finish(f"r{number}", later + 1.0, SERVED)


def test_first_tokens_teach_how_long_a_tier_takes_and_not_how_fast_a_worker_is() -> None:
    fleet = Fleet(predict_ttl_s=0.0)
    fleet.store(A, 96, tier=1)
    per_token = fleet.scheduler.speeds.ms_per_token(A)

    for number in range(60):
        bring(fleet, number, 0.003, 10.0 * number)

    times = fleet.scheduler.fetch_times
    assert times.ms_per_token(A, 1, per_token, 600.0) == pytest.approx(0.003, rel=0.1)
    assert fleet.scheduler.speeds.ms_per_token(A) == per_token
    decision = fleet.scheduler.explain(fleet.request("next"), 700.0)
    worth = int(96 * 16 * times.ms_per_token(A, 1, per_token, 700.0) / per_token)
    assert decision.chosen.uncached_tokens == 4 * 16 + worth


def test_a_first_token_that_waited_for_others_teaches_nothing() -> None:
    fleet = Fleet(predict_ttl_s=0.0)
    fleet.store(A, 96, tier=1)
    scheduler = fleet.scheduler
    scheduler.schedule(RouteRequest("r0", BlockHashes.of([], 16), 900, pinned_worker=A), 0.0)
    scheduler.schedule(fleet.request("r1", pinned_worker=A), 0.0)

    scheduler.first_token("r0", 0.5)
    scheduler.first_token("r1", 2.0)

    assert scheduler.fetch_times.samples == 0


def test_of_a_request_that_failed_only_the_device_is_believed() -> None:
    fleet = Fleet()
    fleet.store(A, 20)
    fleet.store(A, 96, tier=1)
    scheduler = fleet.scheduler
    scheduler.schedule(fleet.request("r1", pinned_worker=A), 0.0)
    assert scheduler.explain(fleet.request("r2"), 0.0).brought is None

    scheduler.finish("r1", 0.1, status_attempt(400))

    decision = scheduler.explain(fleet.request("r2", pinned_worker=A), 0.2)
    assert decision.brought is not None
    assert (decision.brought.tokens, len(scheduler.fetches)) == ({1: 76 * 16}, 0)


def test_requests_that_nobody_ends_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvmesh.core.routing.fetching._MOST_PENDING", 8)
    fleet = Fleet(predict_ttl_s=0.0)
    fleet.store(A, 96, tier=1)

    for number in range(20):
        fleet.scheduler.schedule(fleet.request(f"r{number}", pinned_worker=A), 0.0)

    assert len(fleet.scheduler.fetches) == 8


def test_nothing_is_pending_of_a_request_whose_booking_expired() -> None:
    fleet = Fleet(LMCACHE).busy()
    assert fleet.decide().brought is not None
    fleet.scheduler.sequences.expire(1e9)

    assert fleet.scheduler.finish("r1", 1e9, SERVED) is None

    assert len(fleet.scheduler.fetches) == 0


def test_a_request_without_a_prompt_says_nothing_of_what_others_hold() -> None:
    fleet = Fleet(LMCACHE)
    fleet.store(A, BLOCKS)
    request = RouteRequest("r1", BlockHashes.of(range(1, BLOCKS + 1), 16), 0)

    assert fleet.scheduler.schedule(request, 0.0).record.decision.worker in (A, B, C)
