"""How many tokens a router's blocks have: as it was told, else what divides all its workers'."""

import math
from collections import Counter
from typing import Final, Literal

import msgspec

from kvmesh._native import WorkerState
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.worker_info import LoadReport, as_count

DEFAULT_BLOCK_SIZE: Final = 16
"""Tokens a block until a worker tells its own."""

MOST_BLOCK_SIZE: Final = 1 << 16
"""No engine has larger blocks: a worker that claims more is not followed."""

MOST_SIZES: Final = 8
"""A prompt is hashed once for each size: those of the fewest workers beyond are not followed."""

SizeSource = Literal["given", "default", "workers"]


class BlockSizes:
    """The block size in force, and the other sizes in which workers publish events.

    `given` holds whatever workers say. Without it `size` is the greatest common divisor of the
    workers' sizes, of those that publish events if any does, so that a block of each is a whole
    number of the router's; the smallest where that would be less than a quarter of it, for what is
    counted in small blocks takes longer. Replicas that know the same workers agree without a word.
    Without any worker that tells, the last size stays. `size` and `others`, ascending, are in
    tokens; `odd` has the sizes of publishers that are not followed.
    """

    def __init__(self, given: int | None = None) -> None:
        self.size = given or DEFAULT_BLOCK_SIZE
        self.source: SizeSource = "given" if given else "default"
        self.others: tuple[int, ...] = ()
        self.odd: dict[WorkerId, int] = {}
        self._reported: dict[WorkerId, tuple[bool, int]] = {}

    @property
    def followed(self) -> tuple[int, ...]:
        """Return the sizes of the blocks that prompts are looked for by, ascending."""
        return tuple(sorted((self.size, *self.others)))

    def receive(self, worker: WorkerId, size: int, *, events: bool) -> bool:
        """Take the block size that a worker tells, 0 for unknown; return whether `size` changed.

        O(1) where nothing is new, else O(workers).
        """
        seen = (events, size)
        if self._reported.get(worker) == seen:
            return False
        if size > 0:
            self._reported[worker] = seen
        else:
            self._reported.pop(worker, None)
        return self._settle()

    def forget(self, worker: WorkerId) -> bool:
        """Take the news that a worker left; return whether `size` changed."""
        return self._reported.pop(worker, None) is not None and self._settle()

    def _settle(self) -> bool:
        before, known = self.size, self._reported.items()
        told = {one: size for one, (events, size) in known if events}
        published = _most(list(told.values()))
        sizes = published or _most([size for _, (_, size) in known])
        if self.source != "given" and sizes:
            self.size, self.source = _common(sizes), "workers"
        self.others = tuple(sorted(published - {self.size}))
        self.odd = {one: size for one, size in told.items() if size not in published}
        return self.size != before


def _most(sizes: list[int]) -> set[int]:
    """Return the sizes to follow: those of most workers, of equally many the smaller ones."""
    counts = Counter(size for size in sizes if size <= MOST_BLOCK_SIZE)
    return set(sorted(counts, key=lambda size: (-counts[size], size))[:MOST_SIZES])


def _common(sizes: set[int]) -> int:
    """Return the size to count in: see `BlockSizes`."""
    divisor, smallest = math.gcd(*sizes), min(sizes)
    return divisor if 4 * divisor >= smallest else smallest


def measure(state: WorkerState, size: int, own_tokens: dict[WorkerId, int]) -> None:
    """Note how many tokens a worker's blocks have, where that is not `size`, and by its name."""
    own = state.info.block_size
    state.own_tokens = own if own != size and 0 < own <= MOST_BLOCK_SIZE else 0
    own_tokens.pop(state.worker, None)
    if state.own_tokens:
        own_tokens[state.worker] = own


def told_blocks(state: WorkerState, size: int) -> int:
    """Return how many blocks of `size` tokens a worker says to have, 0: unknown."""
    return as_count(state.info.total_blocks) * (state.own_tokens or size) // size


def scaled(report: LoadReport, size: int, wanted: int) -> LoadReport:
    """Return a report by blocks of `size` tokens, 0: of `wanted`, by blocks of `wanted`."""
    if size in (0, wanted):
        return report
    used, total = report.used_blocks * size // wanted, report.total_blocks * size // wanted
    return msgspec.structs.replace(report, used_blocks=used, total_blocks=total)
