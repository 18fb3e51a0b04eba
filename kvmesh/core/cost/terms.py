"""What a cost formula may name besides its weights: terms of one worker, and of all workers."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

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


class Term(NamedTuple):
    """What one worker's term is, and how the compiled core computes it (`c`), of the request
    `asked`, the worker's `state`, and what else was looked up of it (`seen`): with `kind` worker or
    request formulas may name it there, too. `shown`: how it is printed.
    """

    unit: str
    meaning: str
    c: str = ""
    kind: Literal["worker", "request", "seen", "given"] = "worker"
    shown: str = ""


TERMS: Final[Mapping[str, Term]] = {
    "worker": Term("", "its name", kind="given"),
    "block_size": Term("tokens", "of a block", "asked->block_size", "request"),
    "prompt_tokens": Term("tokens", "of the request", "asked->prompt_tokens", "request"),
    "overlap_blocks": Term(
        "blocks", "of the prompt that are cached there", "overlap_of(asked, state)"
    ),
    "request_blocks": Term(
        "blocks", "of the request; the last counts whole", "asked->request_blocks", "request"
    ),
    "uncached_tokens": Term(
        "tokens", "of the prompt that are not: to be prefilled there", "uncached_of(asked, state)"
    ),
    "prefill_tokens": Term(
        "tokens",
        "uncached ones of other requests, still to prefill there",
        "state->loads->prefill_tokens",
    ),
    "active_blocks": Term("blocks", "of KV in use there", "state->loads->active_blocks"),
    "decode_blocks": Term(
        "blocks",
        "of KV in use with this request, where shared ones count once",
        "decode_blocks_of(asked, state)",
        shown=".1f",
    ),
    "active_requests": Term(
        "requests", "booked there and not finished", "state->loads->active_requests"
    ),
    "outstanding_tokens": Term("tokens", "their prompts", "state->loads->prompt_tokens"),
    "waiting_requests": Term("requests", "in the engine's queue", "seen->waiting", "seen"),
    "cache_usage": Term("0 to 1", "used share of its KV cache", "seen->usage", "seen", ".3f"),
    "capacity_blocks": Term("blocks", "of KV that it has, 0: unknown", "state->capacity_blocks"),
    "cached_blocks": Term("blocks", "entries of the index for it", "seen->cached", "seen"),
    "wait_ms": Term(
        "ms",
        "until its backlog, `prefill_tokens`, is prefilled",
        "wait_ms_of(asked, state)",
        shown=".1f",
    ),
    "ms_per_token": Term(
        "ms", "learned time of an uncached token", "rate_of(asked, state)", shown=".4f"
    ),
    "step_tokens": Term(
        "tokens", "that a step's fixed time is worth", "asked->step_tokens", "request"
    ),
    "arrivals_per_ms": Term(
        "requests a ms",
        "a worker's usual part of all requests",
        "asked->arrivals_per_ms",
        "request",
        ".4f",
    ),
    "memory_wait_ms": Term(
        "ms",
        "until there is room for the request, 0 while there is",
        "memory_wait_ms_of(asked, state)",
        shown=".1f",
    ),
    "failure_share": Term(
        "0 to 1", "of requests there that fail beyond the usual share", "state->failure_share"
    ),
    "failure_ms": Term(
        "ms",
        "that this request loses by that on average: until it fails, and its prefill elsewhere",
        "failure_ms_of(asked, state)",
        shown=".1f",
    ),
    "lost_tokens": Term(
        "tokens",
        "of the overlap that are expected to be evicted before the request's turn comes; "
        "`confidence` is the share of the rest",
        "lost_tokens_of(asked, state)",
        shown=".1f",
    ),
    "slow_ms": Term(
        "ms",
        "what the answer's output takes longer there than load explains: beyond three times the "
        "usual worker's time per token, 0 elsewhere",
        "slow_ms_of(asked, state)",
        shown=".1f",
    ),
    "fetch_ms": Term(
        "ms",
        "to bring cached blocks to the device from slower memory, or from the cache of the worker "
        "`fetch_from`; `uncached_tokens` counts it as the tokens computed meanwhile",
        "prepares(asked, state) ? state->fetch_ms : 0.0",
    ),
    "fetch_from": Term("", "name of the worker whose cache it would fetch from", kind="given"),
    "adapter_ms": Term(
        "ms",
        "to load the request's LoRA adapter there first, 0 where it is loaded or that is unknown; "
        "`uncached_tokens` counts what is prefilled in that time",
        "prepares(asked, state) ? state->adapter_ms : 0.0",
    ),
}
"""The fields of `Candidate`, in their order. kvmesh/native/insight/terms_table.h and a table in
docs/operate/tuning.md are made of them by `make config`.
"""


class CandidateTerms(msgspec.Struct, frozen=True, gc=False):
    """One worker as this request sees it; the fields are `TERMS`. Load is without this request, but
    for `decode_blocks`; `cache_usage`, `waiting_requests` and `capacity_blocks` come from the
    engine where it reports, else from bookings.
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


assert CandidateTerms.__struct_fields__ == (*TERMS,), "terms and fields are in one order"


class Candidate(CandidateTerms, frozen=True, gc=False):
    """What a formula prices: a worker's terms."""

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
    name: term.shown for name, term in TERMS.items() if term.shown
} | {
    "overlap_score_weight": ".1f",
    "overlap_score": ".3f",
    "prefill_blocks": ".1f",
    "own_ms": ".1f",
    "lost_ms": ".1f",
    "failure_tokens": ".1f",
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
