"""What plain round robin would have found cached: a model of every worker's cache, fed in turn."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

DEFAULT_WORKER_BLOCKS: Final = 16_384
"""Cache of a worker that does not say how large its own is, blocks."""

MAX_ENTRIES: Final = 1 << 18
"""Entries of all caches together, some 40 MB."""

STRIDE: Final = 8
"""Blocks an entry stands for, doubled until the fleet's caches fit into the bound."""


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
        self._caches: list[OrderedDict[int, None]] = []
        self._turn = 0.0
        self._turns = 1.0
        self._stride = STRIDE
        self._fine: tuple[int, ...] = ()
        self._fleet = (0, 0, 0)

    def route(
        self, hashes: Sequence[int], workers: int, worker_blocks: int, replicas: int = 1
    ) -> int | None:
        """Send a prompt to the next of `workers`; return how many of its blocks were cached there.

        None when its turn falls to a worker that is not modelled.
        `hashes` are all its sequence hashes, root first; `worker_blocks` is a worker's cache, 0
        for unknown. Exact to half a stride,
        and for a prompt that came before. O(blocks / stride), about 0.1 us an entry.
        """
        blocks = worker_blocks or DEFAULT_WORKER_BLOCKS
        if (workers, blocks, replicas) != self._fleet:
            self._resize(workers, blocks, replicas)
        self._turn = (self._turn + 1.0) % self._turns
        if self._turn >= int(self._turns):
            return None
        cache = self._caches[int(self._turn)]
        fine = self._fine
        keys = [hashes[depth - 1] for depth in fine if depth <= len(hashes)]
        keys += hashes[self._stride - 1 : len(hashes) : self._stride]
        if keys and keys[-1] != hashes[-1]:
            keys.append(hashes[-1])
        found = 0
        for key in keys:
            if key not in cache:
                break
            found += 1
        # Leaves first: a block then never outlives the one before it.
        for key in reversed(keys[found:]):
            cache[key] = None
        for key in reversed(keys[:found]):
            cache.move_to_end(key)
        limit = max(1, blocks // self._stride)
        while len(cache) > limit:
            cache.popitem(last=False)
        if found in (0, len(keys)):
            return len(hashes) if found else 0
        last = min(self._depth(found), len(hashes)) - 1
        return (self._depth(found - 1) + last) // 2

    def entries(self) -> int:
        """Return how many entries all caches hold."""
        return sum(map(len, self._caches))

    def _resize(self, workers: int, blocks: int, replicas: int) -> None:
        """Follow the fleet. A coarser stride looks at some of the same depths: nothing is lost."""
        self._fleet = (workers, blocks, replicas)
        self._turns = max(1.0, workers / replicas)
        modelled = int(self._turns)
        self._stride = STRIDE
        while modelled * (blocks // self._stride) > self._max_entries:
            self._stride *= 2
        self._fine = tuple(1 << power for power in range(self._stride.bit_length() - 1))
        self._caches += [OrderedDict() for _ in range(modelled - len(self._caches))]

    def _depth(self, number: int) -> int:
        """Return the blocks that the entry of that number, counted from 0, stands at the end of."""
        fine = self._fine
        return fine[number] if number < len(fine) else self._stride * (number - len(fine) + 1)
