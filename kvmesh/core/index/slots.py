"""Which bit of a mask stands for which worker."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import compress
from typing import Final

from kvmesh._native import Table
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.index.search import SHARDS

_DECODED: Final = 1024
_DIGITS: Final = bytes(byte & 1 for byte in range(256))


class Decoder:
    """Tells the workers of a mask, of slots whose workers do not change; `names` may get longer."""

    def __init__(self, names: Sequence[WorkerId]) -> None:
        self._names = names
        self._decoded: dict[int, tuple[WorkerId, ...]] = {}

    def decode(self, mask: int) -> tuple[WorkerId, ...]:
        """Return the workers of `mask`, lowest slot first: 0.2 us for one, else cached, else 5 us.

        Most drops are of one worker: the deepest holder of a conversation.
        """
        if mask.bit_count() == 1:
            return (self._names[mask.bit_length() - 1],)
        workers = self._decoded.get(mask)
        if workers is None:
            if len(self._decoded) >= _DECODED:
                self._decoded.clear()
            digits = f"{mask:b}".encode()[::-1].translate(_DIGITS)
            workers = self._decoded[mask] = tuple(compress(self._names, digits))
        return workers


class Slots:
    """Gives workers the lowest free bits, and takes them back when every mask is rid of them.

    A released bit leaves `live` at once. It is used again only after `begin_reclaim`, a walk over
    all masks, and `end_reclaim`: until then masks may still have it set. `names` are the workers by
    slot, those that released theirs included; `decode` is a `Decoder`'s. `changes` counts what was
    assigned and released.
    """

    def __init__(self) -> None:
        self.live = 0
        self.changes = 0
        self.bits: dict[WorkerId, int] = {}
        self.names: list[WorkerId] = []
        self.decode = Decoder(self.names).decode
        self._free: list[int] = []
        self._released: list[int] = []
        self._reclaiming: list[int] = []

    def assign(self, worker: WorkerId) -> int:
        """Return the mask with only the bit that `worker` gets; it must have none. O(1)."""
        if self._free:
            slot = heappop(self._free)
            self.names[slot] = worker
        else:
            slot = len(self.names)
            self.names.append(worker)
        bit = 1 << slot
        self.bits[worker] = bit
        self.live |= bit
        self.changes += 1
        return bit

    def release(self, worker: WorkerId) -> None:
        """Take the bit of `worker` out of all reads, if it has one. O(1)."""
        bit = self.bits.pop(worker, None)
        if bit is not None:
            self.live ^= bit
            self.changes += 1
            self._released.append(bit.bit_length() - 1)

    def begin_reclaim(self) -> int:
        """Return the released bits that the walk over all masks now has to clear."""
        self._reclaiming += self._released
        self._released.clear()
        return sum(1 << slot for slot in self._reclaiming)

    def end_reclaim(self) -> None:
        """Learn that the walk is over: its bits are free."""
        for slot in self._reclaiming:
            heappush(self._free, slot)
        self._reclaiming.clear()
        self.decode = Decoder(self.names).decode

    def released(self) -> int:
        """Return how many bits wait for a walk to begin or to end."""
        return len(self._released) + len(self._reclaiming)


def clear_released(slots: Slots, tables: Sequence[Table]) -> Iterator[int]:
    """Take released bits out of every mask, a slice of a shard at a time; yield its blocks."""
    dead = slots.begin_reclaim()
    for table in tables:
        for number in range(SHARDS):
            blocks, place = table.clear_bits(number, dead, 0)
            yield blocks
            while place:
                blocks, place = table.clear_bits(number, dead, place)
                yield blocks
    slots.end_reclaim()
