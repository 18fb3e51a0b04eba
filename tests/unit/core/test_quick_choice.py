import pytest

from kvmesh.core.cost import COSTS, Weights
from kvmesh.core.events import WorkerId
from kvmesh.core.loads import Demand
from kvmesh.core.membership import Membership
from kvmesh.core.prefix_index import Groups
from kvmesh.core.quick_choice import QuickChoice
from kvmesh.core.quick_cost import QUICK_COSTS
from kvmesh.core.sequences import ActiveSequences
from kvmesh.core.speeds import Speeds
from kvmesh.core.weighing import Weighing
from kvmesh.core.worker_registry import WorkerRegistry

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
