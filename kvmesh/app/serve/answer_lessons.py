"""What a served answer teaches: its length, and whether the cache was predicted right."""

from kvmesh.app.serve.placement import Placement
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.predictions import AnswerSeen
from kvmesh.core.routing.decision import RouteRequest


def served_tokens(context: RoutingContext, request_id: str, usage: Usage | None) -> int:
    """Return how long the answer became: as the engine says, else as it was counted.

    Ask while the request is booked.
    """
    if usage is not None and usage.completion_tokens:
        return usage.completion_tokens
    booking = context.router.scheduler.sequences.booking(request_id)
    return booking.output_tokens if booking is not None else 0


def compare(
    context: RoutingContext, placement: Placement, request: RouteRequest, usage: Usage | None
) -> None:
    """Hold the predicted overlap against the engine's `cached_tokens`."""
    decision, counters = placement.decision, context.counters
    counters.prompt_tokens += request.prompt_tokens
    if usage is None or usage.cached_tokens is None or request.prefilled:
        return
    predicted = decision.overlap_blocks * context.router.scheduler.options.block_size
    counters.reported_tokens += usage.prompt_tokens
    counters.cached_tokens += usage.cached_tokens
    counters.predicted_tokens += predicted
    if decision.by_cache and not request.approximate:
        answer = AnswerSeen(
            prompt=request.prompt_tokens,
            counted=usage.prompt_tokens,
            predicted=predicted,
            cached=usage.cached_tokens,
            decided_s=placement.sent_s,
            told=placement.told,
        )
        context.check.judge(decision.worker, answer, context.clock())
