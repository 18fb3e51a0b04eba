"""Naive model of what plain round robin would have found cached: kvmesh/native/insight/robin.c."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

DEFAULT_WORKER_BLOCKS: Final = 16_384
STRIDE: Final = 8
FINE_STRIDES: Final = 16

_LONGEST: Final = 1 << 24
_MOST_WORKERS: Final = 1 << 20
_MOST_BLOCKS: Final = 1 << 40


class RoundRobinShadow:
    """Sends prompts to one worker after the other, in thought, and counts what that one holds."""

    def __init__(self, max_entries: int) -> None:
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
