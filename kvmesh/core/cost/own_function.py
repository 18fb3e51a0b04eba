"""A Python function of one's own made a cost formula."""

import inspect
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Final, Literal, TypeVar, cast

import msgspec

from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.formulas import Cost
from kvmesh.core.cost.own import Guard, OwnFormula, describe, no_guard
from kvmesh.core.cost.terms import Candidate, Fleet
from kvmesh.core.cost.weights import NoWeights, Weights, WeightTable
from kvmesh.errors import ConfigError

Unit = Literal["ms", "tokens", "blocks", "share"]
"""What a cost is counted in."""

_WITH_WEIGHTS: Final = 3
_OPTIONS: Final = "kvmesh_cost"
_FAILURES: Final = {
    "ms": Expression("failure_ms"),
    "tokens": Expression("failure_tokens"),
    "blocks": Expression("failure_tokens / block_size"),
    "share": Expression("failure_share"),
}
_NO_FAILURE: Final = Expression("0")
_Made = TypeVar("_Made", bound=Callable[..., float])


class CostOptions(msgspec.Struct, frozen=True):
    """What `cost_formula` tells of a function."""

    maximise: bool = False
    unit: Unit | None = None


def cost_formula(*, maximise: bool = False, unit: Unit | None = None) -> Callable[[_Made], _Made]:
    """Return a decorator for a cost function of (candidate, fleet) or (candidate, fleet, weights).

    `maximise`: the largest wins, not the smallest. `unit`: what a cost is counted in; with it, what
    failures cost at a worker that fails is added to what the function gives there.
    """
    options = CostOptions(maximise, unit)

    def mark(function: _Made) -> _Made:
        setattr(function, _OPTIONS, options)
        return function

    return mark


def own_cost(function: object, name: str, guard: Guard = no_guard) -> Cost:
    """Return a function of one's own as a formula called `name`.

    Raises `ConfigError` for what is no function of (candidate, fleet) or (candidate, fleet,
    weights), or whose weights are not declared as `WeightTable` says.
    """
    if not isinstance(function, FunctionType) or inspect.iscoroutinefunction(function):
        raise ConfigError(f"{name} is no plain function; write def {name}(candidate, fleet)")
    count = _parameters(function, name)
    kind = _weights(function, name) if count == _WITH_WEIGHTS else NoWeights
    options = getattr(function, _OPTIONS, CostOptions())

    def without_weights(c: Candidate, f: Fleet, w: Weights) -> float:
        del w
        return cast("float", function(c, f))

    call = function if count == _WITH_WEIGHTS else without_weights
    formula = OwnFormula(name, call, kind, guard)
    return Cost(
        name,
        formula,
        _FAILURES[options.unit] if options.unit else _NO_FAILURE,
        WeightTable(kind),
        options.maximise,
    )


def _parameters(function: FunctionType, name: str) -> int:
    parameters = inspect.signature(function).parameters.values()
    wrong = [
        one
        for one in parameters
        if one.kind not in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if wrong or len(parameters) not in {2, 3}:
        raise ConfigError(
            f"{name}{inspect.signature(function)}: a cost formula takes (candidate, fleet) or "
            "(candidate, fleet, weights)"
        )
    return len(parameters)


def _weights(function: FunctionType, name: str) -> type[Weights]:
    third = [*inspect.signature(function).parameters][2]
    try:
        kind = typing.get_type_hints(function).get(third)
    except Exception as error:
        raise ConfigError(f"{name}: its annotations cannot be read: {describe(error)}") from error
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        raise ConfigError(
            f"{name}: annotate {third} with a class of its weights: class {third.capitalize()}"
            "(msgspec.Struct, frozen=True)"
        )
    if not kind.__struct_config__.frozen:
        raise ConfigError(
            f"{name}: {kind.__name__} can be changed; write frozen=True behind Struct"
        )
    return kind
