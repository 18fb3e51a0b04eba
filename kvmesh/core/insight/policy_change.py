"""What is asked for: another policy, by which stages, and what ends it."""

from itertools import pairwise
from math import isfinite
from typing import Final

import msgspec

from kvmesh.core.insight.policy_spec import MOST_NAME, PolicySpec

STAGES: Final = (0.05, 0.25, 1.0)
HELD_BACK: Final = 0.1
"""Load may change at any time: what the baseline did before would say little of what it does now.
"""

MOST_STAGES: Final = 8
MOST_WEIGHTS: Final = 64
MOST_REQUESTS: Final = 10_000_000
MOST_RATIO: Final = 100.0
MOST_STAGE_S: Final = 30 * 86_400.0
LEAST_REQUESTS: Final = 20
"""Below that a stage says nothing, whatever the times are."""


class Bounds(msgspec.Struct, frozen=True):
    """How much worse than the baseline the candidate may be: times the time to the first token
    (`ttft_ratio`) and the time per token (`tpot_ratio`), and the share of failed requests beyond
    the baseline's (`error_margin`).
    """

    ttft_ratio: float = 1.1
    tpot_ratio: float = 1.1
    error_margin: float = 0.01

    def wrong(self) -> str:
        """Return what cannot be, with the remedy; "" when all can."""
        for name, value in (("ttft_ratio", self.ttft_ratio), ("tpot_ratio", self.tpot_ratio)):
            if not 1.0 <= value <= MOST_RATIO:
                return f"bounds.{name} is {value:g}; use 1 to {MOST_RATIO:g}"
        if not 0.0 <= self.error_margin <= 1.0:
            return f"bounds.error_margin is {self.error_margin:g}; use 0 to 1"
        return ""


class PolicyChange(msgspec.Struct, frozen=True):
    """A candidate `policy` that gets the shares `stages` of the requests, one after the other.

    A stage lasts until each arm has `min_requests` and the candidate is within the `bounds`; longer
    than `max_stage_s` (0: for ever), and the baseline returns. In the last stage the baseline keeps
    `HELD_BACK` to be compared with, until that is over. `stages` of 1.0 alone take the candidate at
    once, without comparison.
    """

    policy: PolicySpec
    stages: tuple[float, ...] = STAGES
    min_requests: int = 200
    bounds: Bounds = Bounds()
    max_stage_s: float = 0.0

    @property
    def immediate(self) -> bool:
        """Return whether nothing is compared."""
        return self.stages[0] >= 1.0

    def share(self, stage: int) -> float:
        """Return the candidate's share of the requests in a stage."""
        share = self.stages[stage]
        if share < 1.0 or self.immediate:
            return share
        return max(1.0 - HELD_BACK, self.stages[stage - 1])

    def wrong(self) -> str:
        """Return what cannot be, with the remedy; "" when all can. The policy is not looked up."""
        stages, reported = self.stages, ", ".join(f"{one:g}" for one in self.stages[:MOST_STAGES])
        if not 1 <= len(stages) <= MOST_STAGES:
            return f"{len(stages)} stages; give 1 to {MOST_STAGES}"
        rising = all(low < high for low, high in pairwise(stages))
        if not (rising and stages[0] > 0.0 and stages[-1] == 1.0):
            return f"stages are {reported}: give shares above 0 that rise, the last one 1"
        if not LEAST_REQUESTS <= self.min_requests <= MOST_REQUESTS:
            return f"min_requests is {self.min_requests}; use {LEAST_REQUESTS} to {MOST_REQUESTS}"
        if not 0.0 <= self.max_stage_s <= MOST_STAGE_S:
            return f"max_stage_s is {self.max_stage_s:g}; use 0 (for ever) to {MOST_STAGE_S:g}"
        return self.bounds.wrong() or wrong_spec(self.policy)


def wrong_spec(spec: PolicySpec) -> str:
    """Return what no policy can be, whatever formulas there are; "" when it may be one."""
    if not 1 <= len(spec.formula) <= MOST_NAME:
        return f"a formula's name of {len(spec.formula)} characters; use 1 to {MOST_NAME}"
    if len(spec.weights) > MOST_WEIGHTS:
        return f"{len(spec.weights)} weights; give {MOST_WEIGHTS} at most"
    for name, value in spec.weights.items():
        if len(name) > MOST_NAME or not isfinite(value):
            return f"weight {name[:MOST_NAME]!r} is {value:g}: it must be finite"
    return ""
