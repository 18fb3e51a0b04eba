"""Buckets held against each other by a cost formula, each as if it were one worker."""

from collections.abc import Sequence
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.buckets.spill import CHARS_PER_TOKEN, BucketHeat
from kvmesh.core.cost.catalogue import Pricing
from kvmesh.core.cost.formulas import score_of
from kvmesh.core.cost.own import OwnFormula
from kvmesh.core.cost.terms import Candidate, survey

BLOCK_SIZE: Final = 16
"""Tokens of a block here: a meta-router knows no engine's."""


class BucketCost:
    """Prices buckets by a formula of mode kv and its weights."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing

    @property
    def name(self) -> str:
        """Return the formula's name."""
        return self._pricing.cost.name

    def cheapest(self, candidates: Sequence[Candidate]) -> list[str]:
        """Return the buckets of least cost (at least one candidate), in their order; none where a
        formula of one's own fails or is off.
        """
        cost, weights = self._pricing.cost, self._pricing.weights
        fleet = survey(candidates, weights)
        if isinstance(cost.formula, OwnFormula):
            scores = None if cost.formula.off else cost.formula.scores(candidates, fleet, weights)
            if scores is None:
                return []
        else:
            scores = [score_of(cost, one, fleet, weights) for one in candidates]
        best = max(scores) if cost.maximise else min(scores)
        found = zip(candidates, scores, strict=True)
        return [one.worker for one, score in found if score == best]


def bucket_candidate(
    bucket: str, heat: BucketHeat, requests: int, prompt_chars: int, known_chars: int
) -> Candidate:
    """Return a bucket as a formula sees it: the mean of its workers, of which the least busy
    begins after `heat.backlog_ms`.

    `requests` are at all its workers, `known_chars` of the prompt's `prompt_chars` went there
    before. What a meta-router does not know (KV blocks, waiting requests, decoding) is 0.
    """
    tokens = prompt_chars // CHARS_PER_TOKEN
    overlap = min(known_chars, prompt_chars) // (CHARS_PER_TOKEN * BLOCK_SIZE)
    blocks = -(-tokens // BLOCK_SIZE)
    queued = heat.backlog_ms / heat.ms_per_token if heat.ms_per_token > 0 else 0.0
    return Candidate(
        WorkerId(bucket),
        block_size=BLOCK_SIZE,
        prompt_tokens=tokens,
        overlap_blocks=overlap,
        request_blocks=blocks,
        uncached_tokens=max(0, tokens - overlap * BLOCK_SIZE),
        prefill_tokens=int(queued),
        decode_blocks=blocks,
        active_requests=-(-requests // max(1, heat.workers)),
        wait_ms=heat.backlog_ms,
        ms_per_token=heat.ms_per_token,
    )
