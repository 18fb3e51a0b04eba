# ruff: noqa: ARG001, ARG005  formulas take what they do not need
# The third parameter of a formula is found by its annotation, also where that is a string.
from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.formulas import score_of, scores_of
from kvmesh.core.cost.own_function import Unit, cost_formula, own_cost
from kvmesh.core.cost.terms import NO_FLEET, Candidate, Fleet
from kvmesh.core.cost.weights import NO_WEIGHTS
from kvmesh.errors import ConfigError


class Hit(msgspec.Struct, frozen=True):
    hit: Annotated[float, Meta(ge=0, le=10)] = 2.0


class Loose(msgspec.Struct):
    hit: Annotated[float, Meta(ge=0, le=10)] = 2.0


class Boundless(msgspec.Struct, frozen=True):
    hit: float = 2.0


def weighed(candidate: Candidate, fleet: Fleet, weights: Hit) -> float:
    return candidate.active_requests - weights.hit * candidate.overlap_blocks


def plain(candidate: Candidate, fleet: Fleet) -> float:
    return candidate.active_requests


ONE = Candidate(WorkerId("w"), 16, 160, active_requests=7, overlap_blocks=2)
FAILING = msgspec.structs.replace(ONE, failure_share=0.25, failure_ms=8.0, ms_per_token=0.5)


def test_a_function_has_the_weights_of_its_third_parameter() -> None:
    cost = own_cost(weighed, "f.py:weighed")

    assert str(cost.weights) == "hit (0 to 10, default 2)"
    assert score_of(cost, ONE, NO_FLEET, cost.weights.default) == 3.0
    assert score_of(cost, ONE, NO_FLEET, Hit(1.0)) == 5.0
    assert (cost.name, cost.maximise, cost.margin) == ("f.py:weighed", False, 0.0)


@pytest.mark.parametrize(
    ("unit", "price"), [("ms", 8.0), ("tokens", 16.0), ("blocks", 1.0), ("share", 0.25), (None, 0)]
)
@pytest.mark.parametrize("maximise", [False, True])
def test_a_failing_worker_costs_what_failing_does_in_the_formulas_unit(
    unit: Unit | None, price: float, maximise: bool
) -> None:
    @cost_formula(maximise=maximise, unit=unit)
    def marked(candidate: Candidate, fleet: Fleet) -> float:
        return candidate.active_requests

    cost = own_cost(marked, "marked")

    assert cost.maximise == maximise
    expected = 7.0 - price if maximise else 7.0 + price
    assert scores_of(cost, [ONE, FAILING], NO_FLEET, NO_WEIGHTS) == [7.0, expected]


async def waits(candidate: Candidate, fleet: Fleet) -> float:
    return 0.0


def lost(candidate: Candidate, fleet: Fleet, weights: Nowhere) -> float:  # type: ignore[name-defined]  # noqa: F821
    return 0.0


def bare(candidate: Candidate, fleet: Fleet, weights) -> float:  # type: ignore[no-untyped-def]  # noqa: ANN001
    return 0.0


def numbers(candidate: Candidate, fleet: Fleet, weights: dict[str, float]) -> float:
    return 0.0


def loose(candidate: Candidate, fleet: Fleet, weights: Loose) -> float:
    return 0.0


def boundless(candidate: Candidate, fleet: Fleet, weights: Boundless) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (3, "f is no plain function; write def"),
        (Candidate, "f is no plain function"),
        (waits, "f is no plain function"),
        (lambda c: 0.0, r"f\(c\): a cost formula takes \(candidate, fleet\) or"),
        (lambda a, b, c, d: 0.0, "a cost formula takes"),
        (lambda *c: 0.0, "a cost formula takes"),
        (lambda c, *, f: 0.0, "a cost formula takes"),
        (lost, "f: its annotations cannot be read: NameError"),
        (bare, r"f: annotate weights with a class of its weights: class Weights\(msgspec.Struct"),
        (numbers, "annotate weights with a class"),
        (loose, "f: Loose can be changed; write frozen=True behind Struct"),
        (boundless, "Boundless.hit has no range"),
    ],
)
def test_what_is_no_formula_is_refused(function: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        own_cost(function, "f")
