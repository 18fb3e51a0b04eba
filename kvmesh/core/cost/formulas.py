"""Cost formulas by name: pure functions of what is known about one worker and the fleet.

A formula names its direction: `maximise` ones are logits (larger is better), the rest are costs.
All terms are finite for all finite inputs; division is by quantities made >= 1 first.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import ConfigError

LEAST_MS_PER_TOKEN: Final = 1e-4
"""What is divided by a learned time stays finite."""


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

    @property
    def failure_tokens(self) -> float:
        """Return how many tokens are prefilled in `failure_ms`."""
        return self.failure_ms / max(self.ms_per_token, LEAST_MS_PER_TOKEN)

    @property
    def prefill_blocks(self) -> float:
        """Return prefill work queued there plus this request's own, in blocks."""
        return (self.prefill_tokens + self.uncached_tokens) / self.block_size

    @property
    def own_ms(self) -> float:
        """Return how long this request's own prefill takes there, ms."""
        return self.ms_per_token * (self.uncached_tokens + self.step_tokens)

    @property
    def overlap_score(self) -> float:
        """Return the cached share of the prompt, 0..1."""
        cached = self.prompt_tokens - self.uncached_tokens
        return cached / self.prompt_tokens if self.prompt_tokens > 0 else 0.0


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


class Weights(msgspec.Struct, frozen=True):
    """The numbers in the formulas, named as the field names them.

    `overlap_score_weight` multiplies prefill work (Dynamo's prefill_load_scale);
    `overlap_score_credit` is what a cached block is worth, `overlap_score_credit_decay` how fast
    that fades on a worker with more backlog than the least; `decode_active_request_weight` adds
    block-equivalents per active request. `contention` (g) is how much each request already there
    makes a prefill dearer, `followers` (f) each that will come until it is done; `decode_weight`
    (d) prices outstanding prompt tokens in prefilled ones, `outstanding_weight` for Preble's cost.
    `cache_threshold`, `balance_abs_threshold`, `balance_rel_threshold` are SGLang's.
    """

    overlap_score_weight: float = 1.0
    overlap_score_credit: float = 1.0
    overlap_score_credit_decay: float = 0.0
    decode_active_request_weight: float = 0.0
    contention: float = 0.4
    followers: float = 0.5
    decode_weight: float = 0.05
    outstanding_weight: float = 0.05
    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5


DEFAULT_WEIGHTS: Final = Weights()

LEARNED_MARGIN: Final = 0.05
"""Learned speeds of equal workers differ by some per cent: the luckiest must not get all."""

Formula = Callable[[Candidate, Fleet, Weights], float]

Failure = Callable[[Candidate], float]
"""What failing costs a candidate, in the unit of a formula."""


class Cost(msgspec.Struct, frozen=True):
    """A named formula. `expression` writes it out with its numbers: `{c.field}`, `{f.}`, `{w.}`.

    Costs within `margin` (a share of the least) are equal, because what went into them is not
    known better; only for costs that are never negative. `failure` is added to what the published
    formula gives wherever requests fail.
    """

    name: str
    formula: Formula
    expression: str
    maximise: bool = False
    margin: float = 0.0
    failure: Failure = attrgetter("failure_ms")


def score_of(cost: Cost, c: Candidate, f: Fleet, w: Weights) -> float:
    """Return what the formula gives a candidate, the price of failure included."""
    score = cost.formula(c, f, w)
    if not c.failure_share:
        return score
    return score - cost.failure(c) if cost.maximise else score + cost.failure(c)


def failure_blocks(c: Candidate) -> float:
    """Return the price of failure in blocks to prefill."""
    return c.failure_tokens / c.block_size


def failure_queue(c: Candidate) -> float:
    """Return the price of failure as LMetric weighs tokens."""
    return c.failure_tokens * (c.active_requests + 1)


def outstanding_work(candidate: Candidate, weights: Weights) -> float:
    """Return a worker's load in prefilled tokens: prefill backlog plus the price of decoding."""
    return candidate.prefill_tokens + weights.outstanding_weight * candidate.outstanding_tokens


def survey(candidates: Sequence[Candidate], weights: Weights) -> Fleet:
    """Return what the formulas may know about `candidates` (at least one) as a whole."""
    requests = [one.active_requests for one in candidates]
    price = weights.outstanding_weight
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


def overlap_usage_waiting(c: Candidate, f: Fleet, w: Weights) -> float:  # noqa: ARG001 - one signature for all formulas
    """Return `2 * overlap_score - gpu_cache_usage - normalized_waiting`.

    Source: Dynamo 0.1-0.3, lib/llm kv_router scheduler.
    """
    return 2.0 * c.overlap_score - c.cache_usage - c.waiting_requests / max(1, f.max_waiting)


def overlap_load(c: Candidate, f: Fleet, w: Weights) -> float:  # noqa: ARG001 - one signature for all formulas
    """Return `overlap_score - load`: 15 % cached at 30 % load is -0.15, 50 % at 50 % is 0."""
    return c.overlap_score - c.cache_usage


def prefill_decode(c: Candidate, f: Fleet, w: Weights) -> float:  # noqa: ARG001 - one signature for all formulas
    """Return `overlap_score_weight * prefill_blocks + decode_blocks`.

    Source: Dynamo 0.4-1.0, docs/architecture/kv_cache_routing.
    """
    return w.overlap_score_weight * c.prefill_blocks + c.decode_blocks


def dynamo(c: Candidate, f: Fleet, w: Weights) -> float:
    """Return Dynamo 1.6's cost: credits for cached blocks off the raw prefill, decode, requests.

    Source: Dynamo 1.6 lib/kv-router, selector/default.rs.
    """
    return (
        w.overlap_score_weight * dynamo_prefill_blocks(c, f, w)
        + c.decode_blocks
        + w.decode_active_request_weight * c.active_requests
    )


def dynamo_prefill_blocks(c: Candidate, f: Fleet, w: Weights) -> float:
    """Return prefill backlog plus prompt minus decayed credits, in blocks, at least 0."""
    excess = (c.prefill_tokens - f.min_prefill_tokens) / max(1, c.prompt_tokens)
    decay = 1.0 / (1.0 + w.overlap_score_credit_decay * max(0.0, excess))
    raw = (c.prefill_tokens + c.prompt_tokens) / c.block_size
    return max(0.0, raw - w.overlap_score_credit * decay * c.overlap_blocks)


def lmetric(c: Candidate, f: Fleet, w: Weights) -> float:  # noqa: ARG001 - one signature for all formulas
    """Return (queued + own uncached tokens) x (active requests + 1). Source: arXiv 2603.15202."""
    return float(c.prefill_tokens + c.uncached_tokens) * (c.active_requests + 1)


def preble(c: Candidate, f: Fleet, w: Weights) -> float:
    """Return Preble's E2 in prefilled tokens: exploit a prefix longer than the rest, else explore.

    Exploit: the least loaded of the longest match. Explore: load + evicted + own prefill.
    Source: Preble, arXiv 2407.00023, algorithm 1 (without its background rebalancing).
    """
    load = outstanding_work(c, w)
    if 2 * f.max_overlap_blocks * c.block_size > c.prompt_tokens:
        return load if c.overlap_blocks == f.max_overlap_blocks else 1.0 + f.total_work + load
    needed = c.request_blocks - c.overlap_blocks
    evicted = max(0, c.cached_blocks + needed - c.capacity_blocks) if c.capacity_blocks else 0
    return load + min(evicted, needed) * c.block_size + c.uncached_tokens


def sglang(c: Candidate, f: Fleet, w: Weights) -> float:
    """Return SGLang's cache_aware as a cost: shortest queue when unbalanced, else best match.

    A best match under `cache_threshold` sends the request to the smallest tree.
    Source: sglang sgl-router, policies/cache_aware.rs.
    """
    unbalanced = (
        f.max_requests - f.min_requests > w.balance_abs_threshold
        and f.max_requests > f.min_requests * w.balance_rel_threshold
    )
    if unbalanced:
        return float(c.active_requests)
    best_match = f.max_overlap_blocks / max(1, c.request_blocks)
    return float(-c.overlap_blocks if best_match > w.cache_threshold else c.cached_blocks)


def predicted_time(c: Candidate, f: Fleet, w: Weights) -> float:  # noqa: ARG001 - one signature for all formulas
    """Return the predicted price there in ms: `(W + P)(1 + g n + f r P) + d a T + M`.

    W wait until the prefill backlog is done; own prefill `P = k a (u + s)`: a ms per uncached
    token, u own uncached tokens, s a step's fixed time in tokens; n requests there (each slowed by
    this prefill), r requests a ms to come (those that come within W + P wait P longer); T their
    prompt tokens, M wait for memory.
    Minimising the own TTFT alone loses: the price is what a prefill does to the others.
    """
    own = w.overlap_score_weight * c.ms_per_token * (c.uncached_tokens + c.step_tokens)
    delayed = 1.0 + w.contention * c.active_requests + w.followers * c.arrivals_per_ms * own
    slowed = (c.wait_ms + own) * delayed
    return slowed + w.decode_weight * c.ms_per_token * c.outstanding_tokens + c.memory_wait_ms


_COSTS: Final = (
    Cost(
        "prefill-decode",
        prefill_decode,
        "{w.overlap_score_weight:.1f} * {c.prefill_blocks:.1f} + {c.decode_blocks:.1f}",
        failure=failure_blocks,
    ),
    Cost(
        "predicted-time",
        predicted_time,
        "({c.wait_ms:.1f} + {w.overlap_score_weight:.1f} * {c.own_ms:.1f}) *"
        " (1 + {w.contention} * {c.active_requests} + {w.followers} * {c.arrivals_per_ms:.4f} *"
        " {w.overlap_score_weight:.1f} * {c.own_ms:.1f}) + {w.decode_weight} *"
        " {c.ms_per_token:.4f} * {c.outstanding_tokens} + {c.memory_wait_ms:.1f}",
        margin=LEARNED_MARGIN,
    ),
    Cost(
        "dynamo",
        dynamo,
        "{w.overlap_score_weight:.1f} * max(({c.prefill_tokens} + {c.prompt_tokens}) /"
        " {c.block_size} - {w.overlap_score_credit} * {c.overlap_blocks}, 0) + {c.decode_blocks}"
        " + {w.decode_active_request_weight} * {c.active_requests}",
        failure=failure_blocks,
    ),
    Cost(
        "lmetric",
        lmetric,
        "({c.prefill_tokens} + {c.uncached_tokens}) * ({c.active_requests} + 1)",
        failure=failure_queue,
    ),
    Cost(
        "preble",
        preble,
        "work {c.prefill_tokens} + {w.outstanding_weight} * {c.outstanding_tokens},"
        " own {c.uncached_tokens}, longest match {f.max_overlap_blocks}",
        failure=attrgetter("failure_tokens"),
    ),
    Cost(
        "sglang",
        sglang,
        "match {c.overlap_blocks} of {c.request_blocks}, {c.active_requests} requests,"
        " tree {c.cached_blocks}",
        failure=attrgetter("failure_tokens"),
    ),
    Cost(
        "overlap-usage-waiting",
        overlap_usage_waiting,
        "2.0 * {c.overlap_score:.3f} - {c.cache_usage:.3f} - {c.waiting_requests} /"
        " {f.max_waiting}",
        maximise=True,
        failure=attrgetter("failure_share"),
    ),
    Cost(
        "overlap-load",
        overlap_load,
        "{c.overlap_score:.2f} - {c.cache_usage:.2f}",
        maximise=True,
        failure=attrgetter("failure_share"),
    ),
)

COSTS: Final[Mapping[str, Cost]] = {cost.name: cost for cost in _COSTS}
"""Every formula mode `kv` may use, by name."""


def cost_named(name: str) -> Cost:
    """Return the formula called `name`. Raises `ConfigError`."""
    try:
        return COSTS[name]
    except KeyError:
        known = ", ".join(COSTS)
        raise ConfigError(f"kv_cost {name!r} is unknown; use one of {known}") from None


def formula_line(cost: Cost, score: float, c: Candidate, f: Fleet, w: Weights) -> str:
    """Return the field's debug line: `Formula for worker_1: 125.3 = … (cached_blocks: 15)`."""
    expression = cost.expression.format(c=c, f=f, w=w)
    number = f"{score:.3f}" if cost.maximise else f"{score:.1f}"
    if c.failure_share:
        sign = "-" if cost.maximise else "+"
        expression += f" {sign} {cost.failure(c):.1f} ({c.failure_share:.0%} fail)"
    return f"Formula for {c.worker}: {number} = {expression} (cached_blocks: {c.overlap_blocks})"
