"""Whether a request may still meet its targets: among which workers to choose, or to refuse it."""

from math import ceil
from typing import Final

import msgspec

from kvmesh._native import Forecasts
from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.program import compile_time
from kvmesh.core.cost.targets import Targets
from kvmesh.core.routing.choice.slo_tracker import SloTracker
from kvmesh.core.routing.decision import Forecast
from kvmesh.core.routing.overdue import PREDICTED_MS
from kvmesh.errors import UnattainableError

SLACK: Final = 0.3
"""Workers whose chance to miss is within so much of the least are equal: of these the cost
formula takes one. Divided by the request's weight.
"""

COMING_MS: Final = compile_time(PREDICTED_MS)
OWN_MS: Final = compile_time(Expression("own_ms"))

MOST_RETRY_S: Final = 3600
LIKELY: Final = 0.5
"""A request comes back when it would probably be served in time."""


class SloOptions(msgspec.Struct, frozen=True):
    """`refuse_below`: a request is refused whose chance to meet its targets, times its weight, is
    less at every worker; 0 refuses none.
    """

    refuse_below: float = 0.3


def weight_of(priority: int) -> float:
    """Return what meeting the targets of a request of this priority counts for, 1 for priority 0;
    positive ones count for more.
    """
    return 1.0 + priority if priority >= 0 else 1.0 / (1.0 - priority)


class SloJudge:
    """Refuses what cannot be served in time. `options` may be replaced at any time."""

    def __init__(self, tracker: SloTracker) -> None:
        self.options = SloOptions()
        self._tracker = tracker

    def foretell(
        self,
        request_id: str,
        targets: Targets,
        priority: int,
        now: float,
        hopeless: type[Exception] | None = None,
    ) -> Forecasts:
        """Return what tells the compiled core which workers are in time for a request, and keeps
        what it expects there. What the request has waited counts; of one that never arrived,
        nothing. `hopeless` is raised where the request would be refused; None: it is placed.
        """
        tracker, weight = self._tracker, weight_of(priority)
        return Forecasts(
            targets.ttft_ms,
            targets.tpot_ms,
            tracker.waited_ms(request_id, now),
            SLACK / weight,
            min(1.0, self.options.refuse_below / weight),
            COMING_MS,
            OWN_MS,
            tracker.ttft_errors,
            tracker.tpot_errors,
            hopeless,
        )

    def least_chance(self, priority: int) -> float:
        """Return the chance of meeting its targets below which a request is refused, 0..1."""
        return min(1.0, self.options.refuse_below / weight_of(priority))

    def is_hopeless(self, forecast: Forecast | None, priority: int) -> bool:
        """Return whether a request is to be refused with no better forecast than this one; one
        without a forecast never is.
        """
        return forecast is not None and 1.0 - forecast.chance < self.least_chance(priority)

    def refuse(
        self, request_id: str, targets: Targets, best: Forecast, leaves_ms: float
    ) -> UnattainableError:
        """Count a refused request; return why, and when its targets could be met: when the backlog
        of its best worker has shrunk so far, if no other work comes. A request stays there for
        `leaves_ms`.
        """
        self._tracker.refused(request_id)
        coming_ms = best.ttft_ms - best.waited_ms
        wanted: list[str] = []
        retry_ms, never = 0.0, False
        if targets.ttft_ms is not None:
            errors = self._tracker.ttft_errors
            retry_ms = max(0.0, coming_ms - errors.longest(targets.ttft_ms, LIKELY))
            never = best.own_ms > errors.longest(targets.ttft_ms, self.options.refuse_below)
            expected_ms = best.waited_ms + coming_ms * errors.bias
            wanted.append(f"first token in {targets.ttft_ms:g} ms (expected {expected_ms:.0f})")
        if targets.tpot_ms is not None:
            expected_ms = best.tpot_ms * self._tracker.tpot_errors.bias
            if expected_ms > targets.tpot_ms:
                retry_ms = max(retry_ms, leaves_ms)
            wanted.append(f"{targets.tpot_ms:g} ms a token (expected {expected_ms:.0f})")
        message = f"request {request_id} would miss its targets at every worker: "
        message += ", ".join(wanted)
        if never:
            message += "; its prompt alone takes longer, so that it would be in vain to wait"
            return UnattainableError(message, final=True)
        retry_s = min(MOST_RETRY_S, max(1, ceil(retry_ms / 1000.0)))
        return UnattainableError(message, retry_after_s=retry_s)
