"""Formulas for many workers at once, without a `Candidate` for each: the same numbers to the last
bit, ten times sooner.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from operator import attrgetter
from typing import Final, cast

from msgspec.structs import astuple

from kvmesh._native import WorkerState
from kvmesh.compiled import NATIVE, Native, NativeFormula
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.expression import Expression, Step
from kvmesh.core.cost.formulas import COSTS, Cost
from kvmesh.core.cost.selection import tie_limit
from kvmesh.core.cost.weighing import MEMORY_MARGIN, Weighing
from kvmesh.core.cost.weights import Weights

States = tuple[WorkerState, ...]

FindTies = Callable[[States, Mapping[WorkerId, WorkerState], Weighing], list[WorkerId]]
"""Workers (at least one), the same by name, perhaps with others -> those whose cost counts as
least, in order: all are looked at.
"""

SCALARS: Final[Mapping[str, str]] = {
    "block_size": "block_size",
    "prompt_tokens": "prompt_tokens",
    "request_blocks": "request_blocks",
    "step_tokens": "speeds.steps.step_tokens",
    "arrivals_per_ms": "arrivals_per_ms",
}
"""Terms that are one number for all workers, and where a `Weighing` has them; weights are, too."""

Column = Callable[[Weighing, States], Iterable[float]]


def _attribute(path: str) -> Column:
    read = attrgetter(path)
    return lambda _, states: map(read, states)


def _overlap_blocks(weighing: Weighing, states: States) -> Iterable[int]:
    overlap_of = weighing.overlaps.get
    return [overlap_of(state.worker, 0) for state in states]


def _uncached_tokens(weighing: Weighing, states: States) -> Iterable[int]:
    prompt, size, overlap_of = weighing.prompt_tokens, weighing.block_size, weighing.overlaps.get
    uncached = [prompt - overlap_of(state.worker, 0) * size for state in states]
    return uncached if min(uncached) >= 0 else [max(0, one) for one in uncached]


def _decode_blocks(weighing: Weighing, states: States) -> Iterable[int]:
    blocks, keys = weighing.request_blocks, weighing.keys
    overlap_of = weighing.overlaps.get
    return [
        loads.active_blocks
        + blocks
        - (loads.shared_blocks(keys, overlap) if (overlap := overlap_of(worker, 0)) else 0)
        for worker, loads in ((state.worker, state.loads) for state in states)
    ]


def _ms_per_token(weighing: Weighing, states: States) -> Iterable[float]:
    fleet = weighing.speeds.fleet_ms_per_token
    return [fleet * state.prefill.factor for state in states]


def _wait_ms(weighing: Weighing, states: States) -> Iterable[float]:
    now, speeds = weighing.now, weighing.speeds
    fleet, step_tokens = speeds.fleet_ms_per_token, speeds.steps.step_tokens
    return [
        loads.wait_ms(fleet * state.prefill.factor, now, step_tokens)
        if (loads := state.loads).prefill_tokens
        else 0.0
        for state in states
    ]


def _memory_wait_ms(weighing: Weighing, states: States) -> Iterable[float]:
    blocks, memory_wait_of = (
        weighing.request_blocks + weighing.output_blocks,
        weighing.memory_wait_of,
    )
    return [
        # With what is shared counted twice, which is sooner said: mostly there is room enough.
        memory_wait_of(state)
        if (capacity := state.capacity_blocks)
        and ((loads := state.loads).active_blocks + loads.expected_blocks + blocks) / capacity
        > MEMORY_MARGIN
        else 0.0
        for state in states
    ]


def _lost_tokens(weighing: Weighing, states: States) -> Iterable[float]:
    return map(weighing.lost_tokens, states)


def _slow_ms(weighing: Weighing, states: States) -> Iterable[float]:
    tokens = weighing.answer_tokens
    return [state.prefill.slow_ms * tokens for state in states]


def _failure_ms(weighing: Weighing, states: States) -> Iterable[float]:
    return map(weighing.failure_ms, states)


COLUMNS: Final[Mapping[str, Column]] = {
    "overlap_blocks": _overlap_blocks,
    "uncached_tokens": _uncached_tokens,
    "prefill_tokens": _attribute("loads.prefill_tokens"),
    "active_blocks": _attribute("loads.active_blocks"),
    "decode_blocks": _decode_blocks,
    "active_requests": _attribute("loads.active_requests"),
    "outstanding_tokens": _attribute("loads.prompt_tokens"),
    "capacity_blocks": _attribute("capacity_blocks"),
    "ms_per_token": _ms_per_token,
    "wait_ms": _wait_ms,
    "memory_wait_ms": _memory_wait_ms,
    "failure_share": _attribute("failure_share"),
    "failure_ms": _failure_ms,
    "lost_tokens": _lost_tokens,
    "slow_ms": _slow_ms,
}
"""The terms of each worker, as `Weighing.candidate` has them; in C those of kvmesh/native/costs.c.
"""


def is_quick(cost: Cost) -> bool:
    """Return whether a formula is arithmetic over `SCALARS` and `COLUMNS` alone, to minimise."""
    if not isinstance(cost.formula, Expression) or cost.maximise:
        return False
    return all(
        not one.names("f") and SCALARS.keys() | COLUMNS.keys() >= set(one.names("c"))
        for one in (cost.formula, cost.failure)
    )


class _Columns:
    """An expression over columns of terms."""

    def __init__(self, expression: Expression) -> None:
        names, weights = expression.names("c"), expression.names("w")
        facts = [name for name in names if name in SCALARS]
        columns = [name for name in names if name in COLUMNS]
        scalars = [*facts, *weights]
        places = [*(SCALARS[name] for name in facts), *(f"weights.{name}" for name in weights)]
        self._scalars = [attrgetter(place) for place in places]
        self._columns = [COLUMNS[name] for name in columns]
        self._function = expression.over(scalars + columns)

    def costs(self, weighing: Weighing, states: States) -> list[float]:
        """Return what it gives each worker."""
        scalars = [repeat(read(weighing)) for read in self._scalars]
        columns = [column(weighing, states) for column in self._columns]
        return list(map(self._function, states, *scalars, *columns))


def pure_costs(cost: Cost) -> Callable[[Weighing, States], list[float]]:
    """Return what computes what a quick formula gives each of some workers, failure included."""
    assert isinstance(cost.formula, Expression)
    price, failure = _Columns(cost.formula), _Columns(cost.failure)

    def costs(weighing: Weighing, states: States) -> list[float]:
        prices = price.costs(weighing, states)
        if not any(state.failure_share for state in states):
            return prices
        failures = failure.costs(weighing, states)
        return [
            paid + lost if state.failure_share else paid
            for paid, lost, state in zip(prices, failures, states, strict=True)
        ]

    return costs


def pure_find_ties(cost: Cost) -> FindTies:
    """Return what weighs all workers by a quick formula."""
    find_costs = pure_costs(cost)

    def find_ties(
        states: States, known: Mapping[WorkerId, WorkerState], weighing: Weighing
    ) -> list[WorkerId]:
        del known
        costs = find_costs(weighing, states)
        limit = tie_limit(min(costs), weighing.cost.margin)
        return [one.worker for one, cost in zip(states, costs, strict=True) if cost <= limit]

    return find_ties


def native_find_ties(native: Native, cost: Cost) -> FindTies:
    """Return the compiled `pure_find_ties`."""
    run = _native_formula(native, cost).find_ties
    latest: Weights = cost.weights.default
    weights = astuple(latest)

    def find_ties(
        states: States, known: Mapping[WorkerId, WorkerState], weighing: Weighing
    ) -> list[WorkerId]:
        nonlocal latest, weights
        if weighing.weights is not latest:
            latest = weighing.weights
            weights = astuple(latest)
        speeds = weighing.speeds
        request = (
            weighing.block_size,
            weighing.prompt_tokens,
            weighing.request_blocks,
            weighing.output_blocks,
            weighing.now,
            speeds.fleet_ms_per_token,
            speeds.steps.step_tokens,
            weighing.arrivals_per_ms,
            weighing.answer_tokens,
            weighing.cost.margin,
            weighing.keys,
            weighing.memory_wait_of,
            weighing.lost_tokens if weighing.routed else None,
        )
        return cast("list[WorkerId]", run(states, known, weighing.overlaps, request, weights))

    return find_ties


def _native_formula(native: Native, cost: Cost) -> NativeFormula:
    assert isinstance(cost.formula, Expression)
    price, failure = map(_native_program, (cost.formula, cost.failure))
    return native.Formula(price, failure)


def native_formula(native: Native, cost: Cost) -> NativeFormula | None:
    """Return a formula as the compiled core runs it; None for one that it cannot."""
    try:
        return _native_formula(native, cost) if is_quick(cost) else None
    except ValueError:  # too long for it
        return None


def _native_program(expression: Expression) -> tuple[Step, ...]:
    """Return a program as the compiled core knows it: a weight by its place in the Struct."""
    places = expression.weights.__struct_fields__

    def native_step(step: Step) -> Step:
        if not isinstance(step, str):
            return float(step)
        holder, _, name = step.rpartition(".")
        return places.index(name) if holder == "w" else name

    return tuple(map(native_step, expression.program))


def quick_find_ties(cost: Cost) -> FindTies | None:
    """Return what weighs all workers by a formula at once, compiled where there is a compiled core
    that runs it; None for one that is not quick.
    """
    if not is_quick(cost):
        return None
    try:
        return native_find_ties(NATIVE, cost) if NATIVE else pure_find_ties(cost)
    except ValueError:  # too long for it
        return pure_find_ties(cost)


QUICK_COSTS: Final[Mapping[str, FindTies]] = {
    cost.name: find_ties for cost in COSTS.values() if (find_ties := quick_find_ties(cost))
}
"""What weighs all workers by a formula at once, by its name, of those that can be."""
