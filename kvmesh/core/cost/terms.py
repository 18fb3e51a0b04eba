"""What a cost formula may name besides its weights: terms of one worker, and of all workers."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.weights import Weights


class Brought(msgspec.Struct, frozen=True, gc=False):
    """What a worker would bring to its device for one request: `tokens` by place, tier or
    `fetch_times.PEER`.

    That takes `ms`, in which it would compute `worth_tokens`. `fetched_tokens` of them are another
    worker's, `source`.
    """

    tokens: Mapping[int, int]
    worth_tokens: int
    ms: float
    fetched_tokens: int = 0
    source: WorkerId | None = None

    def own_tokens(self) -> int:
        """Return how many of them are the worker's own, in slower memory."""
        return sum(self.tokens.values()) - self.fetched_tokens


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One worker as this request sees it. Tokens and blocks are counts, `_ms` milliseconds.

    `overlap_blocks` of the request's `request_blocks` are cached there. Load, without this
    request: `prefill_tokens` uncached tokens still to prefill, `active_blocks` KV blocks in use,
    `active_requests`, `outstanding_tokens` their prompt tokens. With it: `decode_blocks`.
    `cache_usage` 0..1, `waiting_requests` and `capacity_blocks` (0: unknown) come from the engine
    where it reports, else from bookings. `cached_blocks` is the size of its cached tree. A step's
    fixed time is worth `step_tokens`; `arrivals_per_ms` is a worker's usual part of all requests.
    `failure_share` of the requests there fail beyond what is usual; `failure_ms` is what this one
    loses by that on average: the time until it fails, and its prompt's anew elsewhere.
    To bring cached blocks to the device, from slower memory or from worker `fetch_from`, takes
    `fetch_ms`: `uncached_tokens` counts them as the tokens that it computes meanwhile.
    `adapter_ms` is how long loading the request's LoRA adapter takes there first:
    `uncached_tokens` counts what is computed in that time otherwise.
    `lost_tokens` of the overlap are expected to be evicted before the request's turn comes.
    `slow_ms` is what the answer's output takes longer there than load explains.
    """

    worker: WorkerId
    block_size: int
    prompt_tokens: int
    overlap_blocks: int = 0
    request_blocks: int = 0
    uncached_tokens: int = 0
    prefill_tokens: int = 0
    active_blocks: int = 0
    decode_blocks: int = 0
    active_requests: int = 0
    outstanding_tokens: int = 0
    waiting_requests: int = 0
    cache_usage: float = 0.0
    capacity_blocks: int = 0
    cached_blocks: int = 0
    wait_ms: float = 0.0
    ms_per_token: float = 0.0
    step_tokens: float = 0.0
    arrivals_per_ms: float = 0.0
    memory_wait_ms: float = 0.0
    failure_share: float = 0.0
    failure_ms: float = 0.0
    lost_tokens: float = 0.0
    slow_ms: float = 0.0
    fetch_ms: float = 0.0
    fetch_from: str = ""
    adapter_ms: float = 0.0

    @property
    def confidence(self) -> float:
        """Return the share of the overlap, 0..1, that is expected to be there in its turn."""
        overlap_tokens = self.overlap_blocks * self.block_size
        return 1.0 - self.lost_tokens / overlap_tokens if self.lost_tokens else 1.0


class Fleet(msgspec.Struct, frozen=True):
    """What a formula may know about all candidates at once."""

    max_waiting: int
    min_prefill_tokens: int
    max_overlap_blocks: int
    min_requests: int
    max_requests: int
    total_work: float


NO_FLEET: Final = Fleet(0, 0, 0, 0, 0, 0.0)
"""For formulas that look at one candidate alone."""


OUTSTANDING_WEIGHT: Final = 0.05
"""What an outstanding prompt token counts for in `total_work`, in prefilled ones, unless the
formula has a weight `outstanding_weight` of its own.
"""

DERIVED: Final[Mapping[str, str]] = {
    "own_ms": "ms_per_token * (uncached_tokens + step_tokens)",
    "lost_ms": "ms_per_token * lost_tokens",
    "prefill_blocks": "(prefill_tokens + uncached_tokens) / block_size",
    "overlap_score": "(prompt_tokens - uncached_tokens) / max(1, prompt_tokens)",
    "failure_tokens": "failure_ms / max(ms_per_token, 0.0001)",
}
"""Terms that follow from a candidate's: how long this request's own prefill takes there, and that
of what is expected to be evicted before; prefill work queued there plus its own, the cached share
of the prompt, and how many tokens are prefilled in `failure_ms` (finite, whatever the speed).
"""

FORMATS: Final[Mapping[str, str]] = {
    "overlap_score_weight": ".1f",
    "overlap_score": ".3f",
    "cache_usage": ".3f",
    "decode_blocks": ".1f",
    "prefill_blocks": ".1f",
    "wait_ms": ".1f",
    "own_ms": ".1f",
    "lost_ms": ".1f",
    "memory_wait_ms": ".1f",
    "slow_ms": ".1f",
    "failure_ms": ".1f",
    "failure_tokens": ".1f",
    "lost_tokens": ".1f",
    "ms_per_token": ".4f",
    "arrivals_per_ms": ".4f",
}
"""How a term is printed; the others as they are."""


def survey(candidates: Sequence[Candidate], weights: Weights) -> Fleet:
    """Return what the formulas may know about `candidates` (at least one) as a whole."""
    requests = [one.active_requests for one in candidates]
    price = getattr(weights, "outstanding_weight", OUTSTANDING_WEIGHT)
    return Fleet(
        max_waiting=max([one.waiting_requests for one in candidates]),
        min_prefill_tokens=min([one.prefill_tokens for one in candidates]),
        max_overlap_blocks=max([one.overlap_blocks for one in candidates]),
        min_requests=min(requests),
        max_requests=max(requests),
        total_work=sum(
            [
                one.prefill_tokens + price * one.outstanding_tokens + one.uncached_tokens
                for one in candidates
            ]
        ),
    )
