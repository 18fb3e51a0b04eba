"""How requests of a simulated fleet went, in the words of a report."""

from typing import Final

from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.simulator.fleet.engine import FleetEngine
from kvmesh_lab.simulator.fleet.request import Errand, Passage
from kvmesh_lab.simulator.fleet.router import AttemptEnd

MS: Final = 1000.0
SERVED: Final = 200


def served(passage: Passage, engine: FleetEngine, router: str, now: float) -> RequestOutcome:
    """Return the outcome of a request that `engine` has answered. O(tokens)."""
    errand, trace, first = passage.errand, passage.errand.request.trace, passage.first_token_s
    pauses_ms = engine.pauses_ms(passage)
    if passage.factor > 1.0:
        pauses_ms = tuple(pause * passage.factor for pause in pauses_ms)
    return RequestOutcome(
        index=trace.index,
        session=trace.session,
        sent_ms=errand.sent_s * MS,
        lag_ms=0.0,
        latency_ms=(now - errand.sent_s) * MS,
        ttft_ms=None if first is None else (first - errand.sent_s) * MS,
        itl_ms=pauses_ms,
        prompt_tokens=trace.input_tokens,
        cached_tokens=passage.model.cached_tokens,
        output_tokens=passage.model.generated,
        worker=engine.worker,
        router=router,
        overlap_blocks=passage.overlap_blocks,
        status=SERVED,
        program=trace.program,
        held_ms=errand.held_s * MS,
    )


def attempt_end(passage: Passage, engine: FleetEngine, *, began: bool) -> AttemptEnd:
    """Return what a router is told of an attempt that `engine` has answered; `began`: it also saw
    when the first token came.
    """
    model, trace = passage.model, passage.errand.request.trace
    return AttemptEnd(
        model.request_id,
        engine.worker,
        "served",
        SERVED,
        output_tokens=model.generated,
        computed_tokens=max(0, trace.input_tokens - model.cached_tokens),
        stop=trace.stop,
        began_s=passage.first_token_s if began else None,
    )


def lost(errand: Errand, router: str, now: float) -> RequestOutcome:
    """Return the outcome of a request that nobody answered: how the last attempt at it ended."""
    trace = errand.request.trace
    return RequestOutcome(
        index=trace.index,
        session=trace.session,
        sent_ms=errand.sent_s * MS,
        lag_ms=0.0,
        latency_ms=(now - errand.sent_s) * MS,
        prompt_tokens=trace.input_tokens,
        worker=errand.worker,
        router=router,
        overlap_blocks=errand.overlap_blocks,
        status=errand.status,
        error=errand.error,
        detail=errand.detail,
        program=trace.program,
        held_ms=errand.held_s * MS,
    )
