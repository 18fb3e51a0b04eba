"""What a served answer teaches: its length, and whether the cache was predicted right."""

import msgspec

from kvmesh.app.routing_context import RoutingContext
from kvmesh.core.decision import Decision, RouteRequest
from kvmesh.core.output_lengths import Families, OutputForecast
from kvmesh.core.predictions import AnswerSeen
from kvmesh.core.sse import Usage


class Lesson(msgspec.Struct, frozen=True):
    """One request as it was decided at `sent_s`. `told` blocks the worker's events told of then."""

    request: RouteRequest
    decision: Decision | None
    sent_s: float
    told: int | None
    families: Families
    forecast: OutputForecast


def learn_length(context: RoutingContext, lesson: Lesson, usage: Usage | None) -> None:
    """Take how long the answer became: as the engine says, else as it was counted.

    Call it while the request is booked.
    """
    scheduler = context.router.scheduler
    booking = scheduler.sequences.booking(lesson.request.request_id)
    tokens = booking.output_tokens if booking is not None else 0
    if usage is not None and usage.completion_tokens:
        tokens = usage.completion_tokens
    if tokens:
        scheduler.lengths.learn(lesson.families, tokens, lesson.forecast)


def compare(context: RoutingContext, lesson: Lesson, usage: Usage | None) -> None:
    """Hold the predicted overlap against the engine's `cached_tokens`."""
    request, decision = lesson.request, lesson.decision
    if decision is None:
        return
    counters = context.counters
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
            decided_s=lesson.sent_s,
            told=lesson.told,
        )
        context.check.judge(decision.worker, answer, context.clock())
