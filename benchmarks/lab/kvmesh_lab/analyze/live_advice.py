"""What follows from the last minutes of a running router or mesh, in words."""

from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh.bounds import counted
from kvmesh_lab.analyze.advice import WORTHWHILE
from kvmesh_lab.analyze.weight_advice import (
    MANY_BLOCKS,
    Advice,
    WorkerLoad,
    advise_spread,
    usage_advice,
)

DRIFT: Final = 0.05
"""Predictions further from what engines report, as a share of prompt tokens, are not right."""

FULL: Final = 0.95
HOT: Final = 0.25
ENOUGH_REQUESTS: Final = 20


class LivePrefix(msgspec.Struct, frozen=True):
    """A beginning that requests shared: of `share` (0..1) of a bucket, held by `holders` workers.

    It goes on from one of `parent_tokens`, 0 for none.
    """

    key: str
    bucket: str
    tokens: int
    parent_tokens: int
    share: float
    cached_share: float
    holders: int


class LiveWorker(msgspec.Struct, frozen=True):
    """One worker: how full its KV cache is, 0..1 (None: not told), and how far it is trusted.

    `blocks` are those of its KV cache, 0: not told; `requests` are open there.
    """

    name: str
    usable: bool
    trust: str
    usage: float | None
    bucket: str = ""
    blocks: int = 0
    requests: int = 0


class LiveTraffic(msgspec.Struct, frozen=True):
    """The last minutes. Shares are of prompt tokens, 0..1, None: nothing was reported.

    `saved` of all prompt tokens were not computed since they were cached, `saved_tokens` worth
    `saved_s` of engine time: by the engines' word but for the share `predicted_alone` of them,
    whose engines say nothing. The other three shares are of the same `own`
    requests, those that the mesh's own policy routed by cache: held against each other they say
    something, also after an A/B test, whose `overridden` requests named another policy or worker.
    The core prefix is made of the beginnings that requests shared: `core_breadth` of them,
    `core_depth` tokens deep on average over all requests.
    """

    requests: int
    overridden: int
    own: int
    saved: float | None
    saved_tokens: int
    saved_s: float
    predicted_alone: float | None
    cached: float | None
    predicted: float | None
    round_robin: float | None
    core_breadth: int
    core_depth: float


def core_depth(prefixes: Sequence[LivePrefix]) -> float:
    """Return how many tokens of a request's beginning others share: the mean over its bucket's
    requests, then over buckets.
    """
    buckets = {one.bucket for one in prefixes}
    shared = sum(one.share * (one.tokens - one.parent_tokens) for one in prefixes)
    return shared / max(1, len(buckets))


def advise_live(
    traffic: LiveTraffic, workers: Sequence[LiveWorker], prefixes: Sequence[LivePrefix]
) -> list[Advice]:
    """Return what to do about a running mesh, the weightiest first; nothing when all is well."""
    found = [
        Advice(
            f"look at worker {one.name}: kvmesh doctor --engine-url URL",
            f"its trust is {one.trust}: it is routed by what was sent there, not by its events",
        )
        for one in workers
        if one.usable and one.trust not in {"exact", "estimated", "approx"}
    ]
    if traffic.requests < ENOUGH_REQUESTS:
        few = f"only {counted(traffic.requests, 'request')} in the last minutes"
        return [*found, Advice("wait for more traffic", few)]
    found += _comparison(traffic)
    found += _space(workers) + _capacity(workers) + _spread(workers)
    found += [
        Advice(
            "leave it, or add a worker that may hold it too",
            f"the prefix {one.key} of {one.tokens:,} tokens begins {one.share:.0%} of bucket "
            f"{one.bucket}'s requests and one worker alone holds it",
        )
        for one in prefixes
        if one.share >= HOT and one.holders == 1
    ]
    return found


def _comparison(traffic: LiveTraffic) -> list[Advice]:
    """Hold cached against predicted and round robin, where enough requests tell all three."""
    if traffic.own >= ENOUGH_REQUESTS:
        return _predictions(traffic) + _gain(traffic)
    if not traffic.overridden:
        return []
    return [
        Advice(
            "wait for requests that name no other policy (x-kvmesh-router-mode and others)",
            f"{traffic.overridden} of {traffic.requests} requests did, as those of an A/B test do: "
            "they say nothing of the mesh's own policy, which the report of the test does",
        )
    ]


def _predictions(traffic: LiveTraffic) -> list[Advice]:
    if traffic.cached is None or traffic.predicted is None:
        return []
    drift = traffic.predicted - traffic.cached
    if abs(drift) <= DRIFT:
        return []
    return [
        Advice(
            "kvmesh doctor for each engine; check --tokenizer and --kv-cache-block-size",
            f"routers predicted {traffic.predicted:.1%} of prompt tokens cached, engines report "
            f"{traffic.cached:.1%}",
        )
    ]


def _gain(traffic: LiveTraffic) -> list[Advice]:
    if traffic.cached is None or traffic.round_robin is None:
        return []
    gain = traffic.cached - traffic.round_robin
    if gain >= WORTHWHILE:
        return []
    return [
        Advice(
            "kvmesh analyze TRACE of this load, to see what could be reused at all",
            f"engines report {traffic.cached:.1%} cached, round robin would have found "
            f"{traffic.round_robin:.1%}: routing by cache gains {gain:.1%} here",
        )
    ]


def _capacity(workers: Sequence[LiveWorker]) -> list[Advice]:
    """Say that cache usage needs little weight where the smallest cache is vast."""
    blocks = [one.blocks for one in workers if one.usable and one.blocks]
    least = min(blocks, default=0)
    return [usage_advice(least)] if least > MANY_BLOCKS else []


def _spread(workers: Sequence[LiveWorker]) -> list[Advice]:
    found: list[Advice] = []
    for bucket in sorted({one.bucket for one in workers}):
        mine = [one for one in workers if one.usable and one.bucket == bucket]
        found += advise_spread(bucket, [WorkerLoad(one.name, one.requests) for one in mine])
    return found


def _space(workers: Sequence[LiveWorker]) -> list[Advice]:
    full = [one.name for one in workers if one.usage is not None and one.usage >= FULL]
    if not full:
        return []
    return [
        Advice(
            "more KV cache or fewer requests at once",
            f"running requests fill {FULL:.0%} and more of the KV cache of {', '.join(full)}: "
            "prefixes are evicted to make room",
        )
    ]
