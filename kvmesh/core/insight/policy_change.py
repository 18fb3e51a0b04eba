"""What is asked for: another policy, how it is compared, and what ends that."""

from math import isfinite
from typing import Final

import msgspec

from kvmesh.core.insight.policy_spec import MOST_NAME, PolicySpec

MOST_WEIGHTS: Final = 64
MOST_REQUESTS: Final = 10_000_000
MOST_RATIO: Final = 100.0
MOST_S: Final = 30 * 86_400.0
LEAST_WINDOW_S: Final = 0.1
MOST_WINDOW_S: Final = 3_600.0
LEAST_REQUESTS: Final = 20
"""Below that a window says nothing, whatever the times are."""


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
    """A candidate `policy` that takes turns with the baseline, in windows of `window_s` at least.

    It gets all requests once both have `min_requests` and it is within the `bounds`; without that
    verdict after `MOST_WINDOWS` windows, or in `max_s`, the baseline stays. `at_once` takes the
    candidate without comparison.
    """

    policy: PolicySpec
    at_once: bool = False
    min_requests: int = 200
    bounds: Bounds = Bounds()
    window_s: float = 15.0
    max_s: float = 86_400.0

    def wrong(self) -> str:
        """Return what cannot be, with the remedy; "" when all can. The policy is not looked up."""
        if not LEAST_REQUESTS <= self.min_requests <= MOST_REQUESTS:
            return f"min_requests is {self.min_requests}; use {LEAST_REQUESTS} to {MOST_REQUESTS}"
        if not LEAST_WINDOW_S <= self.window_s <= MOST_WINDOW_S:
            return f"window_s is {self.window_s:g}; use {LEAST_WINDOW_S:g} to {MOST_WINDOW_S:g}"
        if not self.window_s <= self.max_s <= MOST_S:
            return f"max_s is {self.max_s:g}; use window_s ({self.window_s:g}) to {MOST_S:g}"
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
