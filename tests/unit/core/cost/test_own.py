from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
import pytest
from msgspec import Meta

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.own import (
    FAULTS_OFF,
    FormulaTimeout,
    Guard,
    OwnFormula,
    no_guard,
)
from kvmesh.core.cost.terms import NO_FLEET, Candidate, Fleet
from kvmesh.core.cost.weights import NO_WEIGHTS, NoWeights

CANDIDATES = [Candidate(WorkerId(f"w{n}"), 16, 160, active_requests=n) for n in range(3)]
Result = TypeVar("Result")


class Hit(msgspec.Struct, frozen=True):
    hit: Annotated[float, Meta(ge=0, le=10)] = 2.0


def own(function: Callable[..., Any], guard: Guard = no_guard) -> OwnFormula:
    return OwnFormula("f", function, NoWeights, guard)


def requests(c: Candidate, f: Fleet, w: Any) -> float:
    del f, w
    return c.active_requests


def test_the_guard_is_told_how_long_a_decision_may_take() -> None:
    limits: list[float] = []

    def guard(compute: Callable[[], Result], limit_s: float) -> Result:
        limits.append(limit_s)
        return compute()

    formula = own(requests, guard)
    formula.scores(CANDIDATES, NO_FLEET, NO_WEIGHTS)
    formula.scores(CANDIDATES * 500, NO_FLEET, NO_WEIGHTS)

    assert limits == pytest.approx([0.0506, 0.35])


class Rude(BaseException):
    pass


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError


def raises(error: BaseException) -> Callable[..., float]:
    def function(*_: object) -> float:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (raises(ZeroDivisionError("by zero\nand more")), "ZeroDivisionError: by zero"),
        (raises(SystemExit()), "SystemExit"),
        (raises(Rude("go away")), "Rude: go away"),
        (raises(MuteError()), "MuteError"),
        (raises(FormulaTimeout()), "took longer than 51 ms"),
        (lambda *_: None, "TypeError: returned 'None', not a number"),
        (lambda *_: "much", "TypeError: returned 'much', not a number"),
        (lambda *_: True, "TypeError: returned 'True', not a number"),
        (lambda *_: float("nan"), "ValueError: returned nan, not a finite number"),
        (lambda *_: float("-inf"), "ValueError: returned -inf, not a finite number"),
        (lambda *_: 10**400, "OverflowError"),
        (lambda c: c, "TypeError: "),
        (lambda c, *_: c.luck, "AttributeError"),
    ],
)
def test_whatever_goes_wrong_is_a_fault_with_its_reason(
    function: Callable[..., Any], fault: str
) -> None:
    formula = own(function)

    assert formula.scores(CANDIDATES, NO_FLEET, NO_WEIGHTS) is None

    reported = formula.statistics()
    assert (reported.decisions, reported.faults, reported.off) == (1, 1, False)
    assert reported.last_fault.startswith(fault)
    assert formula.problem == f"f failed: {reported.last_fault}"
    assert len(reported.last_fault) < 300


def test_who_stops_the_process_is_not_kept_from_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        own(raises(KeyboardInterrupt())).scores(CANDIDATES, NO_FLEET, NO_WEIGHTS)


def test_faults_in_a_row_switch_a_formula_off_and_a_success_between_them_does_not() -> None:
    broken = False

    def moody(c: Candidate, f: Fleet, w: Any) -> float:
        return 1 / 0 if broken else requests(c, f, w)

    formula = own(moody)
    for _ in range(3):
        broken = True
        for _ in range(FAULTS_OFF - 1):
            assert formula.scores(CANDIDATES, NO_FLEET, NO_WEIGHTS) is None
        broken = False
        assert formula.scores(CANDIDATES, NO_FLEET, NO_WEIGHTS) is not None
        assert (formula.off, formula.problem) == (False, "")
    broken = True
    for _ in range(FAULTS_OFF):
        formula.scores(CANDIDATES, NO_FLEET, NO_WEIGHTS)

    assert formula.off
    assert (
        formula.problem == "f is off after 5 failures in a row: ZeroDivisionError: division by zero"
    )
    assert formula.statistics().faults == 3 * (FAULTS_OFF - 1) + FAULTS_OFF


def work(candidate: Candidate) -> float:
    return max([candidate.prefill_tokens for _ in range(2)])


def test_the_line_has_the_terms_that_the_function_and_what_it_calls_read() -> None:
    def deeper(c: Candidate, f: Fleet) -> float:
        return work(c) + f.max_waiting

    def cost(c: Candidate, f: Fleet, w: Hit) -> float:
        return deeper(c, f) - w.hit * c.overlap_blocks + c.ms_per_token

    formula = OwnFormula("mine", cost, Hit, no_guard)
    one = msgspec.structs.replace(CANDIDATES[0], overlap_blocks=3, ms_per_token=0.125)

    assert formula.text == "mine(overlap_blocks, prefill_tokens, ms_per_token, max_waiting; hit)"
    assert formula.line(one, NO_FLEET, Hit(0.5)) == (
        "mine(overlap_blocks=3, prefill_tokens=0, ms_per_token=0.125, max_waiting=0; hit=0.5)"
    )
    assert own(lambda *_: 1.0).text == "f()"
    assert own(lambda *_: 1.0).line(one, NO_FLEET, NO_WEIGHTS) == "f()"
