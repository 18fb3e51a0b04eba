"""A decision as JSON: every worker's overlap, load, cost terms, and the choice."""

import msgspec

from kvmesh.core.decision import Decision


class CandidateView(msgspec.Struct, frozen=True):
    """One worker as it was weighed. Blocks are KV blocks; `formula` is the debug log's line."""

    worker: str
    score: float
    overlap_blocks: int
    uncached_tokens: int
    prefill_tokens: int
    decode_blocks: int
    active_blocks: int
    active_requests: int
    cache_usage: float
    formula: str


class DecisionView(msgspec.Struct, frozen=True):
    """Where a request goes and why. The smallest score wins unless `maximise`."""

    request_id: str
    router: str
    bucket: str
    worker: str
    policy: str
    maximise: bool
    prompt_tokens: int
    overlap_blocks: int
    total_blocks: int
    considered: int
    candidates: list[CandidateView]


def view_decision(decision: Decision, *, router: str, bucket: str) -> DecisionView:
    """Return `decision` for people and programs, best candidate first."""
    rows = [
        CandidateView(
            worker=one.worker,
            score=score,
            overlap_blocks=one.overlap_blocks,
            uncached_tokens=one.uncached_tokens,
            prefill_tokens=one.prefill_tokens,
            decode_blocks=one.decode_blocks,
            active_blocks=one.active_blocks,
            active_requests=one.active_requests,
            cache_usage=one.cache_usage,
            formula=decision.formula_line(one.worker),
        )
        for one, score in zip(decision.candidates, decision.scores, strict=True)
    ]
    maximise = decision.cost.maximise
    rows.sort(key=lambda row: (-row.score if maximise else row.score, row.worker))
    return DecisionView(
        request_id=decision.request_id,
        router=router,
        bucket=bucket,
        worker=decision.worker,
        policy=decision.policy,
        maximise=maximise,
        prompt_tokens=decision.candidates[0].prompt_tokens if decision.candidates else 0,
        overlap_blocks=decision.overlap_blocks,
        total_blocks=decision.total_blocks,
        considered=decision.considered,
        candidates=rows,
    )
