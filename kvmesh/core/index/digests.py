"""Numbers by which two indexes are known to hold the same."""

from collections.abc import Iterable, Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.index.ends import Ends
from kvmesh.core.index.tier import Tier

U64: Final = (1 << 64) - 1


def digest_of(worker: WorkerId, tiers: Iterable[tuple[int, Tier]], ends: Ends) -> int:
    """Return the sum of the hashes a worker holds, mod 2^64, tier t weighted 2t + 1. O(tiers)."""
    digest = sum(
        (2 * number + 1) * holding.digest
        for number, tier in tiers
        for holding in tier.holdings(worker)
    )
    return (digest + ends.digest(worker)) & U64


def digest_of_all(
    workers: Iterable[WorkerId], tiers: Sequence[tuple[int, Tier]], ends: Ends
) -> int:
    """Return one number for all that is held and nothing else, 0 for nothing. O(workers)."""
    total = 0
    for worker in workers:
        for number, tier in tiers:
            holdings = tier.holdings(worker)
            if any(holding.blocks for holding in holdings):
                held = sum(holding.digest for holding in holdings) & U64
                total += xxh3_64_intdigest(f"{number}:{worker}:{held}".encode())
        if rule := ends.digest(worker):
            total += xxh3_64_intdigest(f"rule:{worker}:{rule}".encode())
    return total & U64
