"""The naive model of `Ratio` in kvmesh/native/speeds/states.c, and of what `Speeds` there find out
by prefills (kvmesh/native/speeds/speeds.c) and by output (kvmesh/native/speeds/output_rates.c).
"""

import math
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from tests.reference.workers.step_times import StepTimes

DEVIATIONS: Final = 3.0
"""So many standard errors of a worker's mean are taken for chance."""

FIRST_VARIANCE: Final = 0.1
"""Squared relative error of one prefill's time, before any was seen."""

MOST_ERROR: Final = 2.0
"""A larger relative error counts as this: a worker whose speed changes is not noise for long."""

_MOST_PERSISTENCE: Final = 0.8
_HALF_LIFE_SAMPLES: Final = 64.0
_KEEP: Final = 0.5 ** (1.0 / _HALF_LIFE_SAMPLES)

KEPT: Final = 4
"""So many last answers of a worker count: the least of them tells how quick it can be."""

EXPLAINED: Final = 3.0
"""Batches of equal engines differ, and so do their times per token: hardly ever by more."""

BURST_MS: Final = 0.5
"""No engine takes less for a token: such an answer was made before it was sent, or in a cache."""

_TYPICAL: Final = 2
_AGED_EVERY: Final = 64
_AGED_AFTER: Final = 4
_COMPARED_SHARE: Final = 4
_MEAN_WEIGHT: Final = 0.05


class Ratio:
    """Decayed sum of ms over decayed sum of tokens.

    `squares` is the sum of the samples' squared weights, of which the mean's error follows;
    `error` the last sample's, relative to what the mean foretold. `factor` is the worker's time
    per token over its fleet's, 1.0 while that may be chance. `slow_ms` is what each output token
    takes longer there than load explains (`OutputRates`).
    """

    __slots__ = ("error", "factor", "ms", "slow_ms", "squares", "tokens")

    def __init__(self, ms: float = 0.0, tokens: float = 0.0) -> None:
        self.ms = ms
        self.tokens = tokens
        self.squares = 0.0
        self.error = 0.0
        self.factor = 1.0
        self.slow_ms = 0.0

    def fold(self, ms: float, tokens: float, half_life: float) -> None:
        """Add a sample; what was there counts half after `half_life` further tokens."""
        keep = 0.5 ** (tokens / half_life)
        self.ms = self.ms * keep + ms
        self.tokens = self.tokens * keep + tokens
        self.squares = self.squares * keep * keep + tokens * tokens

    def age(self, fleet_ms_per_token: float) -> None:
        """Go half of the way to the fleet's mean, half as sure: no sample came for long."""
        self.ms = 0.25 * (self.ms + fleet_ms_per_token * self.tokens)
        self.tokens *= 0.5
        self.squares *= 0.5
        if self.tokens < 1.0:
            self.ms = self.tokens = self.squares = 0.0
            self.factor = 1.0


class Scatter:
    """How far single prefills are from what their worker's mean foretold, over the whole fleet.

    Equal workers on a busy machine differ by their luck for a while. If their means were taken as
    they are, luck would decide where prompts go that cost little beside a step's fixed time.
    """

    __slots__ = ("_products", "_squares", "_weights")

    def __init__(self) -> None:
        self._weights = 0.0
        self._squares = 0.0
        self._products = 0.0

    @property
    def variance(self) -> float:
        """Return the squared relative error a mean has on account of each prefill in it.

        What disturbs one prefill often disturbs the next: so many of them are worth fewer.
        """
        if not self._weights:
            return FIRST_VARIANCE
        persistence = 0.0
        if self._products > 0.0:
            persistence = min(self._products / self._squares, _MOST_PERSISTENCE)
        return self._squares / self._weights * (1.0 + persistence) / (1.0 - persistence)

    def fold(self, own: Ratio, ms: float, tokens: float, expected_ms: float) -> None:
        """Count a prefill of `tokens` that took `ms` where `own` foretold `expected_ms` (> 0)."""
        error = min(ms / expected_ms - 1.0, MOST_ERROR)
        weight = tokens * tokens
        self._weights = self._weights * _KEEP + weight
        self._squares = self._squares * _KEEP + weight * error * error
        self._products = self._products * _KEEP + weight * error * own.error
        own.error = error

    def factor(self, own: Ratio, fleet_ms_per_token: float) -> float:
        """Return how much slower than the fleet `own` (not empty) surely is: 1.0 within chance.

        Beyond it the ratio itself, shrunk the less the surer it is: r ** (1 - (z e / (r - 1))^2)
        with e the standard error. Source: the garrote of L. Breiman, Technometrics 37, 1995.
        """
        ratio = own.ms / own.tokens / fleet_ms_per_token
        chance = DEVIATIONS * DEVIATIONS * self.variance * own.squares / (own.tokens * own.tokens)
        # The error is relative to the worker's own mean, its distance to the larger of both.
        distance = (ratio - 1.0) / max(ratio, 1.0)
        if distance * distance <= chance:
            return 1.0
        return math.pow(ratio, 1.0 - chance / (distance * distance))


class _Answers:
    """The last answers of one worker: their tokens, and how long these took."""

    __slots__ = ("aged", "beyond", "count", "ms", "ratio", "seen", "tokens")

    def __init__(self, ratio: Ratio) -> None:
        self.ratio = ratio
        self.tokens = [0.0] * KEPT
        self.ms = [0.0] * KEPT
        self.count = 0
        self.aged = False
        self.seen = False
        self.beyond = 1.0

    def add(self, tokens: float, ms: float) -> None:
        """Take an answer. The first one since the worker was doubted stands for all."""
        for place in range(KEPT) if self.aged else (self.count % KEPT,):
            self.tokens[place] = tokens
            self.ms[place] = ms
        self.count += 1
        self.aged = False
        self.seen = True

    def rates(self, step_tokens: float) -> list[float]:
        """Return the times per token, ms, the least first."""
        pairs = zip(self.ms, self.tokens, strict=True)
        return sorted([ms / (tokens + step_tokens) for ms, tokens in pairs])

    def compare(self, usual_ms: float, step_tokens: float) -> None:
        """Note how far even the quickest answer was beyond what load explains."""
        if self.count < KEPT:
            return
        rates = self.rates(step_tokens)
        over = rates[0] - EXPLAINED * usual_ms
        slow = usual_ms > 0.0 and over > 0.0
        self.ratio.slow_ms = over if slow else 0.0
        self.beyond = rates[_TYPICAL] / usual_ms if slow else 1.0

    def distrust(self, usual_ms: float, step_tokens: float) -> None:
        """Go half of the way to what is usual: none came for long, while others gave several."""
        for place, tokens in enumerate(self.tokens):
            self.ms[place] = 0.5 * (self.ms[place] + usual_ms * (tokens + step_tokens))
        self.aged = True


class OutputRates:
    """Compares workers by their last answers, with the usual worker: the lower median of all.

    Half of the workers or more at a pace is the usual one: a fleet may be slow, only a worker can
    be slow beside it. What is compared is the output of whole answers and streams behind their
    prefills, each with a fixed time that is worth some tokens. `Ratio.slow_ms` of a worker is what
    each token takes longer there than `EXPLAINED` times the usual.
    """

    def __init__(self) -> None:
        self._steps = StepTimes()
        self._workers: dict[WorkerId, _Answers] = {}
        self._usual_ms = 0.0
        self._mean_tokens = 0.0
        self._since_compared = 0
        self._since_aged = 0

    def answer_tokens(self, expected: int) -> float:
        """Return what counts for an answer of `expected` tokens, 0 for not known: its fixed time is
        counted in.
        """
        return (expected or self._mean_tokens) + self._steps.step_tokens

    def learn(self, worker: WorkerId, ratio: Ratio, tokens: int, ms: float) -> None:
        """Take an answer whose `tokens` took `ms`; `ratio` is the worker's. O(1), O(workers) once
        in a quarter as many answers.
        """
        if tokens < 1 or ms < BURST_MS * tokens:
            return
        known = self._workers.get(worker)
        if known is None:
            known = self._workers[worker] = _Answers(ratio)
        known.add(tokens, ms)
        weight = _MEAN_WEIGHT if self._mean_tokens else 1.0
        self._mean_tokens += weight * (tokens - self._mean_tokens)
        self._steps.fold(tokens, ms / known.beyond)
        self._since_compared += 1
        self._since_aged += 1
        if self._since_aged >= max(_AGED_EVERY, _AGED_AFTER * len(self._workers)):
            self._age()
        if _COMPARED_SHARE * self._since_compared >= len(self._workers):
            self._compare_all()
        else:
            known.compare(self._usual_ms, self._steps.step_tokens)

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget a worker."""
        self._workers.pop(worker, None)

    def _age(self) -> None:
        """Doubt what is known of those who gave no answer while the others gave several each.

        Else a worker that was slow once would get no request to show that it is no more.
        """
        self._since_aged = 0
        for known in self._workers.values():
            if not known.seen and known.count >= KEPT:
                known.distrust(self._usual_ms, self._steps.step_tokens)
            known.seen = False
        self._since_compared = len(self._workers)

    def _compare_all(self) -> None:
        self._since_compared = 0
        step_tokens = self._steps.step_tokens
        typical = sorted(
            known.rates(step_tokens)[_TYPICAL]
            for known in self._workers.values()
            if known.count >= KEPT
        )
        self._usual_ms = typical[(len(typical) - 1) // 2] if typical else 0.0
        for known in self._workers.values():
            known.compare(self._usual_ms, step_tokens)
