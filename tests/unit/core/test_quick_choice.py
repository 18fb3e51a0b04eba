import random

import msgspec
import pytest

from kvmesh.core.cost import COSTS, Weights
from kvmesh.core.events import WorkerId
from kvmesh.core.loads import Demand
from kvmesh.core.membership import Membership
from kvmesh.core.prefix_index import Groups
from kvmesh.core.quick_choice import QuickChoice
from kvmesh.core.quick_cost import QUICK_COSTS, Costing
from kvmesh.core.sequences import ActiveSequences
from kvmesh.core.speeds import Speeds
from kvmesh.core.weighing import Weighing
from kvmesh.core.worker_registry import WorkerRegistry
from kvmesh.core.worker_state import WorkerState

NAMES = tuple(WorkerId(f"w{number}") for number in range(6))
WEIGHTS = Weights()


class Fleet:
    def __init__(self, cost: str, large_group: float = 0.4) -> None:
        self.cost = COSTS[cost]
        self.quick = QUICK_COSTS[cost]
        self.sequences = ActiveSequences(16)
        self.speeds = Speeds()
        membership = Membership()
        for name in NAMES:
            membership.add(name, 0.0)
        self.workers = WorkerRegistry(membership, self.sequences, self.speeds)
        self.names = self.workers.everyone(0.0)
        self.choice = QuickChoice(
            self.cost,
            WEIGHTS,
            self.workers,
            self.sequences,
            bounded_from=1,
            large_group=large_group,
        )

    def find(self, groups: Groups, names: tuple[WorkerId, ...] | None = None) -> list[WorkerId]:
        overlaps = {worker: depth for depth, group in reversed(groups) for worker in group}
        weighing = Weighing(
            now=0.0,
            policy=self.cost.name,
            cost=self.cost,
            block_size=16,
            prompt_tokens=160,
            request_blocks=10,
            output_blocks=0,
            overlaps=overlaps,
            groups=groups,
            keys=(),
            stride=16,
            weights=WEIGHTS,
            speeds=self.speeds,
            arrivals_per_ms=0.01,
        )
        return self.choice.find_cheapest(names or self.names, self.quick, weighing)

    def load(self, worker: str, tokens: int) -> None:
        self.sequences.add(f"{worker}-{tokens}", WorkerId(worker), Demand(tokens, tokens), now=0.0)


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
def test_a_long_prefix_wins_and_strangers_and_repeats_in_the_groups_do_no_harm(cost: str) -> None:
    fleet = Fleet(cost)
    gone = WorkerId("gone")

    cheapest = fleet.find([(9, (gone,)), (8, (NAMES[3],)), (2, (NAMES[3], NAMES[4]))])

    assert cheapest == [NAMES[3]]


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
def test_a_large_group_is_found_in_the_order_of_load(cost: str) -> None:
    fleet = Fleet(cost)
    fleet.load("w1", 100)
    fleet.load("w2", 50)

    assert fleet.find([(8, NAMES[1:4])]) == [NAMES[3]]
    fleet.load("w3", 5000)
    assert fleet.find([(8, NAMES[1:4])]) != [NAMES[3]]


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
def test_all_of_equal_cost_are_found(cost: str) -> None:
    fleet = Fleet(cost)
    fleet.load("w0", 100)

    assert fleet.find([]) == list(NAMES[1:])
    assert fleet.find([], NAMES[:1]) == [NAMES[0]]


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
def test_the_longest_of_small_and_large_groups_wins(cost: str) -> None:
    fleet = Fleet(cost)

    assert fleet.find([(9, NAMES[1:2]), (8, NAMES[2:5])]) == [NAMES[1]]


@pytest.mark.parametrize("everyone", [True, False])
def test_workers_within_the_margin_of_learned_speeds_are_as_cheap(everyone: bool) -> None:
    fleet = Fleet("predicted-time")
    for number, name in enumerate(NAMES):
        fleet.speeds.prefill_ratio(name).factor = 1.0 + 0.03 * number

    assert fleet.find([], None if everyone else NAMES) == ["w0", "w1"]


def test_who_holds_all_of_it_and_is_idle_ends_the_search() -> None:
    fleet = Fleet("predicted-time")

    assert fleet.find([(10, NAMES[2:3])]) == [NAMES[2]]


class LargeFleet:
    """The same fleet asked in both ways, with few bounds or one by one, as loads and speeds change.

    `weighed` are the workers that the first way looked at closely.
    """

    def __init__(self, cost: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cost = COSTS[cost]
        self.sequences = ActiveSequences(16, stride=4)
        self.speeds = Speeds()
        self.names = tuple(WorkerId(f"w{number:02d}") for number in range(40))
        membership = Membership()
        for name in self.names:
            membership.add(name, 0.0)
        self.workers = WorkerRegistry(membership, self.sequences, self.speeds)
        self.weighed: list[WorkerId] = []
        self.counts: list[int] = []
        self.quick = QUICK_COSTS[cost]
        self.bounded, self.looped = (
            QuickChoice(self.cost, WEIGHTS, self.workers, self.sequences, bounded_from=bounded_from)
            for bounded_from in (1, 99)
        )
        self.bounded._bounded = self.counted = msgspec.structs.replace(
            self.quick, costing=self.costing
        )

    def costing(self, weighing: Weighing) -> Costing:
        cost_of = self.quick.costing(weighing)

        def cost(state: WorkerState) -> float:
            self.weighed.append(state.worker)
            return cost_of(state)

        return cost

    def change(self, number: int) -> None:
        rng = self.rng
        worker = rng.choice(self.names)
        keys = tuple(range(4, 4 * rng.randint(0, 6) + 1, 4))
        tokens = rng.choice([200, 500, 2000])
        demand = Demand(tokens, rng.randint(0, tokens), rng.choice([0, 100]), keys)
        self.sequences.add(f"r{number}", worker, demand, now=number / 100)
        if number % 3 == 0:
            self.sequences.finish(f"r{rng.randrange(number + 1)}")
        self.speeds.measured(worker, 3000 * number, int(3e6 * number * rng.uniform(0.05, 0.06)))

    def weighing(self, now: float) -> Weighing:
        rng = self.rng
        depths = sorted(rng.sample(range(1, 30), 4), reverse=True)
        groups: Groups = []
        names = rng.sample(self.names, len(self.names))
        for depth in depths:
            size = rng.choice([1, 2, 15])
            groups.append((depth, tuple(sorted(names[:size]))))
            names = names[size:]
        groups = groups[: rng.randint(0, 4)]
        return Weighing(
            now=now,
            policy=self.cost.name,
            cost=self.cost,
            block_size=16,
            prompt_tokens=16 * 30,
            request_blocks=30,
            output_blocks=0,
            overlaps={worker: depth for depth, group in groups for worker in group},
            groups=groups,
            keys=range(4, 29, 4),
            stride=4,
            weights=WEIGHTS,
            speeds=self.speeds,
            arrivals_per_ms=0.01,
        )


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
@pytest.mark.parametrize("seed", range(5))
def test_bounds_leave_out_nobody_who_costs_least_and_most_who_do_not(cost: str, seed: int) -> None:
    fleet = LargeFleet(cost, seed)
    names = fleet.workers.everyone(0.0)

    for number in range(80):
        fleet.change(number)
        weighing = fleet.weighing(number / 100)

        cheapest = fleet.bounded.find_cheapest(names, fleet.counted, weighing)

        assert cheapest == fleet.looped.find_cheapest(names, fleet.quick, weighing)
        assert len(fleet.weighed) == len(set(fleet.weighed))
        fleet.counts.append(len(fleet.weighed))
        fleet.weighed.clear()

    assert sum(fleet.counts[-40:]) < 40 * len(names) / 4


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
@pytest.mark.parametrize("wish", ["weights", "formula"])
def test_a_request_with_its_own_weights_or_formula_is_not_judged_by_the_fleets_bounds(
    cost: str, wish: str
) -> None:
    [other] = set(QUICK_COSTS) - {cost}
    fleet = LargeFleet(cost, seed=7)
    names = fleet.workers.everyone(0.0)

    for number in range(80):
        fleet.change(number)
        usual = fleet.weighing(number / 100)
        assert fleet.bounded.find_cheapest(names, fleet.counted, usual)
        if wish == "weights":
            quick = fleet.counted
            weights = Weights(overlap_score_weight=0.01, contention=3.0)
            weighing = msgspec.structs.replace(usual, weights=weights)
        else:
            quick = QUICK_COSTS[other]
            weighing = msgspec.structs.replace(usual, cost=COSTS[other])

        cheapest = fleet.bounded.find_cheapest(names, quick, weighing)

        assert cheapest == fleet.looped.find_cheapest(names, quick, weighing)


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
def test_workers_at_rest_tie_whether_or_not_they_are_weighed_as_one(cost: str) -> None:
    fleet = Fleet(cost)
    fleet.load("w1", 100)

    assert fleet.find([(9, NAMES[:4])]) == [NAMES[0], NAMES[2], NAMES[3]]
    assert fleet.find([]) == [name for name in NAMES if name != NAMES[1]]
    assert fleet.find([(9, (NAMES[1],)), (2, NAMES[2:4])])[0] in {NAMES[1], NAMES[2]}
