"""Formulas as the compiled core runs them."""

from typing import Final

from kvmesh._native import Formula
from kvmesh.core.cost.expression import Expression, Step
from kvmesh.core.cost.formulas import Cost

_NOTHING: Final = Expression("0")


def compile_formula(cost: Cost) -> Formula | None:
    """Return a formula as the compiled core runs it; None for one that it cannot: what is no
    arithmetic over one worker's terms alone, has a term that it does not know, or is too long.
    """
    formula = cost.formula
    if not isinstance(formula, Expression) or cost.maximise:
        return None
    if formula.names("f") or cost.failure.names("f"):
        return None
    try:
        return Formula(_program(formula), _program(cost.failure))
    except ValueError:
        return None


def compile_time(time: Expression) -> Formula:
    """Return a time as the compiled core computes it of each worker, whether requests fail there or
    not. Raises `ValueError` for one that it cannot.
    """
    return Formula(_program(time), _program(_NOTHING))


def _program(expression: Expression) -> tuple[Step, ...]:
    """Return a program as the compiled core knows it: a weight by its place in the Struct."""
    places = expression.weights.__struct_fields__

    def native_step(step: Step) -> Step:
        if not isinstance(step, str):
            return float(step)
        holder, _, name = step.rpartition(".")
        return places.index(name) if holder == "w" else name

    return tuple(map(native_step, expression.program))
