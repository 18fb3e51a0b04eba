from collections import Counter
from typing import Any

import pytest

from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.cost.arm_tally import Counter as ArmCounter
from kvmesh.core.cost.arms import Arms
from kvmesh.core.cost.catalogue import PUBLISHED, Formulas
from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.cost.own import FAULTS_OFF
from kvmesh.core.cost.own_function import own_cost
from kvmesh.core.cost.terms import Candidate, Fleet, survey
from kvmesh.core.cost.weight_sets import (
    DynamoWeights,
    OverlapUsageWaitingWeights,
    PrefillDecodeWeights,
)
from kvmesh.core.index.approx import new_approx
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.members.loads import MOST_TOKENS, Demand
from kvmesh.core.members.outcomes import (
    SERVED,
    UNKNOWN,
    Attempt,
    failed_attempt,
    status_attempt,
)
from kvmesh.core.members.worker_info import LoadReport, Trust, WorkerInfo
from kvmesh.core.routing.decision import RouteRequest, RouterMode
from kvmesh.core.routing.registry import REPORTS_TO_BELIEVE
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import ConfigError, NoWorkerError, RequestError
from tests.reference.workers.speed_report import speed_report
from tests.unit.core.routing.scheduling import (
    NAMES,
    W1,
    W2,
    W3,
    W4,
    decide,
    index_of,
    make_request,
    make_scheduler,
    store,
)

CUT = failed_attempt("cut")


def test_the_worker_that_holds_the_prompt_gets_it() -> None:
    scheduler = make_scheduler()
    store(scheduler, W2, 4)
    store(scheduler, W3, 8)

    decision = decide(scheduler, make_request("r1"))

    assert (decision.worker, decision.overlap_blocks, decision.total_blocks) == (W3, 8, 10)
    assert (decision.policy, decision.considered) == ("predicted-time", 4)
    loads = scheduler.sequences.loads(W3)
    assert (loads.prefill_tokens, loads.prompt_tokens, loads.active_requests) == (32, 160, 1)
    decide(scheduler, make_request("r2", family=3))
    counted = scheduler.statistics()
    assert (counted.decisions, counted.refused) == (2, 0)
    assert (counted.overlap_blocks, counted.request_blocks) == (8, 20)


def test_slower_memory_is_worth_less_than_the_device_and_more_than_nothing() -> None:
    scheduler = make_scheduler(W1, W2, W3)
    for tier, (worker, blocks) in enumerate(((W1, 4), (W2, 8), (W3, 8))):
        store(scheduler, worker, blocks, tier=tier)

    decision = decide(scheduler, make_request("r1"))
    whole = scheduler.explain(make_request("r2"), 0.0)

    # w2: 8 blocks at three quarters are worth 6, w1: 4 whole ones, w3: 8 quarters are worth 2.
    assert (decision.worker, decision.overlap_blocks) == (W2, 8)
    assert scheduler.sequences.loads(W2).prefill_tokens == (10 - 6) * 16
    uncached = {one.worker: one.uncached_tokens for one in whole.candidates}
    assert uncached == {W1: 6 * 16, W2: 4 * 16, W3: 8 * 16}


def test_every_cost_is_served_and_explained() -> None:
    scheduler = make_scheduler()
    store(scheduler, W2, 8)

    for name in COSTS:
        assert decide(scheduler, make_request(name, cost=name)).policy == name
        shown = scheduler.explain(make_request("x", cost=name), 0.0)
        lines = [shown.formula_line(one.worker) for one in shown.candidates]
        assert [line.partition(": ")[0] for line in lines] == [f"Formula for {w}" for w in NAMES]


def test_explaining_changes_no_later_decision() -> None:
    asked, silent = make_scheduler(temperature=0.5), make_scheduler(temperature=0.5)

    for number in range(20):
        request, now = make_request(f"r{number}"), 0.1 * number
        for _ in range(3):
            asked.explain(request, now)
        assert decide(asked, request, now).worker == decide(silent, request, now).worker

    assert asked.statistics() == silent.statistics()
    assert asked.sequences.statistics() == silent.sequences.statistics()


@pytest.mark.parametrize(("option", "wish"), [(9.0, None), (0.0, 9.0)])
def test_explaining_tells_the_likeliest_choice_at_any_temperature(
    option: float, wish: float | None
) -> None:
    scheduler = make_scheduler(temperature=option)
    store(scheduler, W3, 10)

    assert scheduler.explain(make_request("x", temperature=wish), 0.0).worker == W3


def test_a_decision_knows_the_formula_of_weighed_workers_only() -> None:
    decision = decide(make_scheduler(cost="prefill-decode"), make_request("r1", pinned_worker=W2))

    assert decision.chosen.worker == W2
    line = "Formula for w2: 20.0 = 1.0 * 10.0 + 10.0 (cached_blocks: 0)"
    assert decision.formula_line(W2) == line
    with pytest.raises(KeyError):
        decision.formula_line(W1)


def test_temperature_spreads_and_may_be_overridden() -> None:
    scheduler = make_scheduler(W1, W2, cost="overlap-load")
    store(scheduler, W1, 10)

    hot = Counter(
        decide(scheduler, make_request(f"hot{n}", temperature=1.0)).worker for n in range(400)
    )
    cold = {decide(scheduler, make_request(f"cold{n}")).worker for n in range(20)}

    assert 0.64 < hot[W1] / 400 < 0.82
    assert cold == {W1}


def test_equal_costs_go_to_the_smallest_tree_when_asked() -> None:
    scheduler = make_scheduler(W1, W2, W3, smallest_tree_ties=True)
    store(scheduler, W1, 5, family=7)
    store(scheduler, W3, 2, family=8)

    assert decide(scheduler, make_request("r1", family=1)).worker == W2


@pytest.mark.parametrize("mode", ["random", "power-of-two", "round-robin", "least-loaded"])
def test_blind_modes_ignore_caches_and_reach_everyone(mode: RouterMode) -> None:
    scheduler = make_scheduler(mode=mode, routed=True)
    store(scheduler, W1, 10)
    assert len(scheduler.explain(make_request("x"), 0.0).candidates) == 4

    decisions = [decide(scheduler, make_request(f"r{n}")) for n in range(200)]

    shares = Counter(decision.worker for decision in decisions)
    assert all(25 < shares[name] < 75 for name in NAMES)
    assert {(one.policy, one.overlap_blocks) for one in decisions} == {(mode, 0)}


def test_least_loaded_and_power_of_two_look_at_requests() -> None:
    scheduler = make_scheduler(W1, W2, mode="least-loaded")
    decide(scheduler, make_request("a", pinned_worker=W1))

    assert decide(scheduler, make_request("b")).worker == W2
    scheduler.finish("b", 1.0)
    assert decide(scheduler, make_request("c", mode="power-of-two")).worker == W2
    alone = make_request("d", mode="power-of-two", allowed_workers=frozenset([W1]))
    assert decide(scheduler, alone).worker == W1


def test_mode_direct_obeys_the_named_worker() -> None:
    scheduler = make_scheduler(mode="direct")

    assert decide(scheduler, make_request("r1", pinned_worker=W3)).worker == W3
    for refused in (1, 2):
        with pytest.raises(NoWorkerError, match="r2: mode direct needs a worker") as reported:
            scheduler.schedule(make_request("r2"), 0.0)
        assert reported.value.unnamed
        assert scheduler.statistics().refused == refused


def test_an_unknown_cost_or_weight_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv_cost 'best'"):
        make_scheduler(cost="best")
    with pytest.raises(ConfigError, match=r"'contention' here; it has overlap_score_weight \(0 to"):
        make_scheduler(cost="prefill-decode", weights={"contention": 1.0})
    scheduler = make_scheduler()
    with pytest.raises(RequestError, match="'worst' is unknown; use one of prefill-decode") as one:
        scheduler.schedule(make_request("r1", cost="worst"), 0.0)
    assert (one.value.status, one.value.param) == (400, "x-kvmesh-cost")
    with pytest.raises(RequestError, match=r"lmetric: there is no weight .* it has no weights"):
        scheduler.pricing(make_request("r1", cost="lmetric", overlap_score_weight=1.0))
    with pytest.raises(RequestError, match=r"is 2e.06: use a number from 0 to 1e.06"):
        scheduler.pricing(make_request("r1", overlap_score_weight=2e6))
    scheduler.pricing(make_request("r1", cost="dynamo", overlap_score_weight=1.0))


def test_another_formula_counts_with_its_own_defaults() -> None:
    scheduler = make_scheduler(W1, cost="prefill-decode", overlap_score_weight=8.0)

    def weights(**wishes: Any) -> object:
        return scheduler.explain(make_request("r1", **wishes), 0.0).weights

    assert weights() == weights(cost="prefill-decode") == PrefillDecodeWeights(8.0)
    assert weights(cost="overlap-usage-waiting") == OverlapUsageWaitingWeights()
    assert weights(cost="dynamo", overlap_score_weight=3.0) == DynamoWeights(3.0)


def busiest(c: Candidate, f: Fleet) -> float:
    """Send all to one worker; fail for prompts of 13 blocks."""
    return -c.active_requests / (c.request_blocks - 13) + f.max_waiting


def own_scheduler(**options: Any) -> tuple[Scheduler, Formulas]:
    formulas = Formulas([own_cost(busiest, "b.py:busiest")])
    return make_scheduler(cost="b.py:busiest", formulas=formulas, **options), formulas


def test_a_formula_of_one_s_own_decides_and_what_it_decided_is_booked() -> None:
    scheduler, _ = own_scheduler()

    found = [decide(scheduler, make_request(f"r{n}", 20 + n, n)) for n in range(6)]

    assert len({one.worker for one in found[1:]}) == 1
    seen = {(one.policy, one.by_cache, one.instead_of) for one in found}
    assert seen == {("b.py:busiest", True, "")}
    assert scheduler.sequences.loads(found[-1].worker).active_requests >= 5


def test_where_a_formula_of_one_s_own_fails_the_default_decides_and_books() -> None:
    scheduler, formulas = own_scheduler()
    twin = make_scheduler()

    for number in range(FAULTS_OFF + 2):
        request = make_request(f"r{number}", 13, number)
        found, wanted = decide(scheduler, request), decide(twin, request)
        assert (found.worker, found.score, found.weights) == (
            *(wanted.worker, wanted.score),
            wanted.weights,
        )
        assert (found.policy, "ZeroDivisionError" in found.instead_of) == ("predicted-time", True)
    late = decide(scheduler, make_request("late", 20))

    assert late.policy == "predicted-time"
    assert late.instead_of.startswith("b.py:busiest is off after 5 failures in a row")
    assert formulas.own()[0].statistics().decisions == FAULTS_OFF
    named = decide(scheduler, make_request("named", 20, cost="lmetric"))
    assert (named.policy, named.instead_of) == ("lmetric", "")


def test_a_mode_that_looks_at_no_cost_stays_it_when_a_formula_fails() -> None:
    scheduler, _ = own_scheduler(mode="round-robin")

    found = [decide(scheduler, make_request(f"r{n}", 13)) for n in range(FAULTS_OFF + 2)]

    assert [one.worker for one in found[:5]] == [W1, W2, W3, W4, W1]
    assert {(one.policy, one.cost.name) for one in found} == {("round-robin", "predicted-time")}


@pytest.mark.parametrize(("routed", "overlaps"), [(True, [0, 200, 200]), (False, [0, 0, 0])])
def test_siblings_meet_before_any_event_came(routed: bool, overlaps: list[int]) -> None:
    scheduler = make_scheduler(routed=routed)
    found: list[int] = []

    for number in range(3):
        now = 0.5 * number
        found.append(decide(scheduler, make_request(f"r{number}", 200), now).overlap_blocks)
        scheduler.first_token(f"r{number}", now + 0.2)

    assert found == overlaps


@pytest.mark.parametrize("routed", [True, False])
def test_peers_are_told_the_prompt_only_where_it_counts_as_cached(routed: bool) -> None:
    scheduler = make_scheduler(W1, routed=routed)
    request = make_request("r1", expected_output_tokens=40)

    scheduler.schedule(request, 0.0)

    booking = scheduler.sequences.bookings["r1"]
    known = booking.hashes
    assert not isinstance(known, bytes)
    assert (known and list(known.upto(9))) == (list(request.hashes.upto(9)) if routed else None)
    assert booking.expected_blocks == 3


def test_shared_blocks_of_running_requests_are_counted_once() -> None:
    scheduler = make_scheduler(W1, cost="prefill-decode")
    store(scheduler, W1, 40)
    scheduler.schedule(make_request("r1", 40), 0.0)

    chosen = scheduler.explain(make_request("r2", 40), 0.0).chosen

    assert (chosen.active_blocks, chosen.decode_blocks) == (40, 40 + (40 - 32))


def test_speeds_are_learned_from_what_requests_show() -> None:
    scheduler = make_scheduler(W1)
    for number in range(40):
        name, now = f"r{number}", 10.0 * number
        scheduler.schedule(make_request(name, 100, family=number), now)
        scheduler.grow(name, 1, now + 0.1)
        scheduler.first_token(name, now + 0.32)
        scheduler.first_token(name, now + 0.5)
        scheduler.grow(name, 17, now + 0.64)
        scheduler.finish(name, now + 2.0)
        scheduler.finish(name, now + 9.0)
        scheduler.grow(name, 99, now + 9.0)

    report = speed_report(scheduler.speeds, W1)

    assert report.ms_per_uncached_token == pytest.approx(0.2, rel=0.05)
    assert report.ms_per_output_token == pytest.approx(20.0, rel=0.05)
    assert report.residence_ms == pytest.approx(2000.0)
    assert report.output_tokens == pytest.approx(17.0)
    assert scheduler.lengths.statistics().answers == 0


def test_a_worker_short_of_memory_costs_its_waiting_time() -> None:
    scheduler = make_scheduler(W1, W2)
    for worker in (W1, W2):
        scheduler.workers.describe(worker, WorkerInfo(total_blocks=100))
    scheduler.schedule(make_request("old", family=1, pinned_worker=W1), 0.0)
    scheduler.first_token("old", 1.0)
    scheduler.finish("old", 10.0)
    scheduler.schedule(make_request("r1", 60, family=2, pinned_worker=W1), 10.0)

    decision = scheduler.explain(make_request("r2", 40, expected_output_tokens=160), 10.0)

    terms = {one.worker: one.memory_wait_ms for one in decision.candidates}
    assert terms == {W1: pytest.approx((110 / 100 - 0.95) * 10_000), W2: 0.0}
    for pinned in (W1, W2):
        crowded = make_request(f"to {pinned}", 40, expected_output_tokens=160, pinned_worker=pinned)
        assert decide(scheduler, crowded, 10.0).chosen.memory_wait_ms == terms[pinned]


def test_an_overlap_is_doubted_as_far_as_those_ahead_will_evict_it() -> None:
    scheduler = make_scheduler(W1)
    store(scheduler, W1, 20)
    store(scheduler, W1, 60, family=7)
    scheduler.workers.describe(W1, WorkerInfo(total_blocks=100))
    request = make_request("asked", 30)
    assert scheduler.explain(request, 0.0).chosen.confidence == 1.0

    scheduler.schedule(make_request("ahead", 20, family=1), 0.0)
    # 20 blocks to come, 20 blank ones: nothing is evicted for it.
    assert scheduler.explain(request, 0.0).chosen.lost_tokens == 0.0
    scheduler.schedule(make_request("next", 40, family=2), 0.0)
    # 60 blocks to come, 20 blank ones: 40 of the 80 cached ones that nobody holds.
    doubted = scheduler.explain(request, 0.0).chosen
    assert (doubted.overlap_blocks, doubted.confidence, doubted.lost_tokens) == (20, 0.5, 10 * 16)
    store(scheduler, W1, 20, family=8)
    scheduler.workers.report(W1, LoadReport(total_blocks=100))
    # Nothing is blank any more: 60 of the 100.
    assert scheduler.explain(request, 0.0).chosen.lost_tokens == 12 * 16


def test_what_requests_hold_is_not_doubted() -> None:
    scheduler = make_scheduler(W1)
    store(scheduler, W1, 80)
    scheduler.workers.describe(W1, WorkerInfo(total_blocks=80))
    scheduler.schedule(make_request("holds", 33), 0.0)
    scheduler.schedule(make_request("ahead", 100, family=1), 0.0)

    chosen = scheduler.explain(make_request("asked", 64), 0.0).chosen

    # Of 64 blocks 32 are shared with a request there, and those ahead will evict all the rest.
    assert (chosen.overlap_blocks, chosen.lost_tokens) == (64, 32 * 16)


def test_a_doubted_overlap_costs_as_much_as_is_expected_to_be_lost() -> None:
    scheduler = make_scheduler(W1, W2)
    for number, (worker, blocks) in enumerate(((W1, 100), (W2, 1000)), 1):
        store(scheduler, worker, 10)
        store(scheduler, worker, 90, family=7)
        scheduler.workers.describe(worker, WorkerInfo(total_blocks=blocks))
        decide(scheduler, make_request(f"{number}", 60, family=number, pinned_worker=worker))

    assert decide(scheduler, make_request("asked", 12)).worker == W2


def late_scheduler() -> Scheduler:
    """Return one whose worker caches late, with a prompt that it prefills and one that waits."""
    scheduler = make_scheduler(W1, routed=True)
    scheduler.workers.describe(W1, WorkerInfo(caches_late=True))
    scheduler.schedule(make_request("runs", family=1), 0.0)
    scheduler.schedule(make_request("waits", family=2), 0.0)
    return scheduler


def overlap_at(scheduler: Scheduler, family: int, now: float) -> int:
    found = scheduler.overlaps.find(make_request("x", family=family).hashes, now)
    return max(found.overlaps.values(), default=0)


def test_what_no_event_confirms_is_believed_at_once_and_for_long_where_prefills_wait() -> None:
    scheduler = late_scheduler()

    scheduler.schedule(make_request("r", family=4, approximate=True), 0.0)

    assert [overlap_at(scheduler, 4, now) for now in (0.1, 60.0)] == [10, 10]


def test_what_an_engine_prefills_late_is_believed_cached_from_the_next_end_of_a_prefill() -> None:
    scheduler = late_scheduler()

    # The first is being prefilled: who comes now finds it. The second shares a batch with it.
    assert (overlap_at(scheduler, 1, 0.1), overlap_at(scheduler, 2, 0.1)) == (10, 0)
    scheduler.first_token("runs", 0.2)
    assert overlap_at(scheduler, 2, 0.2) == 10


def test_where_answers_find_nothing_ahead_events_alone_are_believed() -> None:
    scheduler = make_scheduler(W1, routed=True)
    scheduler.workers.describe(W1, WorkerInfo(caches_late=True))
    scheduler.workers.late[W1] = -1

    scheduler.schedule(make_request("runs", family=1), 0.0)

    assert (overlap_at(scheduler, 1, 0.1), scheduler.late.waiting) == (0, {})


def test_a_late_prompt_that_was_not_served_is_never_believed() -> None:
    scheduler = late_scheduler()

    scheduler.finish("waits", 0.1, CUT)
    scheduler.first_token("runs", 0.2)

    assert (overlap_at(scheduler, 2, 0.2), scheduler.late.waiting) == (0, {})


def test_an_assumed_first_token_begins_late_prompts_and_teaches_no_speed() -> None:
    scheduler = late_scheduler()
    usual = scheduler.speeds.ms_per_token(W1)

    scheduler.assume_first_token("runs", 9.0)

    assert (overlap_at(scheduler, 2, 9.0), scheduler.speeds.ms_per_token(W1)) == (10, usual)


def test_a_removed_worker_is_gone_everywhere() -> None:
    scheduler = make_scheduler(W1, W2, routed=True)
    scheduler.workers.report(
        W1, LoadReport(total_blocks=100, prefilled_tokens=60_000, prefill_busy_us=60_000_000)
    )
    scheduler.schedule(make_request("r1", pinned_worker=W1), 0.0)
    gone = scheduler.remove_worker(W1)
    scheduler.workers.membership.remove(W1)

    assert [booking.request_id for booking in gone] == ["r1"]
    assert scheduler.workers.capacity_blocks(W1) == 0
    decision = scheduler.explain(make_request("r2"), 0.0)
    assert ([one.worker for one in decision.candidates], decision.overlap_blocks) == ([W2], 0)
    scheduler.workers.membership.add(W1, 0.0)
    assert scheduler.explain(make_request("r2", pinned_worker=W1), 0.0).overlap_blocks == 0
    assert speed_report(scheduler.speeds, W1).prefill_evidence_tokens == 0


def find_homes(family: int, seed: int) -> list[WorkerId]:
    """Return the workers that a hot prefix gets, in order, one replica deciding alone.

    Whoever has the prefix is overloaded then, and no two prompts go on alike.
    """
    scheduler = make_scheduler(seed=seed)
    homes: list[WorkerId] = []
    for number in range(len(NAMES)):
        tail = 10**8 * (seed * 10 + number + 1)
        hashes = [*make_request("", 8, family).hashes.upto(8), tail, tail + 1]
        request = RouteRequest(f"r{number}", BlockHashes.of(hashes, 16), 160)
        homes.append(decide(scheduler, request).worker)
        scheduler.finish(f"r{number}", 0.0)
        store(scheduler, homes[-1], 8, family)
        scheduler.sequences.add(f"load{number}", homes[-1], Demand(16_000, 16_000), 0.0)
    return homes


def test_replicas_send_a_hot_prefix_to_the_same_next_worker_when_its_homes_are_overloaded() -> None:
    orders: set[tuple[WorkerId, ...]] = set()

    for family in range(1, 31):
        homes = find_homes(family, seed=1)
        assert (sorted(homes), homes) == (NAMES, find_homes(family, seed=2))
        orders.add(tuple(homes))

    assert len(orders) > 10


def keyed(number: int, affinity: int, blocks: int = 10, common: int = 0) -> RouteRequest:
    """Return a request with a key; `common` blocks at its beginning are those of all."""
    own = range(10**6 * (number + 1), 10**6 * (number + 1) + blocks - common)
    hashes = BlockHashes.of([*range(1, common + 1), *own], 16)
    return RouteRequest(f"k{number}-{affinity}", hashes, 16 * blocks, affinity=affinity)


def served(scheduler: Scheduler, request: RouteRequest, now: float) -> WorkerId:
    worker = decide(scheduler, request, now).worker
    scheduler.finish(request.request_id, now)
    return worker


def test_short_prompts_with_one_key_have_one_home_at_every_replica() -> None:
    homes = {}
    for key in range(1, 21):
        found = {served(make_scheduler(seed=one), keyed(one, key), 0.0) for one in range(6)}
        (homes[key],) = found

    assert set(homes.values()) == set(NAMES)


def test_long_prompts_with_one_key_have_one_home_where_they_begin_alike() -> None:
    scheduler = make_scheduler()

    alike = {served(scheduler, keyed(number, 7, 20, 16), float(number)) for number in range(5)}
    other = {served(make_scheduler(), keyed(number, 7, 20), 0.0) for number in range(20)}

    assert (len(alike), len(other)) == (1, len(NAMES))


def test_a_home_has_no_more_than_fifteen_requests_a_minute() -> None:
    scheduler = make_scheduler()

    first = [served(scheduler, keyed(number, 7), 0.0) for number in range(15)]
    beyond = [served(scheduler, keyed(number, 7), 0.1) for number in range(15, 27)]
    later = [served(scheduler, keyed(number, 7), 61.0) for number in range(27, 30)]

    assert (set(first), set(later)) == ({first[0]}, {first[0]})
    assert set(beyond) == set(NAMES)


def test_what_is_cached_elsewhere_and_who_is_busy_count_before_a_keys_home() -> None:
    scheduler = make_scheduler()
    home = served(scheduler, keyed(0, 7), 0.0)
    other = next(name for name in NAMES if name != home)
    index_of(scheduler).store(other, ROOT, pack_hashes(keyed(1, 7).hashes.upto(10)[:2]))

    assert served(scheduler, keyed(1, 7), 1.0) == other
    scheduler.sequences.add("load", home, Demand(16_000, 16_000), 1.0)
    assert served(scheduler, keyed(2, 7), 1.0) != home


def test_a_prompt_that_shall_be_kept_is_believed_for_longer_than_others() -> None:
    scheduler = make_scheduler(W1, routed=True, approx_ttl_s=5.0)
    scheduler.workers.describe(W1, WorkerInfo(trust=Trust.APPROX))
    for name, family, keep_s in (("r1", 0, 300), ("r2", 1, 0)):
        scheduler.schedule(make_request(name, family=family, keep_s=keep_s), 0.0)
        scheduler.finish(name, 1.0)

    assert [overlap_at(scheduler, family, 200.0) for family in (0, 1)] == [10, 0]
    assert overlap_at(scheduler, 0, 320.0) == 0


def test_no_number_that_a_client_or_an_engine_may_claim_is_too_large() -> None:
    scheduler = make_scheduler(W1, W2)
    beyond = 1 << 80
    scheduler.workers.describe(W1, WorkerInfo(total_blocks=beyond))
    for _ in range(REPORTS_TO_BELIEVE):
        scheduler.workers.report(W1, LoadReport(beyond, beyond, beyond, beyond, beyond))

    decision = decide(scheduler, make_request("r1", expected_output_tokens=beyond))
    scheduler.finish("r1", 1.0)

    assert (decision.worker, scheduler.sequences.loads(W1).active_requests) == (W2, MOST_TOKENS)
    assert scheduler.sequences.loads(W2).expected_blocks == 0


@pytest.mark.parametrize("attempt", [CUT, UNKNOWN, status_attempt(429), status_attempt(400)])
def test_a_prompt_that_was_not_served_is_not_believed_cached(attempt: Attempt) -> None:
    scheduler = make_scheduler(W1, W2, routed=True)
    store(scheduler, W1, 3)
    scheduler.schedule(make_request("r1", pinned_worker=W1), 0.0)

    scheduler.finish("r1", 0.1, attempt)

    assert (overlap_at(scheduler, 0, 0.2), scheduler.speeds.residence_ms(W1)) == (3, 0.0)


def test_a_prompt_is_believed_cached_from_its_service_on() -> None:
    scheduler = make_scheduler(W1, routed=True, approx_ttl_s=5.0)
    scheduler.workers.describe(W1, WorkerInfo(trust=Trust.APPROX))
    scheduler.schedule(make_request("r1"), 0.0)

    scheduler.first_token("r1", 60.0)

    assert [overlap_at(scheduler, 0, now) for now in (64.0, 66.0)] == [10, 0]


def test_what_events_confirm_is_not_believed_anew_when_it_is_served() -> None:
    scheduler = make_scheduler(W1, routed=True, predict_ttl_s=5.0)
    scheduler.schedule(make_request("r1"), 0.0)

    scheduler.first_token("r1", 4.0)
    store(scheduler, W1, 10)
    scheduler.finish("r1", 4.5)
    index_of(scheduler).clear(W1)  # evicted

    assert overlap_at(scheduler, 0, 5.5) == 0


def test_prompts_that_are_never_served_leave_nothing_to_search() -> None:
    scheduler = make_scheduler(W1, W2, approx_ttl_s=1e6)
    routed = scheduler.overlaps.routed = new_approx(thinned=True)

    for number in range(300):
        name = f"r{number}"
        scheduler.schedule(make_request(name, family=1 + number, approximate=True), 0.0)
        scheduler.finish(name, 0.1, status_attempt(400) if number % 2 else UNKNOWN)

    assert routed.statistics().entries == 0


@pytest.mark.parametrize("cost", sorted(COSTS))
def test_an_idle_worker_that_fails_at_once_and_holds_the_prompt_gets_little(cost: str) -> None:
    scheduler = make_scheduler(W1, W2, W3, cost=cost, routed=True)
    store(scheduler, W1, 9)
    sent = Counter[WorkerId]()

    for number in range(200):
        name, now = f"r{number}", 0.01 * number
        worker = decide(scheduler, make_request(name), now).worker
        sent[worker] += 1
        attempt = status_attempt(500, 0.001) if worker == W1 else SERVED
        scheduler.finish(name, now + 0.005, attempt)

    assert sent[W1] <= 6, "three, and trials when the back-off is over"


def test_answers_that_are_not_streamed_grow_at_the_pace_that_streams_show() -> None:
    scheduler = make_scheduler(W1)
    scheduler.schedule(make_request("stream", expected_output_tokens=64), 0.0)
    scheduler.first_token("stream", 0.1)
    scheduler.grow("stream", 11, 1.1)
    scheduler.finish("stream", 1.1)
    scheduler.schedule(make_request("q", streams=False, expected_output_tokens=64), 2.0)
    loads = scheduler.sequences.loads(W1)
    blocks = [loads.active_blocks]

    for now in (2.1, 3.9):
        scheduler.grow_unseen(now)
        blocks.append(loads.active_blocks)

    assert blocks == [blocks[0], blocks[0], blocks[0] + 2]
    booking = scheduler.finish("q", 4.0)
    assert booking is not None
    # Nobody saw that output: it teaches nothing.
    assert booking.output_tokens == 0


LONG_BLOCKS = 2048
"""Their prefill takes 1.6 s where nothing else was learned."""


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("held", "tokens", "worker"),
    [
        (LONG_BLOCKS, 4, W1),  # 0.8 s at a slow worker that holds it, 1.7 s at one that does not
        (LONG_BLOCKS, 400, W2),  # 80 s, and 10 s
        (40, 4, W2),  # a short prefix saves nothing worth 0.8 s
    ],
)
def test_a_slow_worker_gets_what_it_answers_sooner_by_its_cache(
    held: int, tokens: int, worker: WorkerId, *, streams: bool
) -> None:
    scheduler = make_scheduler(W1, W2)
    store(scheduler, W1, held)
    for _ in range(4):
        scheduler.speeds.answered(W1, 50, 10.0)
        scheduler.speeds.answered(W2, 50, 1.0)
    wanted = make_request("q", held, streams=streams, expected_output_tokens=tokens)

    assert decide(scheduler, wanted).worker == worker
    shown = {one.worker: one.slow_ms for one in scheduler.explain(wanted, 0.0).candidates}
    assert shown == {W1: pytest.approx((200.0 - 3 * 20.0) * tokens), W2: 0.0}


BASELINE = PolicySpec("predicted-time").find(PUBLISHED)
CANDIDATE = PolicySpec("prefill-decode", {"overlap_score_weight": 3.0}).find(PUBLISHED)


def on_trial(requests: int) -> tuple[Scheduler, Arms]:
    """Return a scheduler whose next requests are the candidate's."""
    scheduler = make_scheduler()
    arms = Arms(BASELINE, CANDIDATE, "candidate", ArmCounter(), requests)
    scheduler.follow(BASELINE, arms)
    return scheduler, arms


def test_the_arm_on_trial_decides_so_many_requests_by_its_own_formula_and_weights() -> None:
    scheduler, arms = on_trial(20)

    decisions = [decide(scheduler, make_request(f"r{n}", family=n)) for n in range(30)]

    assert [one.arm is arms.now for one in decisions] == [True] * 20 + [False] * 10
    found = [(one.cost, one.policy, one.weights) for one in decisions]
    policies = [(one.cost, one.cost.name, one.weights) for one in (CANDIDATE, BASELINE)]
    assert found == [policies[0]] * 20 + [policies[1]] * 10


@pytest.mark.parametrize("wish", [{"cost": "lmetric"}, {"mode": "round-robin"}])
def test_a_request_with_a_policy_of_its_own_is_in_no_arm(wish: dict[str, Any]) -> None:
    assert decide(on_trial(1)[0], make_request("r1", **wish)).arm is None


def test_a_formula_that_is_off_is_asked_again_when_it_is_chosen_anew() -> None:
    scheduler, formulas = own_scheduler()
    (own,) = formulas.own()
    policy = scheduler.policy
    for number in range(FAULTS_OFF):
        scheduler.schedule(make_request(f"r{number}", 13, number), 0.0)

    switched = [own.off]
    for arms in (None, Arms(CANDIDATE, policy, "baseline", ArmCounter())):
        scheduler.follow(CANDIDATE, arms)
        switched.append(own.off)

    assert switched == [True, True, False]
    scheduler.follow(policy, None)
    assert decide(scheduler, make_request("late", 20)).policy == "b.py:busiest"


def test_a_formula_that_looks_at_the_fleet_is_kept_with_all_that_it_saw() -> None:
    scheduler = make_scheduler(cost="overlap-load")
    store(scheduler, W2, 4)

    decision = decide(scheduler, make_request("r1"))

    assert len(decision.candidates) == decision.considered > 1
    assert decision.fleet == survey(decision.candidates, decision.weights)


def test_a_loaded_holder_loses_to_an_idle_worker() -> None:
    scheduler = make_scheduler(W1, W2)
    store(scheduler, W1, 5)

    chosen = [decide(scheduler, make_request(f"r{number}")).worker for number in range(8)]

    assert (chosen[0], W2 in chosen) == (W1, True)


def test_the_same_seed_decides_the_same() -> None:
    def choices(seed: int) -> list[WorkerId]:
        scheduler = make_scheduler(seed=seed, temperature=0.3)
        return [decide(scheduler, make_request(f"r{n}")).worker for n in range(30)]

    assert choices(1) == choices(1) != choices(2)


def test_the_weight_of_the_overlap_may_be_overridden() -> None:
    scheduler = make_scheduler(W1, W2, cost="prefill-decode")
    store(scheduler, W1, 10)
    for number in range(3):
        decide(scheduler, make_request(f"r{number}", 3, number + 1, pinned_worker=W1))
        scheduler.first_token(f"r{number}", 0.0)

    assert scheduler.explain(make_request("x"), 0.0).worker == W1
    assert decide(scheduler, make_request("y", overlap_score_weight=0.0)).worker == W2
    assert scheduler.explain(make_request("z", overlap_score_weight=50.0), 0.0).worker == W1


def test_peers_bookings_weigh_like_our_own() -> None:
    scheduler = make_scheduler(W1, W2)

    scheduler.sequences.add("p1", W1, Demand(1600, 1600), 0.0, owner="router-b")

    assert decide(scheduler, make_request("r1")).worker == W2


def test_a_formula_without_a_margin_draws_among_equals() -> None:
    chosen = {
        decide(make_scheduler(W1, W2, W3, seed=seed, cost="prefill-decode"), make_request("x", 4))
        for seed in range(20)
    }

    assert {one.worker for one in chosen} == {W1, W2, W3}
