"""The cheapest workers without weighing each in full."""

from typing import Final

from kvmesh.core.cost import Cost, Weights
from kvmesh.core.events import WorkerId
from kvmesh.core.load_order import LoadOrder
from kvmesh.core.quick_cost import QUICK_COSTS, QuickCost
from kvmesh.core.selection import tie_limit
from kvmesh.core.sequences import ActiveSequences
from kvmesh.core.weighing import Weighing
from kvmesh.core.worker_registry import WorkerRegistry, WorkerState

ORDERED_FROM: Final = 32
"""Workers from which keeping them in the order of load is cheaper than looking at all."""

SMALL_GROUP: Final = 8
"""Workers of equal prefix that are looked at before the load order is walked."""


class QuickChoice:
    """Finds the workers of least cost within its margin, for formulas that have a `QuickCost`.

    Small fleets are looped over. In large ones the few workers with the longest prefixes are
    looked at, then the others in the order of load, until no further one can cost less.
    """

    def __init__(
        self,
        cost: Cost,
        weights: Weights,
        workers: WorkerRegistry,
        sequences: ActiveSequences,
        *,
        ordered_from: int = ORDERED_FROM,
        small_group: int = SMALL_GROUP,
    ) -> None:
        self._weights = weights
        self._workers = workers
        self._sequences = sequences
        self._ordered_from = ordered_from
        self._small_group = small_group
        self._ordered = QUICK_COSTS.get(cost.name)
        self._fleet: tuple[WorkerState, ...] = ()
        self._order: LoadOrder | None = None
        if self._ordered is not None:
            load_key, size = self._ordered.load_key, sequences.block_size
            self._order = LoadOrder(lambda state: load_key(state, weights, size))

    def find_cheapest(
        self, names: tuple[WorkerId, ...], quick: QuickCost, weighing: Weighing
    ) -> list[WorkerId]:
        """Return every one of `names` (sorted, at least one) that costs least, sorted."""
        fleet = self._workers.states(names)
        order = self._order
        if (
            order is None
            or quick is not self._ordered
            or weighing.weights is not self._weights
            or len(names) < self._ordered_from
            or not self._workers.is_everyone(names)
        ):
            costs = list(map(quick.costing(weighing), fleet))
            limit = tie_limit(min(costs), weighing.cost.margin)
            return [one for one, cost in zip(names, costs, strict=True) if cost <= limit]
        if fleet is not self._fleet:
            self._fleet = fleet
            order.rebuild(fleet)
        else:
            order.update(self._sequences.changed)
        self._sequences.changed.clear()
        return self._walk(order, quick, weighing)

    def _walk(self, order: LoadOrder, quick: QuickCost, weighing: Weighing) -> list[WorkerId]:
        costing = quick.costing(weighing)
        floor = quick.floor(weighing, order.most_requests)
        costs: dict[WorkerId, float] = {}
        longest = 0
        for depth, group in weighing.groups:
            if len(group) > self._small_group:
                longest = depth
                break
            for worker in group:
                state = order.state(worker)
                if state is not None and worker not in costs:
                    costs[worker] = costing(state)
        margin = weighing.cost.margin
        limit = tie_limit(min(costs.values(), default=float("inf")), margin)
        for key, worker, state in order:
            if floor(key, longest) > limit:
                break
            if worker not in costs:
                cost = costs[worker] = costing(state)
                limit = min(limit, tie_limit(cost, margin))
        return sorted(worker for worker, cost in costs.items() if cost <= limit)
