"""What the weights of cost formulas should be for a load and its caches.

Source: NVIDIA Dynamo, KV Router Performance Tuning, the guidelines of its section 'Tuning'.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh_lab.analyze.reuse import Reuse

MANY_BLOCKS: Final = 1_000_000
"""A cache of more KV blocks is unlikely to be exhausted."""

MUCH_SMALLER: Final = 4
"""A working set is much smaller than caches that hold it so many times."""

LOW_HITS: Final = 0.2
SHALLOW: Final = 0.2
DIVERSE_FAMILIES: Final = 50
DIVERSE_SHARE: Final = 0.05
PREFILL_HEAVY: Final = 8.0
DECODE_HEAVY: Final = 1.0
"""Uncached prompt tokens for each output token, from and up to which one phase is nearly all."""

UNEVEN: Final = 2.5
BUSY: Final = 4.0
"""Requests a worker has on average before their spread says anything."""

LOWER_USAGE: Final = "kv:overlap-usage-waiting:gpu_cache_usage_weight=0.25"
LOWER_OVERLAP: Final = "kv:overlap-usage-waiting:overlap_score_weight=1"
MORE_OVERLAP: Final = "kv:overlap-usage-waiting:overlap_score_weight=3"


class Advice(msgspec.Struct, frozen=True):
    """One recommendation: what to set or do, and why, with the figures."""

    what: str
    why: str


class FleetSize(msgspec.Struct, frozen=True):
    """The workers to advise for: how many, and the KV cache of each in tokens (0: unknown), in
    blocks of `block_size`.
    """

    workers: int
    cache_tokens: int
    block_size: int = 16

    @property
    def blocks(self) -> int:
        """Return the KV blocks of each worker; 0: unknown."""
        return self.cache_tokens // self.block_size


class WorkerLoad(msgspec.Struct, frozen=True):
    """One worker's open requests."""

    name: str
    requests: int


def advise_weights(reuse: Reuse, fleet: FleetSize, working_set: int) -> list[Advice]:
    """Return how to weigh cache usage, overlap and load; `working_set` in tokens."""
    return [*_usage(fleet, working_set), _overlap(reuse), *_balance(reuse)]


def usage_advice(blocks: int, why_small: str = "") -> Advice:
    """Return how to weigh cache usage in workers of so many KV blocks; `why_small` says why the
    load needs little of them.
    """
    reason = why_small
    if blocks > MANY_BLOCKS:
        reason = f"each worker has {blocks:,} KV blocks, more than a million"
    if reason:
        return Advice(
            f"a low weight on cache usage: {LOWER_USAGE} (1 unless set)",
            f"{reason}: they are unlikely to be exhausted, so overlap and waiting requests should "
            "decide. Formulas that weigh it: overlap-usage-waiting (gpu_cache_usage_weight) and "
            "overlap-load (weight_load); predicted-time prices memory only where it runs short",
        )
    return Advice(
        "the weight on cache usage as it is: kv:overlap-usage-waiting:gpu_cache_usage_weight=1",
        f"each worker has {blocks:,} KV blocks, less than a million: they can be exhausted",
    )


def _usage(fleet: FleetSize, working_set: int) -> list[Advice]:
    if not fleet.cache_tokens:
        return []
    have = fleet.workers * fleet.cache_tokens
    small = have >= MUCH_SMALLER * working_set
    why = f"a cache of {working_set:,} tokens would do, the workers have {have:,}" if small else ""
    return [usage_advice(fleet.blocks, why)]


def _overlap(reuse: Reuse) -> Advice:
    mean_prompt = reuse.prompt_tokens / reuse.requests
    depth = reuse.core_depth.mean if reuse.core_depth is not None else 0.0
    figures = (
        f"one unlimited cache would hit {reuse.unlimited:.1%}; the core prefix is {depth:,.0f} of "
        f"{mean_prompt:,.0f} prompt tokens deep"
    )
    if reuse.unlimited < LOW_HITS or depth < SHALLOW * mean_prompt:
        return Advice(
            f"a low weight on overlap: {LOWER_OVERLAP} (2 unless set), --kv-overlap-score-weight "
            "below 1",
            f"{figures}: little is shared, so load matters more. predicted-time needs nothing, it "
            "counts what is not cached in ms",
        )
    largest = max((one.share for one in reuse.families), default=0.0)
    if len(reuse.families) >= DIVERSE_FAMILIES and largest < DIVERSE_SHARE:
        return Advice(
            f"a high weight on overlap: {MORE_OVERLAP} (2 unless set)",
            f"{figures}; {len(reuse.families):,} families begin differently, the largest has "
            f"{largest:.1%}: a prefix missed is found nowhere else",
        )
    return Advice("the weight on overlap as it is: --kv-overlap-score-weight 1", figures)


def _balance(reuse: Reuse) -> list[Advice]:
    uncached = reuse.prompt_tokens * (1.0 - reuse.unlimited)
    if reuse.output_tokens * PREFILL_HEAVY <= uncached:
        return [
            Advice(
                "prefill-heavy: try --kv-overlap-score-weight 2 against 1 with `kvmesh simulate "
                "--policy`",
                f"{uncached / reuse.requests:,.0f} tokens to prefill and "
                f"{reuse.output_tokens / reuse.requests:,.0f} to decode a request at best: TTFT is "
                "made by what is prefilled",
            )
        ]
    if uncached <= reuse.output_tokens * DECODE_HEAVY:
        return [
            Advice(
                "decode-heavy: try --kv-overlap-score-weight 0.5 against 1 with `kvmesh simulate "
                "--policy`",
                f"{uncached / reuse.requests:,.0f} tokens to prefill and "
                f"{reuse.output_tokens / reuse.requests:,.0f} to decode a request at best: even "
                "load counts for more than hits",
            )
        ]
    return []


def advise_spread(bucket: str, workers: Sequence[WorkerLoad]) -> list[Advice]:
    """Return what to do where one of a bucket's workers has far more requests than others."""
    total = sum(one.requests for one in workers)
    if len(workers) < 2 or total < BUSY * len(workers):  # noqa: PLR2004  one has no others
        return []
    most = max(workers, key=lambda one: one.requests)
    mean = total / len(workers)
    if most.requests <= UNEVEN * mean:
        return []
    return [
        Advice(
            "--kv-cost predicted-time; with another formula a lower --kv-overlap-score-weight, "
            "then --router-temperature 0.1",
            f"worker {most.name} has {most.requests} of the {total} open requests of bucket "
            f"{bucket}, {most.requests / mean:.1f} times the mean: a temperature spreads them, and "
            "costs hits",
        )
    ]
