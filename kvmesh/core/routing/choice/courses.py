"""What requests are decided by: a mode, a formula with its weights, a temperature."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from msgspec.structs import astuple

from kvmesh._native import Course as NativeCourse
from kvmesh._native import Formula
from kvmesh.core.cost.arms import Arm, Arms
from kvmesh.core.cost.catalogue import Pricing, reweigh
from kvmesh.core.cost.formulas import PREDICTED_TIME, scores_of
from kvmesh.core.cost.own import OwnFormula
from kvmesh.core.cost.program import compile_formula
from kvmesh.core.cost.selection import Random, choose_softmax
from kvmesh.core.cost.terms import Candidate, survey
from kvmesh.core.cost.weight_sets import MOST
from kvmesh.core.routing.choice.made import Maker, Terms
from kvmesh.core.routing.decision import RouterMode, RouterOptions
from kvmesh.errors import ConfigError, RequestError

MOST_COURSES: Final = 64
"""Policies of requests that are kept compiled; beyond it all are made anew."""


class Policy(Protocol):
    """By what a request asks to be decided: each None where it leaves that to the router."""

    @property
    def mode(self) -> RouterMode | None:
        """Return how workers are chosen."""
        ...

    @property
    def cost(self) -> str | None:
        """Return the name of a formula of mode kv."""
        ...

    @property
    def temperature(self) -> float | None:
        """Return how evenly workers are drawn; 0 takes the best."""
        ...

    @property
    def overlap_score_weight(self) -> float | None:
        """Return the formula's weight of overlap."""
        ...


class NoWishes(NamedTuple):
    """A request that leaves all to the router."""

    mode: RouterMode | None = None
    cost: str | None = None
    temperature: float | None = None
    overlap_score_weight: float | None = None


NO_WISHES: Final = NoWishes()


DEFAULT: Final = Pricing(PREDICTED_TIME, PREDICTED_TIME.weights.default)
"""What decides where a formula of one's own fails."""


class FormulaFailedError(Exception):
    """A formula of one's own failed: the default has to decide."""


class Priced:
    """What a formula that looks at the fleet, or is one's own, costs each worker. `made` is to be
    set before each decision: it knows from whom workers would fetch. `decides`: in mode kv; else
    the worker is chosen before, and the default is asked at once where a formula fails.
    """

    __slots__ = ("_decides", "_pricing", "made")

    def __init__(self, pricing: Pricing, *, decides: bool) -> None:
        self._pricing = pricing
        self._decides = decides
        self.made = Maker(pricing)

    def __call__(self, weighed: Sequence[tuple[float, Terms]]) -> list[float]:
        """Return the costs, less is better. Raises `FormulaFailedError`."""
        candidates = self.made.candidates([terms for _, terms in weighed])
        costs = _costs_of(self._pricing, candidates)
        if costs is None and not self._decides and self.own is not None:
            self.made.pricing, self.made.instead_of = DEFAULT, self.own.problem
            costs = _costs_of(DEFAULT, candidates)
        if costs is None:
            raise FormulaFailedError
        return costs

    @property
    def own(self) -> OwnFormula | None:
        """Return the formula where it is one's own."""
        formula = self._pricing.cost.formula
        return formula if isinstance(formula, OwnFormula) else None


class Course(NamedTuple):
    """What requests are decided by: by what workers cost (`priced`), and if it `draws` by chance,
    too. `asks` computes what the compiled core cannot. `kept` is the same for a request of a
    session at its worker.
    """

    native: NativeCourse
    uses_caches: bool
    priced: bool
    draws: bool
    pricing: Pricing
    asks: Priced | None
    is_kept: bool = False
    only: "Course | None" = None

    @property
    def kept(self) -> "Course":
        """Return what decides where there is one worker."""
        return self.only or self


class Courses:
    """The formula of mode kv with its weights (`policy`), and the courses that requests have wished
    for; while `arms` are on trial requests go by the policy of the one that is compared now.
    """

    def __init__(self, options: RouterOptions, rng: Random) -> None:
        self.policy = options.pricing()
        self.arms: Arms | None = None
        self._options = options
        self._rng = rng
        self._known: dict[object, Course] = {}

    def follow(self, policy: Pricing, arms: Arms | None) -> None:
        """Decide by another formula and weights from now on, or by those of `arms`."""
        self.policy, self.arms = policy, arms
        self._known.clear()
        for one in (policy,) if arms is None else (policy, arms.candidate):
            if isinstance(one.cost.formula, OwnFormula):
                one.cost.formula.restart()

    def pricing(self, request: Policy) -> Pricing:
        """Return the formula and the weights of a request: the router's, unless it names others.

        Another formula than the router's counts with its own defaults. Raises `RequestError` for
        one that there is not, or a weight that it lacks.
        """
        pricing, place = self.policy, ""
        try:
            if request.cost is not None and request.cost != pricing.cost.name:
                place = "x-kvmesh-cost (or kvmesh.cost)"
                pricing = self._options.formulas.plain(request.cost, place)
            if request.overlap_score_weight is not None:
                place = "x-kvmesh-overlap-score-weight (or kvmesh.overlap_score_weight)"
                weights = {"overlap_score_weight": request.overlap_score_weight}
                pricing = reweigh(pricing, weights, place)
        except ConfigError as error:
            raise RequestError(str(error), param=place.partition(" ")[0]) from None
        return pricing

    def raised(self, asked: Policy, times: int) -> float | None:
        """Return the weight of overlap for a request whose own prefill counts `times` as much.

        What a request names itself stays, and so does all where policies are compared, and where
        the formula has no such weight.
        """
        named = asked.overlap_score_weight
        if times == 1 or self.arms is not None or not has_no_own(asked):
            return named
        weight: float | None = getattr(self.policy.weights, "overlap_score_weight", None)
        return named if weight is None else min(MOST, times * weight)

    def of(self, asked: Policy, arm: Arm | None = None) -> Course:
        """Return what a request is decided by, one of an `arm` by its policy.

        Raises `RequestError` for a formula or a weight that there is not.
        """
        wished = asked.mode, asked.cost, asked.temperature, asked.overlap_score_weight
        key = (wished, None if arm is None else arm.name)
        found = self._known.get(key)
        if found is None:
            pricing = self.pricing(asked) if arm is None else arm.policy
            found = self._keep(key, self._make(asked, pricing))
        return found

    def instead(self, asked: Policy) -> Course:
        """Return what decides a request whose formula failed: the default."""
        key = (asked.mode, asked.temperature)
        found = self._known.get(key)
        if found is None:
            found = self._keep(key, self._make(asked, DEFAULT))
        return found

    def _keep(self, key: object, course: Course) -> Course:
        if len(self._known) >= MOST_COURSES:
            self._known.clear()
        self._known[key] = course
        return course

    def _make(self, asked: Policy, pricing: Pricing) -> Course:
        options, cost = self._options, pricing.cost
        mode, temperature = asked.mode or options.mode, asked.temperature
        if temperature is None:
            temperature = options.temperature
        draw: Callable[[list[float]], int] | None = None
        if mode == "kv" and temperature > 0.0:
            draw = partial(choose_softmax, temperature=temperature, rng=self._rng)
        formula: Formula | None = compile_formula(cost)
        asks = None if formula is not None else Priced(pricing, decides=mode == "kv")
        uses_caches = "kv" in (mode, options.mode)
        policy = cost.name if mode == "kv" else mode
        # A worker that is named is the least loaded of one.
        by = "least-loaded" if mode == "direct" else mode

        def made(*, kept: bool) -> NativeCourse:
            maker = Maker(pricing, kept=kept)
            weights = astuple(pricing.weights)
            return NativeCourse(
                by, uses_caches, formula or asks, weights, cost.margin, policy, maker, draw
            )

        priced, draws = mode == "kv", draw is not None
        kept = Course(made(kept=True), uses_caches, priced, False, pricing, asks, is_kept=True)
        return Course(made(kept=False), uses_caches, priced, draws, pricing, asks, only=kept)


def has_no_own(request: Policy) -> bool:
    """Return whether a request leaves formula and weights to the router."""
    return request.cost is None and request.overlap_score_weight is None


def _costs_of(pricing: Pricing, candidates: Sequence[Candidate]) -> list[float] | None:
    """Return what candidates cost, less is better; None where a formula of one's own fails."""
    cost, weights = pricing.cost, pricing.weights
    scores = scores_of(cost, candidates, survey(candidates, weights), weights)
    return [-one for one in scores] if scores is not None and cost.maximise else scores
