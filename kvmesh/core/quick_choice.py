"""The cheapest workers without weighing each in full."""

import sys
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from math import inf
from typing import Final

from kvmesh.compiled import NATIVE
from kvmesh.core.cost import Cost, Weights
from kvmesh.core.events import WorkerId
from kvmesh.core.load_bounds import Extent, LoadBounds
from kvmesh.core.quick_cost import QUICK_COSTS, QuickCost
from kvmesh.core.selection import tie_limit
from kvmesh.core.sequences import ActiveSequences
from kvmesh.core.weighing import Weighing
from kvmesh.core.worker_registry import WorkerRegistry

BOUNDED_FROM: Final = sys.maxsize if NATIVE else 64
"""Workers from which ruling most out by their bounds is cheaper than looking at all: the compiled
costs look at 5,000 in less time than that takes.
"""

LARGE_GROUP: Final = 0.25
"""Share of the fleet from which asking for all low bounds beats going through a group."""

NOBODY: Final = frozenset[WorkerId]()

_MANY: Final = 0.25
"""Share of the fleet from which picking its cheapest in order beats sorting them."""

_ROUNDING: Final = 1.0 + 1e-9


class QuickChoice:
    """Finds the workers of least cost within its margin, for formulas that have a `QuickCost`.

    Small fleets are looped over, large ones too where the loop is compiled. Else workers are
    weighed by group, the longest prefix first, and only those that, by a bound under their cost,
    may cost as little as the least so far. Workers at rest with the same prefix are weighed as one,
    where the formula has them cost alike.
    """

    def __init__(
        self,
        cost: Cost,
        weights: Weights,
        workers: WorkerRegistry,
        sequences: ActiveSequences,
        *,
        bounded_from: int = BOUNDED_FROM,
        large_group: float = LARGE_GROUP,
    ) -> None:
        self._weights = weights
        self._workers = workers
        self._sequences = sequences
        self._bounded_from = bounded_from
        self._large_group = large_group
        self._bounded = QUICK_COSTS.get(cost.name)
        self._bounds: LoadBounds | None = None
        if self._bounded is not None:
            line, size = self._bounded.line, sequences.block_size
            self._bounds = LoadBounds(lambda state, rate: line(state, weights, size, rate))

    def find_cheapest(
        self, names: tuple[WorkerId, ...], quick: QuickCost, weighing: Weighing
    ) -> list[WorkerId]:
        """Return every one of `names` (sorted, at least one) that costs least, sorted."""
        fleet = self._workers.states(names)
        bounds = self._bounds
        if (
            bounds is None
            or quick is not self._bounded
            or weighing.weights is not self._weights
            or len(names) < self._bounded_from
            or not self._workers.is_everyone(names)
        ):
            return quick.find_ties(fleet, self._workers.known, weighing)
        speeds, changed = weighing.speeds, self._sequences.changed
        changed |= speeds.changed
        bounds.update(fleet, changed, speeds.fleet_ms_per_token)
        changed.clear()
        speeds.changed.clear()
        return _Search(bounds, quick, weighing).find(self._large_group * len(fleet))


class _Search:
    """The costs found so far for one request, and the largest bound that may still matter."""

    def __init__(self, bounds: LoadBounds, quick: QuickCost, weighing: Weighing) -> None:
        self._bounds = bounds
        self._costing = quick.costing(weighing)
        self._measure = quick.measure(weighing)
        self._groups = weighing.groups
        self._overlaps = weighing.overlaps
        self._overlap_of = weighing.overlaps.get
        self._idle = bounds.idle if quick.alike else NOBODY
        self._margin = weighing.cost.margin
        self._costs: dict[WorkerId, float] = {}
        self._batches: list[tuple[float, AbstractSet[WorkerId]]] = []
        self._batched: AbstractSet[WorkerId] = NOBODY
        self._least = self._limit = self._reach = inf
        self._widening = _ROUNDING / bounds.scale

    def find(self, large: float) -> list[WorkerId]:
        """Return every worker whose cost counts as least, sorted.

        O(1) where a long prefix at an idle worker decides; a group of more than `large` workers, or
        no prefix worth its wait, costs a look at every bound.
        """
        bounds = self._bounds
        for depth, group in self._groups:
            extent = self._measure(depth)
            if bounds.least(extent) > self._reach:
                break
            self._weigh_group(depth, group, extent, large)
        else:
            extent = self._measure(0)
            if self._idle and bounds.least(extent) <= self._reach:
                self._weigh_idle(self._idle.difference(self._overlaps), extent)
            if not self._costs:
                self._weigh([bounds.find_least(extent)], extent)
            if bounds.least(extent) <= self._reach:
                self._weigh(self._unweighed(bounds.find_below(self._reach, extent)), extent)
        return self._cheapest()

    def _cheapest(self) -> list[WorkerId]:
        """Return those weighed whose cost counts as least, sorted."""
        limit, places = self._limit, self._bounds.places
        alone = [worker for worker, cost in self._costs.items() if cost <= limit]
        if not self._batches:
            return sorted(alone)
        cheapest = set(alone).union(*[batch for cost, batch in self._batches if cost <= limit])
        if len(cheapest) > _MANY * len(places):
            return [worker for worker in places if worker in cheapest]
        return sorted(cheapest)

    def _weigh_group(
        self, depth: int, group: tuple[WorkerId, ...], extent: Extent, large: float
    ) -> None:
        """Weigh those of a group that may matter, who have no more overlap than `depth`."""
        if self._idle:
            alike = self._alike(depth, group)
            self._weigh_idle(alike, extent)
            if len(alike) == len(group):
                return
        places, costs = self._bounds.places, self._costs
        known = [places[one] for one in group if one in places and one not in costs]
        if self._batched:
            known = self._unweighed(known)
        if len(known) > large:
            self._weigh(known[:1], extent)
            known = self._below(depth, extent)
            if self._batched:
                known = self._unweighed(known)
        self._weigh(known, extent)

    def _below(self, depth: int, extent: Extent) -> list[int]:
        """Return the places of those with that overlap who may cost as little as the least."""
        states, overlap_of = self._bounds.states, self._overlap_of
        near = self._bounds.find_below(self._reach, extent)
        return [place for place in near if overlap_of(states[place].worker) == depth]

    def _unweighed(self, places: Iterable[int]) -> list[int]:
        """Return those of the places whose worker has no cost yet."""
        states, costs, batched = self._bounds.states, self._costs, self._batched
        if batched:
            places = [place for place in places if states[place].worker not in batched]
        return [place for place in places if states[place].worker not in costs]

    def _alike(self, depth: int, group: tuple[WorkerId, ...]) -> AbstractSet[WorkerId]:
        """Return those of a group who are at rest and have no more overlap from elsewhere."""
        alike, overlap_of = self._idle.intersection(group), self._overlap_of
        if len(self._groups) == 1 and len(group) == len(self._overlaps):
            return alike  # those with any overlap are this group
        return {one for one in alike if overlap_of(one) == depth}

    def _weigh_idle(self, alike: AbstractSet[WorkerId], extent: Extent) -> None:
        """Weigh workers without load that have the same overlap: one for all. 0.02 us each."""
        fresh = alike - self._batched if self._batched else alike
        for worker in fresh:
            self._weigh([self._bounds.places[worker]], extent)
            if worker in self._costs:
                self._batches.append((self._costs[worker], fresh))
                self._batched = self._batched | fresh if self._batched else fresh
            break

    def _weigh(self, places: Iterable[int], extent: Extent) -> None:
        """Weigh those whose bound does not rule them out; none of them has more overlap than
        `extent` was measured at. 0.15 us each, 0.6 us with its cost.
        """
        states, lines = self._bounds.states, self._bounds.lines
        own, shared, fixed, crowd = extent
        costs, costing, reach, least = self._costs, self._costing, self._reach, self._least
        for place in places:
            base, slope, credit, wait = lines[place]
            saved = credit if credit < shared else shared  # noqa: FURB136  # 60 ns sooner than min()
            if base + slope * own - saved + wait * crowd + fixed > reach:
                continue
            state = states[place]
            worker = state.worker
            if worker in costs:
                continue
            cost = costs[worker] = costing(state)
            if cost < least:
                least = self._least = cost
                self._limit = tie_limit(cost, self._margin)
                reach = self._reach = self._limit * self._widening
