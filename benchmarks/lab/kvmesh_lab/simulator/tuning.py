"""A search for the weights of a cost formula: one after the other, up or down, while it pays."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from kvmesh.core.cost.catalogue import PUBLISHED, Formulas, split_cost
from kvmesh.core.cost.formulas import Cost
from kvmesh.core.cost.weight_sets import OverlapUsageWaitingWeights, PredictedTimeWeights
from kvmesh.core.cost.weights import WeightSpec, weights_of
from kvmesh.errors import ConfigError

Weighting = Mapping[str, float]
"""Weights by name."""

TUNED: Final[Mapping[str, Weighting]] = {
    "predicted-time": weights_of(PredictedTimeWeights()),
    "prefill-decode": {"overlap_score_weight": 1.0},
    "dynamo": {
        "overlap_score_weight": 1.0,
        "overlap_score_credit_decay": 0.5,
        "decode_active_request_weight": 1.0,
    },
    "preble": {"outstanding_weight": 0.05},
    "sglang": {"cache_threshold": 0.3, "balance_abs_threshold": 16.0, "balance_rel_threshold": 1.5},
    "overlap-usage-waiting": weights_of(OverlapUsageWaitingWeights()),
    "overlap-load": {"weight_load": 1.0},
    "overlap-blocks": {"weight_load": 1.0},
}
"""The weights worth searching, by formula, and where the search begins."""

FIRST_FACTOR: Final = 2.0
LEAST_GAIN: Final = 0.005
"""A weight is moved for a gain of at least this share: less is chance."""


class Trial(msgspec.Struct, frozen=True):
    """Weights that were tried, and what they scored: less is better."""

    weights: Weighting
    score: float


def tuned_cost(cost: str, formulas: Formulas = PUBLISHED) -> Cost:
    """Return the formula that --tune names. Raises `ConfigError`."""
    name, rest = split_cost(cost.split(":"))
    if rest:
        raise ConfigError(f"--tune {cost!r}: name a formula alone, without weights")
    return formulas.plain(name, "--tune: formula").cost


def tuned_weights(cost: str, formulas: Formulas = PUBLISHED) -> Weighting:
    """Return where the search for `cost` begins. Raises `ConfigError` when it has no weights.

    One of one's own begins at its defaults, and at 1 or what is nearest to it where that is 0.
    """
    found = tuned_cost(cost, formulas)
    if found.name in TUNED:
        return TUNED[found.name]
    specs = found.weights.specs
    if not specs:
        raise ConfigError(f"formula {cost!r} has no weights to tune; use one of {', '.join(TUNED)}")
    return {spec.name: spec.default or spec.fit(1.0) for spec in specs}


class Search:
    """Looks for the weights of least `score`, from `start` on. `trials` are all, in order.

    `found` is where the search is: a trial better than it by `LEAST_GAIN` or more takes its place.
    A weight of `specs` stays what it may be.
    """

    def __init__(
        self,
        start: Weighting,
        score: Callable[[Weighting], float],
        specs: Iterable[WeightSpec] = (),
    ) -> None:
        self._score = score
        self._fit = {spec.name: spec.fit for spec in specs}
        self.found = Trial(dict(start), score(start))
        self.trials = [self.found]

    def run(self, rounds: int = 2) -> Trial:
        """Return the best found.

        Each round tries every weight times and divided by a factor, 2 at first, then its square
        root; a step that pays is taken, and again as long as it pays.
        """
        factor = FIRST_FACTOR
        for _ in range(rounds):
            for name in self.found.weights:
                if not self._follow(name, factor):
                    self._follow(name, 1.0 / factor)
            factor **= 0.5
        return self.found

    def _follow(self, name: str, step: float) -> bool:
        """Move one weight by `step` while it pays; return whether it ever did."""
        paid = False
        while True:
            number = self.found.weights[name] * step
            if name in self._fit:
                number = self._fit[name](number)
            weights = {**self.found.weights, name: number}
            if weights == self.found.weights:
                return paid
            trial = Trial(weights, self._score(weights))
            self.trials.append(trial)
            if trial.score > self.found.score * (1.0 - LEAST_GAIN):
                return paid
            self.found = trial
            paid = True
