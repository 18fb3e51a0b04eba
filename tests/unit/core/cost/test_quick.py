import pytest

from kvmesh._native import WorkerState
from kvmesh.compiled import NATIVE
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import key_count
from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.formulas import COSTS, make_cost, score_of
from kvmesh.core.cost.quick import (
    QUICK_COSTS,
    native_formula,
    pure_costs,
    pure_find_ties,
    quick_find_ties,
)
from kvmesh.core.cost.terms import NO_FLEET
from kvmesh.core.cost.weighing import Weighing
from kvmesh.core.index.block_table import Groups
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.core.workers.info import WorkerInfo
from kvmesh.core.workers.loads import Demand
from kvmesh.core.workers.sequences import new_sequences
from kvmesh.core.workers.speeds import new_speeds

W = WorkerId("w")
SIZE = 16
PROMPT_BLOCKS = 20
KEYS = (104, 108, 112, 116)
WEIGHTS = {
    "overlap_score_weight": 1.5,
    "contention": 0.25,
    "followers": 3.0,
    "decode_weight": 0.03125,
}


class Case:
    """One worker, busy or not, and one prompt of which it may hold some blocks."""

    def __init__(
        self, cost: str, *, busy: bool = True, factor: float = 1.0, more_tokens: int = 0
    ) -> None:
        self.prompt_tokens = PROMPT_BLOCKS * SIZE + more_tokens
        self.cost = COSTS[cost]
        table = self.cost.weights
        own = {name: number for name, number in WEIGHTS.items() if name in table}
        self.weights = table.make(own, "test")
        self.sequences = new_sequences(SIZE)
        self.speeds = new_speeds()
        self.speeds.steps.step_tokens = 48.0
        self.registry = WorkerRegistry(Membership(), self.sequences, self.speeds)
        self.speeds.prefill_ratio(W).factor = factor
        if busy:
            for number, (tokens, uncached) in enumerate(((640, 640), (320, 96), (400, 400))):
                self.sequences.add(
                    f"r{number}",
                    W,
                    Demand(tokens, uncached, expected_output_tokens=40, keys=KEYS[:3]),
                    now=1.0,
                )

    @property
    def state(self) -> WorkerState:
        return self.registry.state(W)

    def weighing(self, overlap: int, now: float) -> Weighing:
        return Weighing(
            now=now,
            policy=self.cost.name,
            cost=self.cost,
            block_size=SIZE,
            prompt_tokens=self.prompt_tokens,
            request_blocks=PROMPT_BLOCKS,
            output_blocks=5,
            overlaps={W: overlap} if overlap else {},
            groups=[(overlap, (W,))] if overlap else [],
            keys=KEYS[: key_count(overlap)],
            weights=self.weights,
            speeds=self.speeds,
            arrivals_per_ms=0.0078125,
        )

    def quick_cost(self, overlap: int, now: float) -> float:
        return pure_costs(self.cost)(self.weighing(overlap, now), (self.state,))[0]

    def published_cost(self, overlap: int, now: float) -> float:
        candidate = self.weighing(overlap, now).candidate(self.state, 0)
        return score_of(self.cost, candidate, NO_FLEET, self.weights)


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("capacity", [0, 20, 40, 98, 100, 10_000])
@pytest.mark.parametrize("overlap", [0, 3, 6, 12, PROMPT_BLOCKS])
def test_a_quick_cost_is_the_published_one_to_the_last_bit(
    cost: str, busy: bool, capacity: int, overlap: int
) -> None:
    case = Case(cost, busy=busy, factor=1.75)
    case.registry.describe(W, WorkerInfo(total_blocks=capacity))
    case.speeds.finished(W, 8.0, 10)

    for now in (1.0, 1.01, 9.0):
        assert case.quick_cost(overlap, now) == case.published_cost(overlap, now)


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
@pytest.mark.parametrize("more_tokens", [-5, 0, 1])
def test_a_quick_cost_of_hardly_anything_uncached_is_the_published_one(
    cost: str, more_tokens: int
) -> None:
    case = Case(cost, more_tokens=more_tokens)

    assert case.quick_cost(PROMPT_BLOCKS, 9.0) == case.published_cost(PROMPT_BLOCKS, 9.0)


@pytest.mark.parametrize("cost", ["predicted-time", "prefill-decode", "lmetric"])
@pytest.mark.parametrize("overlap", [0, 6, PROMPT_BLOCKS])
def test_failing_requests_cost_what_they_lose_and_their_prefill_elsewhere(
    cost: str, overlap: int
) -> None:
    case = Case(cost, factor=1.75)
    well = case.quick_cost(overlap, 9.0)

    case.state.failure_share, case.state.lost_ms = 0.25, 400.0

    fleet = case.speeds.fleet_ms_per_token
    lost_ms = 0.25 * (400.0 + fleet * (case.prompt_tokens + 48.0))
    lost = {
        "predicted-time": lost_ms,
        "prefill-decode": lost_ms / (fleet * 1.75) / SIZE,
        "lmetric": lost_ms / (fleet * 1.75) * 4,
    }[cost]
    assert case.quick_cost(overlap, 9.0) == pytest.approx(well + lost)
    assert case.quick_cost(overlap, 9.0) == case.published_cost(overlap, 9.0)


NAMES = tuple(WorkerId(f"w{number}") for number in range(6))


class Fleet:
    def __init__(self, cost: str) -> None:
        self.cost = COSTS[cost]
        self.sequences = new_sequences(SIZE)
        self.speeds = new_speeds()
        membership = Membership()
        for name in NAMES:
            membership.add(name, 0.0)
        self.workers = WorkerRegistry(membership, self.sequences, self.speeds)

    def find(self, groups: Groups) -> list[WorkerId]:
        """Return the cheapest as both ways find them."""
        weighing = Weighing(
            now=0.0,
            policy=self.cost.name,
            cost=self.cost,
            block_size=SIZE,
            prompt_tokens=160,
            request_blocks=10,
            output_blocks=0,
            overlaps={worker: depth for depth, group in reversed(groups) for worker in group},
            groups=groups,
            keys=(),
            weights=self.cost.weights.default,
            speeds=self.speeds,
            arrivals_per_ms=0.01,
        )
        states, known = self.workers.states(self.workers.everyone(0.0)), self.workers.known
        quick = quick_find_ties(self.cost)
        assert quick is not None
        found = quick(states, known, weighing)
        assert pure_find_ties(self.cost)(states, known, weighing) == found
        return found

    def load(self, worker: str, tokens: int) -> None:
        self.sequences.add(f"{worker}-{tokens}", WorkerId(worker), Demand(tokens, tokens), now=0.0)


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
def test_a_long_prefix_wins_and_strangers_and_repeats_in_the_groups_do_no_harm(cost: str) -> None:
    fleet = Fleet(cost)
    gone = WorkerId("gone")

    cheapest = fleet.find([(9, (gone,)), (8, (NAMES[3],)), (2, (NAMES[3], NAMES[4]))])

    assert cheapest == [NAMES[3]]


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
def test_the_least_loaded_of_those_with_the_same_prefix_wins(cost: str) -> None:
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


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
def test_a_failing_worker_that_holds_the_prefix_and_is_idle_does_not_win(cost: str) -> None:
    fleet = Fleet(cost)
    state = fleet.workers.state(NAMES[1])
    state.failure_share, state.lost_ms = 0.9, 1.0

    assert fleet.find([(3, NAMES[1:2])]) == [NAMES[0], *NAMES[2:]]


def test_workers_within_the_margin_of_learned_speeds_are_as_cheap() -> None:
    fleet = Fleet("predicted-time")
    for number, name in enumerate(NAMES):
        fleet.speeds.prefill_ratio(name).factor = 1.0 + 0.03 * number

    assert fleet.find([]) == ["w0", "w1"]


def test_formulas_that_look_at_the_fleet_or_decide_between_cases_are_not_quick() -> None:
    others = {
        *("dynamo", "preble", "sglang"),
        *("overlap-usage-waiting", "overlap-load", "overlap-blocks"),
    }

    assert QUICK_COSTS.keys() == COSTS.keys() - others


@pytest.mark.parametrize(
    ("formula", "failure"),
    [("waiting_requests", "1"), ("wait_ms + max_waiting", "1"), ("wait_ms", "cached_blocks")],
)
def test_a_formula_of_other_terms_is_not_quick(formula: str, failure: str) -> None:
    assert quick_find_ties(make_cost("own", Expression(formula), Expression(failure))) is None


def test_a_formula_too_long_for_the_compiled_core_is_quick_all_the_same() -> None:
    nested = "wait_ms"
    for _ in range(40):
        nested = f"1 + ({nested})"
    cost = make_cost("own", Expression(nested), Expression("failure_ms"))
    fleet = Fleet("lmetric")
    fleet.cost = cost
    fleet.load("w0", 100)

    assert quick_find_ties(cost) is not None
    assert fleet.find([]) == list(NAMES[1:])
    assert NATIVE is None or native_formula(NATIVE, cost) is None
