# ruff: noqa: ARG005  formulas take what they do not need
from collections.abc import Callable
from itertools import count
from typing import Annotated, Any, TypeVar

import msgspec
import pytest
from msgspec import Meta

from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.cost.own import FormulaTimeout, no_guard
from kvmesh.core.cost.own_check import check_formula, trial_weights
from kvmesh.core.cost.own_function import own_cost
from kvmesh.core.cost.terms import Candidate, Fleet
from kvmesh.errors import ConfigError

Result = TypeVar("Result")


class Pair(msgspec.Struct, frozen=True):
    hit: Annotated[float, Meta(ge=0, le=10)] = 2.0
    most: Annotated[int, Meta(ge=1, le=64)] = 8


def clock(step_us: float = 1.0) -> Callable[[], float]:
    """Return a timer on which each fleet takes `step_us` us."""
    return (number * step_us / 1e6 for number in count()).__next__


def check(function: Callable[..., Any], timer: Callable[[], float] | None = None) -> None:
    check_formula(own_cost(function, "f"), no_guard, timer or clock())


@pytest.mark.parametrize("name", sorted(COSTS))
def test_every_published_formula_passes_the_trial(name: str) -> None:
    check_formula(COSTS[name], no_guard, clock())


def test_weights_are_tried_at_both_ends() -> None:
    def cost(c: Candidate, f: Fleet, w: Pair) -> float:
        return c.prompt_tokens / w.most * w.hit + f.max_waiting

    tried = dict(trial_weights(own_cost(cost, "f")))

    assert tried["its default weights"] == Pair()
    assert (tried["hit=0"], tried["most=64"]) == (Pair(0.0), Pair(2.0, 64))
    assert tried["all weights at their least"] == Pair(0.0, 1)
    assert tried["all weights at their most"] == Pair(10.0, 64)
    check(cost)


def by_zero(c: Candidate, f: Fleet, w: Pair) -> float:
    return c.prompt_tokens / (w.hit + f.max_waiting)


def endless(c: Candidate, f: Fleet) -> float:
    del c, f
    raise FormulaTimeout


def interrupted(c: Candidate, f: Fleet) -> float:
    del c, f
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda c, f: 1 / c.prompt_tokens,
            r"f: ZeroDivisionError: .*; tried with its default weig",
        ),
        (lambda c, f: c.luck, "f: AttributeError: .*'luck'.*Candidate"),
        (lambda c, f: 10.0**308 * c.prompt_tokens, "f: ValueError: returned inf"),
        (lambda c, f: None, "f: TypeError: returned 'None'"),
        (by_zero, "f: ZeroDivisionError: .*; tried with hit=0"),
        (endless, "f: does not end within 2 s; tried with"),
    ],
)
def test_what_fails_somewhere_is_refused_with_the_place(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check(function)


def test_what_depends_on_more_than_its_arguments_is_refused() -> None:
    numbers = count()
    seen: list[float] = []

    def running(c: Candidate, f: Fleet) -> float:
        del c, f
        return next(numbers)

    def by_place(c: Candidate, f: Fleet) -> float:
        del f
        seen.append(c.active_requests)
        return seen[-2] if len(seen) % 8 != 1 else 0.0

    for function in (running, by_place):
        with pytest.raises(ConfigError, match="it must depend on its arguments alone"):
            check(function)


def test_what_is_slow_is_refused_with_what_was_measured() -> None:
    def quick(c: Candidate, f: Fleet) -> float:
        return c.active_requests + f.max_waiting

    check(quick, clock(8 * 99.0))
    with pytest.raises(ConfigError, match=r"f: takes 101 us a candidate .median., at most 100 us"):
        check(quick, clock(8 * 101.0))


def test_who_stops_the_process_is_not_kept_from_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        check(interrupted)


def test_each_trial_is_guarded() -> None:
    limits: set[float] = set()

    def guard(compute: Callable[[], Result], limit_s: float) -> Result:
        limits.add(limit_s)
        return compute()

    check_formula(COSTS["lmetric"], guard, clock())

    assert limits == {2.0}
