"""What could be reused of a trace: how much, how soon, from how large a cache, by which routing."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh_lab.report.outcome import Distribution, distribution
from kvmesh_lab.traces.trace import TraceRequest, infinite_cache_hit_rate, prefix_families

WORKER_COUNTS: Final = (2, 4, 8, 16)


class CachePoint(msgspec.Struct, frozen=True):
    """A cache of `tokens` that all requests shared would have hit `share` (0..1) of all tokens."""

    tokens: int
    share: float


class Family(msgspec.Struct, frozen=True):
    """Requests that begin alike: how many, and their share of all prompt tokens, 0..1."""

    requests: int
    share: float


class Reuse(msgspec.Struct, frozen=True):
    """A trace's reuse. Shares are of prompt tokens, 0..1; depths in tokens; times in seconds.

    `unlimited` is what one cache that never evicts would hit, `round_robin` the same cache cut
    into N that get requests in turn. `curve` is of one least-recently-used cache of each size.
    The core prefix is made of all blocks visited at least twice: `core_blocks` of
    `distinct_blocks`, `core_depth` how far down them requests go.
    `gap_s` is the time between two uses of a block that is used again.
    """

    requests: int
    duration_s: float
    block_size: int
    prompt_tokens: int
    output_tokens: int
    unlimited: float
    round_robin: dict[int, float]
    curve: tuple[CachePoint, ...]
    distinct_blocks: int
    core_blocks: int
    core_depth: Distribution | None
    gap_s: Distribution | None
    families: tuple[Family, ...]

    def cache_for(self, share_of_unlimited: float) -> int | None:
        """Return the least cache on the curve, in tokens, that hits so much of what can be hit."""
        for point in self.curve:
            if point.share >= share_of_unlimited * self.unlimited:
                return point.tokens
        return None


def measure_reuse(requests: Sequence[TraceRequest], block_size: int) -> Reuse:
    """Return what could be reused of `requests`, in order of time. O(blocks log blocks)."""
    visits = Counter(block for request in requests for block in request.block_ids)
    distances, gaps = _reuse_distances(requests)
    return Reuse(
        requests=len(requests),
        duration_s=(requests[-1].timestamp_ms - requests[0].timestamp_ms) / 1000.0,
        block_size=block_size,
        prompt_tokens=sum(request.input_tokens for request in requests),
        output_tokens=sum(request.output_tokens for request in requests),
        unlimited=infinite_cache_hit_rate(requests, block_size),
        round_robin={
            workers: _round_robin_share(requests, block_size, workers) for workers in WORKER_COUNTS
        },
        curve=_curve(requests, block_size, distances),
        distinct_blocks=len(visits),
        core_blocks=sum(count > 1 for count in visits.values()),
        core_depth=distribution(_core_depths(requests, visits, block_size)),
        gap_s=distribution(gaps),
        families=_families(requests),
    )


def _round_robin_share(requests: Sequence[TraceRequest], block_size: int, workers: int) -> float:
    """Return what N caches that never evict would hit, requests dealt to them in turn."""
    hands = [requests[worker::workers] for worker in range(workers)]
    cached = sum(
        infinite_cache_hit_rate(hand, block_size) * sum(one.input_tokens for one in hand)
        for hand in hands
        if hand
    )
    return cached / sum(request.input_tokens for request in requests)


def _core_depths(
    requests: Sequence[TraceRequest], visits: Counter[int], block_size: int
) -> list[float]:
    depths: list[float] = []
    for request in requests:
        depth = 0
        for block in request.block_ids:
            if visits[block] < 2:  # noqa: PLR2004  a block visited once is shared by none
                break
            depth += 1
        depths.append(float(min(depth * block_size, request.input_tokens)))
    return depths


def _families(requests: Sequence[TraceRequest]) -> tuple[Family, ...]:
    """Return the families of several requests, that with most prompt tokens first."""
    tokens: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    for request, family in zip(requests, prefix_families(requests), strict=True):
        tokens[family] += request.input_tokens
        counts[family] += 1
    whole = sum(tokens.values())
    return tuple(
        Family(counts[family], share / whole)
        for family, share in tokens.most_common()
        if counts[family] > 1
    )


class _Recency:
    """Counts how many distinct blocks were used since a block's last use: a Fenwick tree."""

    def __init__(self, uses: int) -> None:
        self._tree = [0] * (uses + 1)
        self._uses = uses
        self._held = 0

    def add(self, place: int, amount: int) -> None:
        self._held += amount
        place += 1
        while place <= self._uses:
            self._tree[place] += amount
            place += place & -place

    def later_than(self, place: int) -> int:
        """Return how many blocks were last used after `place`."""
        place += 1
        earlier = 0
        while place > 0:
            earlier += self._tree[place]
            place -= place & -place
        return self._held - earlier


def _reuse_distances(requests: Sequence[TraceRequest]) -> tuple[list[list[int]], list[float]]:
    """Return for each request the cache size, in blocks, from which each leading block is a hit,
    up to the first block never seen; and the seconds since those blocks' last uses.

    Source: Mattson et al., IBM Systems Journal 1970 (stack distances of one LRU cache).
    """
    recency = _Recency(sum(len(request.block_ids) for request in requests))
    last: dict[int, tuple[int, float]] = {}
    distances: list[list[int]] = []
    gaps: list[float] = []
    place = 0
    for request in requests:
        needed: list[int] = []
        most = 0
        for block in request.block_ids:
            known = last.get(block)
            if known is None:
                break
            most = max(most, recency.later_than(known[0]) + 1)
            needed.append(most)
            gaps.append((request.timestamp_ms - known[1]) / 1000.0)
        # The last block first: engines evict leaves before what they stand on.
        for block in reversed(request.block_ids):
            known = last.get(block)
            if known is not None:
                recency.add(known[0], -1)
            recency.add(place, 1)
            last[block] = (place, request.timestamp_ms)
            place += 1
        distances.append(needed)
    return distances, gaps


def _curve(
    requests: Sequence[TraceRequest], block_size: int, distances: Sequence[Sequence[int]]
) -> tuple[CachePoint, ...]:
    """Return the hit share at caches of 1, 2, 4, … blocks, up to where it grows no more."""
    largest = max((needed[-1] for needed in distances if needed), default=1)
    sizes = [1 << power for power in range((largest - 1).bit_length() + 1)]
    hits = [0] * len(sizes)
    for request, needed in zip(requests, distances, strict=True):
        for number, blocks in enumerate(needed):
            tokens = min(block_size, request.input_tokens - number * block_size)
            hits[(blocks - 1).bit_length()] += max(0, tokens)
    total = sum(request.input_tokens for request in requests)
    points: list[CachePoint] = []
    share = 0.0
    for size, tokens in zip(sizes, hits, strict=True):
        share += tokens / total
        points.append(CachePoint(size * block_size, share))
    return tuple(points)
