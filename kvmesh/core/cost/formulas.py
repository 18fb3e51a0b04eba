"""Cost formulas by name.

A formula that is arithmetic is one `Expression`, the only place where it is written: what Python
computes, what is printed and what the compiled core runs are all made of its text. One that
decides between cases is a `Rule`: a function, and a line of its own.

Some formulas are to be maximised: they are logits (larger is better), the rest are costs.
All terms are finite for all finite inputs; division is by quantities made >= 1 first.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar, cast

import msgspec

from kvmesh.core.cost.expression import Expression, Function
from kvmesh.core.cost.own import OwnFormula
from kvmesh.core.cost.terms import Candidate, Fleet
from kvmesh.core.cost.weight_sets import (
    DynamoWeights,
    OverlapBlocksWeights,
    OverlapLoadWeights,
    OverlapUsageWaitingWeights,
    PrebleWeights,
    PredictedTimeWeights,
    PrefillDecodeWeights,
    SglangWeights,
)
from kvmesh.core.cost.weights import Weights, WeightTable

_FIELD: Final = re.compile(r"\{[cfw]\.(\w+)(?::[^}]*)?\}")


_Own = TypeVar("_Own", bound=Weights)


class Rule:
    """A formula that decides between cases, by its own `weights`. `shown` writes its terms out with
    their numbers: `{c.field}`, `{f.}`, `{w.}`; the compiled core does not run it.
    """

    def __init__(
        self, function: Callable[[Candidate, Fleet, _Own], float], shown: str, weights: type[_Own]
    ) -> None:
        self.function = cast("Function", function)
        self.weights: type[Weights] = weights
        self.text = _FIELD.sub(r"\1", shown)
        self._shown = shown

    def line(self, c: Candidate, f: Fleet, w: Weights) -> str:
        """Return the terms with this candidate's numbers."""
        return self._shown.format(c=c, f=f, w=w)


LEARNED_MARGIN: Final = 0.05
"""Learned speeds of equal workers differ by some per cent: the luckiest must not get all."""


class Cost(msgspec.Struct, frozen=True):
    """A named formula; `weights` are those it has.

    Costs within `margin` (a share of the least) are equal, because what went into them is not
    known better; only for costs that are never negative. `failure`, in the formula's unit, is added
    to what the published formula gives wherever requests fail.
    """

    name: str
    formula: Expression | Rule | OwnFormula
    failure: Expression
    weights: WeightTable
    maximise: bool = False
    margin: float = 0.0


def make_cost(
    name: str,
    formula: Expression | Rule,
    failure: Expression,
    *,
    maximise: bool = False,
    margin: float = 0.0,
) -> Cost:
    """Return a named formula with the weights that it is written with."""
    return Cost(name, formula, failure, WeightTable(formula.weights), maximise, margin)


def score_of(cost: Cost, c: Candidate, f: Fleet, w: Weights) -> float:
    """Return what the formula gives a candidate, the price of failure included."""
    score = cost.formula.function(c, f, w)
    return with_failure(cost, score, c, f, w) if c.failure_share else score


def scores_of(
    cost: Cost, candidates: Sequence[Candidate], fleet: Fleet, weights: Weights
) -> list[float] | None:
    """Return what the formula gives each candidate, failures included; None if it is one's own and
    failed.
    """
    formula = cost.formula
    if isinstance(formula, OwnFormula):
        scores = formula.scores(candidates, fleet, weights)
        if scores is None:
            return None
    else:
        function = formula.function
        scores = [function(one, fleet, weights) for one in candidates]
    return [
        with_failure(cost, score, one, fleet, weights) if one.failure_share else score
        for score, one in zip(scores, candidates, strict=True)
    ]


def with_failure(cost: Cost, score: float, c: Candidate, f: Fleet, w: Weights) -> float:
    """Return a score with the price of failure."""
    failure = cost.failure.function(c, f, w)
    return score - failure if cost.maximise else score + failure


def dynamo(c: Candidate, f: Fleet, w: DynamoWeights) -> float:
    """Return Dynamo 1.6's cost: credits for cached blocks off the raw prefill, decode, requests.

    Source: Dynamo 1.6 lib/kv-router, selector/default.rs.
    """
    return (
        w.overlap_score_weight * dynamo_prefill_blocks(c, f, w)
        + c.decode_blocks
        + w.decode_active_request_weight * c.active_requests
    )


def dynamo_prefill_blocks(c: Candidate, f: Fleet, w: DynamoWeights) -> float:
    """Return prefill backlog plus prompt minus decayed credits, in blocks, at least 0."""
    excess = (c.prefill_tokens - f.min_prefill_tokens) / max(1, c.prompt_tokens)
    decay = 1.0 / (1.0 + w.overlap_score_credit_decay * max(0.0, excess))
    raw = (c.prefill_tokens + c.prompt_tokens) / c.block_size
    return max(0.0, raw - w.overlap_score_credit * decay * c.overlap_blocks)


def preble(c: Candidate, f: Fleet, w: PrebleWeights) -> float:
    """Return Preble's E2 in prefilled tokens: exploit a prefix longer than the rest, else explore.

    Exploit: the least loaded of the longest match. Explore: load + evicted + own prefill.
    Source: Preble, arXiv 2407.00023, algorithm 1 (without its background rebalancing).
    """
    load = c.prefill_tokens + w.outstanding_weight * c.outstanding_tokens
    if 2 * f.max_overlap_blocks * c.block_size > c.prompt_tokens:
        return load if c.overlap_blocks == f.max_overlap_blocks else 1.0 + f.total_work + load
    needed = c.request_blocks - c.overlap_blocks
    evicted = max(0, c.cached_blocks + needed - c.capacity_blocks) if c.capacity_blocks else 0
    return load + min(evicted, needed) * c.block_size + c.uncached_tokens


def sglang(c: Candidate, f: Fleet, w: SglangWeights) -> float:
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


_FAILURE_MS: Final = Expression("failure_ms")
_FAILURE_TOKENS: Final = Expression("failure_tokens")
_FAILURE_BLOCKS: Final = Expression("failure_tokens / block_size")
_FAILURE_QUEUE: Final = Expression("failure_tokens * (active_requests + 1)")
_FAILURE_SHARE: Final = Expression("failure_share")

PREFILL_DECODE: Final = make_cost(
    "prefill-decode",
    Expression(
        "overlap_score_weight * prefill_blocks + decode_blocks", weights=PrefillDecodeWeights
    ),
    _FAILURE_BLOCKS,
)
"""Source: Dynamo 0.4-1.0, docs/architecture/kv_cache_routing."""

PREDICTED_TIME: Final = make_cost(
    "predicted-time",
    Expression(
        "(wait_ms + overlap_score_weight * own_ms * min(2, 1 + followers * arrivals_per_ms *"
        " wait_ms) + doubt * lost_ms) * (1 + contention * active_requests + followers *"
        " arrivals_per_ms * overlap_score_weight * own_ms)"
        " + decode_weight * ms_per_token * outstanding_tokens + memory_wait_ms + slow_ms",
        weights=PredictedTimeWeights,
    ),
    _FAILURE_MS,
    margin=LEARNED_MARGIN,
)
"""The default, the predicted price there in ms:
`(W + P min(2, 1 + f r W) + e a l)(1 + g n + f r P) + d a T + M + S`.

W wait until the prefill backlog is done; own prefill `P = k a (u + s)`: a ms per uncached token, u
own uncached tokens, s a step's fixed time in tokens; l cached ones expected to be evicted before,
of which e counts: wherever it goes, others evict there; n requests there (each slowed by this
prefill), r requests a ms to come (those that come within W + P wait P longer; those within W make P
count twice at most: with more the longest waits would be evened out, and nobody be in time); T
their prompt tokens, M wait for memory, S what the answer takes longer there than load explains.
Minimising the own TTFT alone loses: the price is what a prefill does to the others.
"""

LMETRIC: Final = make_cost(
    "lmetric",
    Expression("(prefill_tokens + uncached_tokens) * (active_requests + 1)"),
    _FAILURE_QUEUE,
)
"""(Queued + own uncached tokens) x (active requests + 1). Source: arXiv 2603.15202."""

OVERLAP_USAGE_WAITING: Final = make_cost(
    "overlap-usage-waiting",
    Expression(
        "overlap_score_weight * overlap_score - gpu_cache_usage_weight * cache_usage"
        " - waiting_requests_weight * waiting_requests / max(1, max_waiting)",
        weights=OverlapUsageWaitingWeights,
    ),
    _FAILURE_SHARE,
    maximise=True,
)
"""Source: Dynamo 0.1-0.3, lib/llm kv_router scheduler."""

OVERLAP_LOAD: Final = make_cost(
    "overlap-load",
    Expression(
        "overlap_score * weight_cache - cache_usage * weight_load",
        {"overlap_score": ".2f", "cache_usage": ".2f"},
        OverlapLoadWeights,
    ),
    _FAILURE_SHARE,
    maximise=True,
)
"""`cache_hit_rate * weight_cache - worker_load * weight_load`: 15 % cached at 30 % load is -0.15,
50 % at 50 % is 0.
"""

OVERLAP_BLOCKS: Final = make_cost(
    "overlap-blocks",
    Expression(
        "overlap_blocks * overlap_score_weight - cache_usage * weight_load",
        {"cache_usage": ".2f"},
        OverlapBlocksWeights,
    ),
    _FAILURE_BLOCKS,
    maximise=True,
)
"""`KV_overlap_score * weight - worker_load`, the overlap in blocks: 25 of them at 30 % load are
24.7, and 22.0 where a full cache counts for ten blocks.
"""

DYNAMO: Final = make_cost(
    "dynamo",
    Rule(
        dynamo,
        "{w.overlap_score_weight:.1f} * max(({c.prefill_tokens} + {c.prompt_tokens}) /"
        " {c.block_size} - {w.overlap_score_credit} * {c.overlap_blocks}, 0) + {c.decode_blocks}"
        " + {w.decode_active_request_weight} * {c.active_requests}",
        DynamoWeights,
    ),
    _FAILURE_BLOCKS,
)

PREBLE: Final = make_cost(
    "preble",
    Rule(
        preble,
        "work {c.prefill_tokens} + {w.outstanding_weight} * {c.outstanding_tokens},"
        " own {c.uncached_tokens}, longest match {f.max_overlap_blocks}",
        PrebleWeights,
    ),
    _FAILURE_TOKENS,
)

SGLANG: Final = make_cost(
    "sglang",
    Rule(
        sglang,
        "match {c.overlap_blocks} of {c.request_blocks}, {c.active_requests} requests,"
        " tree {c.cached_blocks}",
        SglangWeights,
    ),
    _FAILURE_TOKENS,
)

COSTS: Final[Mapping[str, Cost]] = {
    cost.name: cost
    for cost in (
        PREFILL_DECODE,
        PREDICTED_TIME,
        DYNAMO,
        LMETRIC,
        PREBLE,
        SGLANG,
        OVERLAP_USAGE_WAITING,
        OVERLAP_LOAD,
        OVERLAP_BLOCKS,
    )
}
"""The published formulas, by name."""


def formula_line(cost: Cost, score: float, c: Candidate, f: Fleet, w: Weights) -> str:
    """Return the field's debug line: `Formula for worker_1: 125.3 = … (cached_blocks: 15)`."""
    line = cost.formula.line(c, f, w)
    number = f"{score:.3f}" if cost.maximise else f"{score:.1f}"
    if c.failure_share:
        sign = "-" if cost.maximise else "+"
        line += f" {sign} {cost.failure.function(c, f, w):.1f} ({c.failure_share:.0%} fail)"
    if c.adapter_ms:
        line += f" (of it {c.adapter_ms:.0f} ms to load the adapter)"
    return f"Formula for {c.worker}: {number} = {line} (cached_blocks: {c.overlap_blocks})"
