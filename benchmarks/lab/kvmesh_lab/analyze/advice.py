"""What follows from a trace's reuse, in words: the field's tuning guidelines, made executable."""

from math import ceil
from typing import Final

from kvmesh.bounds import counted
from kvmesh_lab.analyze.reuse import Reuse
from kvmesh_lab.analyze.weight_advice import Advice, FleetSize, advise_weights

WORTHWHILE: Final = 0.05
"""Reuse below this share of all prompt tokens is not worth routing for."""

NEARLY_ALL: Final = 0.95
DOMINANT: Final = 0.5
COMMON_BLOCK_SIZES: Final = (16, 32, 64, 128)
MAX_ROUNDING_LOSS: Final = 0.01
MIN_TTL_S: Final = 30.0


def advise(reuse: Reuse, fleet: FleetSize) -> list[Advice]:
    """Return what to do about routing such a load to such a fleet, the weightiest first."""
    if reuse.unlimited < WORTHWHILE:
        return [
            Advice(
                "--router-mode least-loaded",
                f"even one unlimited cache would hit only {reuse.unlimited:.1%} of prompt tokens: "
                "caches hardly matter here, load does",
            )
        ]
    found = [_mode(reuse, fleet), _buckets(reuse, fleet), _block_size(reuse), _approximate(reuse)]
    needed = reuse.cache_for(NEARLY_ALL)
    assert needed is not None, "the curve ends at what can be reused"
    return found + _cache(reuse, fleet, needed) + advise_weights(reuse, fleet, needed)


def _nearest(reuse: Reuse, workers: int) -> float:
    """Return round robin's share at the measured number of workers nearest from below."""
    known = [count for count in reuse.round_robin if count <= workers]
    return reuse.round_robin[max(known)] if known else reuse.unlimited


def _mode(reuse: Reuse, fleet: FleetSize) -> Advice:
    blind = _nearest(reuse, fleet.workers)
    gain = reuse.unlimited - blind
    return Advice(
        "--router-mode kv --kv-cost predicted-time",
        f"of {reuse.unlimited:.1%} that can be reused, round robin over "
        f"{counted(fleet.workers, 'worker')} would reuse {blind:.1%} at best: up to {gain:.1%} of "
        "all prefill can be saved; check with `kvmesh simulate`",
    )


def _buckets(reuse: Reuse, fleet: FleetSize) -> Advice:
    if not reuse.families:
        return Advice("one bucket", "no two requests begin alike beyond what nearly all share")
    largest = reuse.families[0].share
    if largest >= DOMINANT:
        return Advice(
            "one bucket",
            f"one beginning has {largest:.0%} of all prompt tokens: split, its bucket would be "
            "overloaded while the others idle",
        )
    count = len(reuse.families)
    most = min(fleet.workers // 2, ceil(1.0 / largest), count)
    if most < 2:  # noqa: PLR2004  one bucket is no split
        return Advice("one bucket", f"too few to split: {counted(fleet.workers, 'worker')}")
    return Advice(
        f"one bucket; up to {most} with `kvmesh meta-router --bucket-policy prefix-hash` if one "
        "router is too few",
        f"{counted(count, 'family', 'families')} of requests, the largest has {largest:.1%} of all "
        "prompt tokens: a split by prefix keeps each family together; a split in turn keeps each "
        "conversation, and caches what a family shares in each bucket",
    )


def _block_size(reuse: Reuse) -> Advice:
    depth = reuse.core_depth
    shared = depth.mean if depth is not None else 0.0
    fitting = [
        size for size in COMMON_BLOCK_SIZES if size / 2.0 <= MAX_ROUNDING_LOSS * max(shared, 1.0)
    ]
    size = fitting[-1] if fitting else COMMON_BLOCK_SIZES[0]
    loss = size / 2.0 / max(shared, size)
    return Advice(
        f"engine block size {size}, and --kv-cache-block-size {size}",
        f"requests share {shared:,.0f} tokens on average: rounding down to blocks of {size} loses "
        f"{loss:.1%} of that; larger blocks make index and events smaller",
    )


def _approximate(reuse: Reuse) -> Advice:
    gap = reuse.gap_s
    assert gap is not None, "what can be reused was used before"
    ttl_s = max(MIN_TTL_S, ceil(gap.p90))
    return Advice(
        f"--approx-ttl-s {ttl_s:.0f} (only without KV events)",
        f"half of all reused blocks are used again within {gap.p50:,.1f} s, nine tenths within "
        f"{gap.p90:,.1f} s; no longer than your engines keep an idle block",
    )


def _cache(reuse: Reuse, fleet: FleetSize, needed: int) -> list[Advice]:
    have = fleet.workers * fleet.cache_tokens
    if not have:
        return [
            Advice(
                f"{needed:,} tokens of KV cache in all workers together",
                f"that keeps {NEARLY_ALL:.0%} of what can be reused until it is; name yours with "
                "--worker-tokens, or --num-gpu-blocks",
            )
        ]
    if have >= needed:
        return [
            Advice(
                "no more KV cache",
                f"{have:,} tokens in {counted(fleet.workers, 'worker')} keep {NEARLY_ALL:.0%} of "
                f"what can be reused until it is ({needed:,} would do)",
            )
        ]
    share = max((point.share for point in reuse.curve if point.tokens <= have), default=0.0)
    return [
        Advice(
            "more KV cache: host memory tiers, more workers, or a smaller KV data type",
            f"{have:,} tokens in {counted(fleet.workers, 'worker')} can hit {share:.1%}, "
            f"{needed:,} would hit {NEARLY_ALL * reuse.unlimited:.1%}",
        )
    ]
