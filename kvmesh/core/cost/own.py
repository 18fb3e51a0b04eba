"""A cost formula of one's own: a Python function, kept from doing harm."""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from types import CodeType, FunctionType
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from kvmesh.core.cost.expression import Function
from kvmesh.core.cost.terms import Candidate, Fleet
from kvmesh.core.cost.weights import Weights

FAULTS_OFF: Final = 5
"""After so many decisions in a row that it failed, a formula is not asked again."""

LIMIT_S: Final = 0.05
LIMIT_EACH_S: Final = 0.0002
"""A decision may take that long, and so much more for each candidate."""

_LONGEST: Final = 200


_Result = TypeVar("_Result")


class FormulaTimeout(BaseException):
    """A formula did not end in time. No `Exception`: a formula that catches those is ended, too."""


class Guard(Protocol):
    """Ends what takes too long."""

    def __call__(self, compute: Callable[[], _Result], limit_s: float) -> _Result:
        """Return what `compute` returns. Raises `FormulaTimeout` after `limit_s` seconds."""
        ...


def no_guard(compute: Callable[[], _Result], limit_s: float) -> _Result:
    """Be a `Guard` that waits for ever."""
    del limit_s
    return compute()


class OwnStatistics(msgspec.Struct, frozen=True):
    """What became of a formula: decisions, those in which it failed, and how it failed last.

    `off`: it failed `FAULTS_OFF` times in a row.
    """

    decisions: int
    faults: int
    off: bool
    last_fault: str


class OwnFormula:
    """A function of one's own as a formula. `problem` says why it did not decide, or ""."""

    def __init__(
        self, name: str, function: Callable[..., float], weights: type[Weights], guard: Guard
    ) -> None:
        self.function = cast("Function", function)
        self.weights = weights
        self.off = False
        self.problem = ""
        self._guard = guard
        self.name = name
        named = frozenset(_names_in(function))
        self._terms = [one for one in Candidate.__struct_fields__[1:] if one in named]
        self._of_fleet = [one for one in Fleet.__struct_fields__ if one in named]
        terms = ", ".join((*self._terms, *self._of_fleet))
        own = ", ".join(weights.__struct_fields__)
        self.text = f"{name}({'; '.join(filter(None, (terms, own)))})"
        self._decisions = self._faults = self._in_a_row = 0
        self._last_fault = ""

    def line(self, c: Candidate, f: Fleet, w: Weights) -> str:
        """Return the terms that the function reads, and its weights, with their numbers."""
        terms = [_reported(c, self._terms), _reported(f, self._of_fleet)]
        terms_line = "; ".join(filter(None, (", ".join(filter(None, terms)), _reported(w))))
        return f"{self.name}({terms_line})"

    def scores(
        self, candidates: Sequence[Candidate], fleet: Fleet, weights: Weights
    ) -> list[float] | None:
        """Return what the function gives each candidate; None, and `problem`, if it fails."""
        self._decisions += 1
        limit_s = LIMIT_S + LIMIT_EACH_S * len(candidates)
        try:
            scores = self._guard(lambda: self._compute(candidates, fleet, weights), limit_s)
        except KeyboardInterrupt:
            raise
        except FormulaTimeout:
            self._fail(f"took longer than {limit_s * 1000:.0f} ms")
            return None
        except BaseException as error:  # noqa: BLE001  another's code: counted, told, done without
            self._fail(describe(error))
            return None
        self._in_a_row = 0
        self.problem = ""
        return scores

    def restart(self) -> None:
        """Ask the function again, if it was off."""
        self.off = False
        self._in_a_row = 0

    def statistics(self) -> OwnStatistics:
        """Return the counts since the start."""
        return OwnStatistics(self._decisions, self._faults, self.off, self._last_fault)

    def _compute(
        self, candidates: Sequence[Candidate], fleet: Fleet, weights: Weights
    ) -> list[float]:
        function = self.function
        return [checked(function(one, fleet, weights)) for one in candidates]

    def _fail(self, fault: str) -> None:
        """Count a failure; say what it was."""
        self._faults += 1
        self._in_a_row += 1
        self._last_fault = fault
        self.problem = f"{self.name} failed: {fault}"
        if self._in_a_row >= FAULTS_OFF:
            self.off = True
            self.problem = f"{self.name} is off after {FAULTS_OFF} failures in a row: {fault}"


def checked(score: object) -> float:
    """Return a score as a float. Raises `TypeError`, `ValueError` for what is no finite number."""
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise TypeError(f"returned {str(score)[:_LONGEST]!r}, not a number")
    if not isfinite(score):
        raise ValueError(f"returned {score}, not a finite number")
    return float(score)


def describe(error: BaseException) -> str:
    """Return a fault in a line."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  another's class: its name is enough
        text = ""
    words = text.split("\n")[0][:_LONGEST]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _reported(struct: msgspec.Struct, names: Sequence[str] | None = None) -> str:
    fields = struct.__struct_fields__ if names is None else names
    return ", ".join(f"{name}={getattr(struct, name):g}" for name in fields)


def _names_in(function: Callable[..., Any], depth: int = 4) -> Iterator[str]:
    """Yield the names in a function, and in those that it calls by their names."""
    if not isinstance(function, FunctionType) or not depth:
        return
    for name in _names_of(function.__code__):
        yield name
        called = function.__globals__.get(name)
        if called is not function and isinstance(called, FunctionType):
            yield from _names_in(called, depth - 1)
    for cell in function.__closure__ or ():
        yield from _names_in(cell.cell_contents, depth - 1)


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)
