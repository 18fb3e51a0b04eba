"""Which worker holds which block: the index that events are folded into."""

from typing import Protocol

from kvmesh.core.events import HASH_BYTES, ROOT, Cleared, Event, Removed, Stored, WorkerId
from kvmesh.core.hashing import Hashes, unpack_hashes

Groups = list[tuple[int, tuple[WorkerId, ...]]]
"""Disjoint (depth in blocks, workers), deepest first, depth > 0."""


class PrefixIndex(Protocol):
    """What routing asks of an index: how much of a prompt each worker holds."""

    def find_matches(self, hashes: Hashes) -> dict[WorkerId, int]:
        """Return the cached prefix length, in blocks, of every worker that holds any of it."""
        ...

    def find_groups(self, hashes: Hashes) -> Groups:
        """Return the same by depth, so that a caller need not look at every worker."""
        ...


class _Holding:
    __slots__ = ("bit", "blocks", "digest")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.blocks = 0
        self.digest = 0


class KvIndex:
    """The exact index of one bucket, folded from KV events."""

    def __init__(self) -> None:
        self._shards: list[dict[int, int]] = [{} for _ in range(64)]
        self._holdings: dict[WorkerId, _Holding] = {}
        self._names: list[WorkerId] = []

    def apply(self, worker: WorkerId, event: Event) -> int:
        """Fold one event; return how many blocks were refused because their parent is unknown."""
        if isinstance(event, Stored):
            return self.store(worker, event.parent, event.hashes)
        if isinstance(event, Removed):
            self.remove(worker, event.hashes)
        elif isinstance(event, Cleared):
            self.clear(worker)
        return 0

    def store(self, worker: WorkerId, parent: int, hashes: bytes) -> int:
        """Take a run of blocks behind `parent`; return how many were refused."""
        holding = self._holdings.get(worker)
        if holding is None:
            holding = self._holdings[worker] = _Holding(1 << len(self._names))
            self._names.append(worker)
        bit = holding.bit
        if parent != ROOT and not self._shards[parent & 63].get(parent, 0) & bit:
            return len(hashes) // HASH_BYTES
        for block in unpack_hashes(hashes):
            shard = self._shards[block & 63]
            held = shard.get(block, 0)
            if not held & bit:
                shard[block] = held | bit
                holding.blocks += 1
                holding.digest += block
        return 0

    def remove(self, worker: WorkerId, hashes: bytes) -> int:
        """Drop blocks; return how many were not held."""
        holding = self._holdings.get(worker)
        if holding is None:
            return len(hashes) // HASH_BYTES
        missing = 0
        for block in unpack_hashes(hashes):
            shard = self._shards[block & 63]
            held = shard.get(block, 0)
            if held & holding.bit:
                if held == holding.bit:
                    del shard[block]
                else:
                    shard[block] = held & ~holding.bit
                holding.blocks -= 1
                holding.digest -= block
            else:
                missing += 1
        return missing

    def clear(self, worker: WorkerId) -> None:
        """Forget every block of `worker`."""
        if worker in self._holdings:
            bit = self._holdings[worker].bit
            for shard in self._shards:
                for block in [block for block, held in shard.items() if held & bit]:
                    shard[block] &= ~bit
                    if not shard[block]:
                        del shard[block]
            self._holdings[worker] = _Holding(bit)

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget `worker` and every block of it."""
        self.clear(worker)
        self._holdings.pop(worker, None)

    def sweep(self, budget: int) -> bool:
        """Reclaim what removals left, in about `budget` entries of work; True when none is left."""
        return budget >= 0

    def workers(self) -> list[WorkerId]:
        """Return the known workers."""
        return list(self._holdings)

    def blocks(self, worker: WorkerId) -> int:
        """Return how many blocks `worker` holds."""
        holding = self._holdings.get(worker)
        return holding.blocks if holding else 0

    def worker_digest(self, worker: WorkerId) -> int:
        """Return the sum of the hashes `worker` holds, mod 2^64."""
        holding = self._holdings.get(worker)
        return holding.digest % 2**64 if holding else 0

    def find_matches(self, hashes: Hashes) -> dict[WorkerId, int]:
        """Return the cached prefix length, in blocks, per worker."""
        return {worker: depth for depth, group in self.find_groups(hashes) for worker in group}

    def find_groups(self, hashes: Hashes) -> Groups:
        """Return disjoint (depth, workers) groups, deepest first."""
        groups: Groups = []
        blocks = hashes.upto(len(hashes))
        held = -1
        for depth in range(len(hashes) + 1):
            now = (
                self._shards[blocks[depth] & 63].get(blocks[depth], 0) if depth < len(hashes) else 0
            )
            now &= held
            if depth and now != held:
                groups.append((depth, self._decode(held & ~now)))
            held = now
            if not held:
                break
        return groups[::-1]

    def _decode(self, mask: int) -> tuple[WorkerId, ...]:
        return tuple(name for slot, name in enumerate(self._names) if mask >> slot & 1)
