import pytest

from kvmesh.core.cost import COSTS, NO_FLEET, Weights
from kvmesh.core.decision import WorkerInfo
from kvmesh.core.events import WorkerId
from kvmesh.core.loads import Demand
from kvmesh.core.membership import Membership
from kvmesh.core.quick_cost import QUICK_COSTS
from kvmesh.core.sequences import ActiveSequences
from kvmesh.core.speeds import Speeds
from kvmesh.core.weighing import Weighing
from kvmesh.core.worker_registry import WorkerRegistry
from kvmesh.core.worker_state import WorkerState

W = WorkerId("w")
SIZE = 16
STRIDE = 4
PROMPT_BLOCKS = 20
KEYS = (104, 108, 112, 116)
WEIGHTS = Weights(overlap_score_weight=1.5, contention=0.25, followers=3.0, decode_weight=0.03125)


class Case:
    """One worker, busy or not, and one prompt of which it may hold some blocks."""

    def __init__(
        self, cost: str, *, busy: bool = True, factor: float = 1.0, more_tokens: int = 0
    ) -> None:
        self.prompt_tokens = PROMPT_BLOCKS * SIZE + more_tokens
        self.cost, self.quick = COSTS[cost], QUICK_COSTS[cost]
        self.sequences = ActiveSequences(SIZE, stride=STRIDE)
        self.speeds = Speeds()
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
            keys=KEYS[: overlap // STRIDE],
            stride=STRIDE,
            weights=WEIGHTS,
            speeds=self.speeds,
            arrivals_per_ms=0.0078125,
        )

    def quick_cost(self, overlap: int, now: float) -> float:
        return self.quick.costing(self.weighing(overlap, now))(self.state)

    def published_cost(self, overlap: int, now: float) -> float:
        candidate = self.weighing(overlap, now).candidate(self.state, 0)
        return self.cost.formula(candidate, NO_FLEET, WEIGHTS)

    def bound(self, overlap: int) -> float:
        line = self.quick.line(self.state, WEIGHTS, SIZE, self.speeds.fleet_ms_per_token)
        own, shared, fixed, crowd = self.quick.measure(self.weighing(overlap, 0.0))(overlap)
        low = line.base + line.slope * own - min(line.credit, shared)
        return low + line.wait * crowd + fixed


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


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("overlap", [0, 3, 6, 12, PROMPT_BLOCKS])
def test_a_bound_is_the_cost_where_the_oldest_prefill_is_about_to_end(
    cost: str, busy: bool, overlap: int
) -> None:
    case = Case(cost, busy=busy)
    # Bookings share twelve blocks; a bound takes all that is cached for shared.
    overrated = overlap - 12 if busy and overlap > 12 and cost == "prefill-decode" else 0

    assert case.bound(overlap) + overrated == pytest.approx(case.published_cost(overlap, 99.0))


@pytest.mark.parametrize("overlap", [0, 6, PROMPT_BLOCKS])
def test_a_bound_stays_under_the_cost_of_a_slower_worker_that_just_began(overlap: int) -> None:
    case = Case("predicted-time", factor=1.75)

    assert case.bound(overlap) < case.published_cost(overlap, 1.0)
    line = case.quick.line(case.state, WEIGHTS, SIZE, 0.5)
    rate = 0.5 * 1.75
    waiting = 96 + 400
    assert line.slope == rate * 1.75
    assert line.wait == waiting * rate
    assert line.base == waiting * rate * 1.75 + 0.03125 * rate * (640 + 320 + 400)
