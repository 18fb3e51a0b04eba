"""What plain round robin would have found cached: a model of every worker's cache, fed in turn."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, cast

from kvmesh.compiled import NATIVE

DEFAULT_WORKER_BLOCKS: Final = 16_384
"""Cache of a worker that does not say how large its own is, blocks."""

MAX_ENTRIES: Final = 1 << 18
"""Entries of all caches together, some 40 MB."""

STRIDE: Final = 8
"""Blocks an entry stands for, doubled until the fleet's caches fit into the bound."""

FINE_STRIDES: Final = 16
"""Behind so many strides of a prompt, 128 blocks, gaps grow with the depth, to an eighth of it."""

_LONGEST: Final = 1 << 24
_MOST_WORKERS: Final = 1 << 20
_MOST_BLOCKS: Final = 1 << 40


class RoundRobinShadow:
    """Sends prompts to one worker after the other, in thought, and counts what that one holds.

    Each cache holds the prompts sent there, least recently used blocks leave first. So it is
    compared with what round robin itself would have cached, not with the caches that another
    policy left behind. Answers are not put into the caches; evictions are those of prompts alone.

    Where `replicas` routers share the workers, each sees only its part of the requests. It then
    models so many workers fewer, for each to be sent as much as in truth: the others' requests are
    taken to be like its own. A turn that falls to a worker not modelled is not counted.
    """

    def __init__(self, *, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._caches: list[_Cache] = []
        self._turn = 0.0
        self._turns = 1.0
        self._stride = STRIDE
        self._depths: list[int] = []
        self._fleet = (0, 0, 0.0)

    def route(
        self, hashes: Sequence[int], workers: int, worker_blocks: int, replicas: float = 1.0
    ) -> int | None:
        """Send a prompt to the next of `workers`; return how many of its blocks were cached there.

        None when its turn falls to a worker that is not modelled.
        `hashes` are all its sequence hashes, root first; `worker_blocks` is a worker's cache, 0
        for unknown. Exact to half a stride, deeper than 128 blocks to an eighth, and for a prompt
        that came before. O(log blocks), about 0.2 us an entry, compiled 0.05.
        """
        workers, replicas = min(workers, _MOST_WORKERS), max(1.0, replicas)
        blocks = min(worker_blocks or DEFAULT_WORKER_BLOCKS, _MOST_BLOCKS)
        if (workers, blocks, replicas) != self._fleet:
            self._resize(workers, blocks, replicas)
        self._turn = (self._turn + 1.0) % self._turns
        if self._turn >= int(self._turns):
            return None
        whole = len(hashes)
        depths = self._depths[: bisect_right(self._depths, whole)]
        if depths and depths[-1] != whole:
            depths.append(whole)
        found = self._caches[int(self._turn)].put(hashes, depths, self._stride, blocks)
        if found in (0, len(depths)):
            return whole if found else 0
        return (depths[found - 1] + depths[found] - 1) // 2

    def entries(self) -> int:
        """Return how many entries all caches hold."""
        return sum(len(cache.entries) for cache in self._caches)

    def _resize(self, workers: int, blocks: int, replicas: float) -> None:
        """Follow the fleet. A coarser stride looks at some of the same depths: nothing is lost."""
        self._fleet = (workers, blocks, replicas)
        self._turns = max(1.0, workers / replicas)
        modelled = int(self._turns)
        self._stride = STRIDE
        while modelled * (blocks // self._stride) > self._max_entries:
            self._stride *= 2
        self._depths = _depths(self._stride)
        for cache in self._caches:
            cache.coarsen(self._stride)
        self._caches += [_Cache() for _ in range(modelled - len(self._caches))]


def _depths(stride: int) -> list[int]:
    """Return where entries stand in a prompt of `_LONGEST` blocks."""
    depths = [1 << power for power in range(stride.bit_length() - 1)]
    depth = gap = stride
    while depth <= _LONGEST:
        depths.append(depth)
        if depth == gap * FINE_STRIDES:
            gap *= 2
        depth += gap
    return depths


class _Cache:
    """One worker's cache: by hash how many blocks an entry stands for; `blocks` is their sum."""

    __slots__ = ("blocks", "entries")

    def __init__(self) -> None:
        self.blocks = 0
        self.entries: OrderedDict[int, int] = OrderedDict()

    def coarsen(self, at_least: int) -> None:
        """Let each entry stand for so many blocks at least: then there are fewer of them."""
        for key, size in self.entries.items():
            if size < at_least:
                self.entries[key] = at_least
                self.blocks += at_least - size

    def put(
        self, hashes: Sequence[int], depths: Sequence[int], at_least: int, capacity: int
    ) -> int:
        """Cache a prompt at these depths; return how many of them, the first ones, were there."""
        entries = self.entries
        keys = [hashes[depth - 1] for depth in depths]
        found = 0
        for key in keys:
            if key not in entries:
                break
            found += 1
        # Leaves first: a block then never outlives the one before it.
        for place in range(len(keys) - 1, found - 1, -1):
            gap = depths[place] - (depths[place - 1] if place else 0)
            self.blocks -= entries.pop(keys[place], 0)
            entries[keys[place]] = size = max(at_least, gap)
            self.blocks += size
        for key in reversed(keys[:found]):
            entries.move_to_end(key)
        while self.blocks > capacity and len(entries) > 1:
            self.blocks -= entries.popitem(last=False)[1]
        return found


def new_shadow(max_entries: int = MAX_ENTRIES) -> RoundRobinShadow:
    """Return a shadow that has seen nothing."""
    compiled = NATIVE.RoundRobinShadow(max_entries) if NATIVE else None
    return cast("RoundRobinShadow", compiled or RoundRobinShadow(max_entries=max_entries))
