"""What is to be expected of a request with targets, as the compiled core computes it."""

from collections.abc import Callable, Sequence

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.targets import Targets
from kvmesh.core.cost.terms import NO_FLEET, Candidate
from kvmesh.core.cost.weights import NO_WEIGHTS
from kvmesh.core.routing.choice.slo_judge import SLACK, weight_of
from kvmesh.core.routing.choice.slo_tracker import SloTracker
from kvmesh.core.routing.decision import Forecast
from kvmesh.core.routing.overdue import PREDICTED_MS

OWN_MS = Expression("own_ms")


def chance_to_miss(
    tracker: SloTracker, targets: Targets, coming_ms: float, tpot_ms: float, waited_ms: float
) -> float:
    """Return the chance to miss a target, 0..1, with `coming_ms` until the first token."""
    kept = 1.0
    if targets.ttft_ms is not None:
        left_ms = targets.ttft_ms - waited_ms
        if left_ms <= 0.0:
            return 1.0
        kept -= tracker.ttft_errors.chance_above(coming_ms, left_ms)
    if targets.tpot_ms is not None and tpot_ms > 0.0:
        kept *= 1.0 - tracker.tpot_errors.chance_above(tpot_ms, targets.tpot_ms)
    return 1.0 - kept


def foretell(
    tracker: SloTracker,
    targets: Targets,
    waited_ms: float,
    candidates: Sequence[Candidate],
    tpot_ms: Callable[[WorkerId], float],
) -> tuple[Forecast, ...]:
    """Return what is to be expected at each candidate, where a token takes `tpot_ms`."""
    found: list[Forecast] = []
    for one in candidates:
        coming_ms = PREDICTED_MS.function(one, NO_FLEET, NO_WEIGHTS)
        token_ms = tpot_ms(one.worker)
        chance = chance_to_miss(tracker, targets, coming_ms, token_ms, waited_ms)
        own_ms = OWN_MS.function(one, NO_FLEET, NO_WEIGHTS)
        ttft_ms = waited_ms + coming_ms
        found.append(Forecast(one.worker, ttft_ms, token_ms, waited_ms, own_ms, chance))
    return tuple(found)


def in_time(forecasts: Sequence[Forecast], priority: int) -> list[int]:
    """Return the places of those least likely to miss a target, and of those hardly likelier to."""
    most = min([one.chance for one in forecasts]) + SLACK / weight_of(priority)
    return [place for place, one in enumerate(forecasts) if one.chance <= most]
