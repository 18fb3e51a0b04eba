"""How many tokens a router's blocks have: as it was told, else as its workers' have."""

from typing import Final, Literal

from kvmesh.core.blocks.events import WorkerId

DEFAULT_BLOCK_SIZE: Final = 16
"""Tokens a block until a worker tells its own."""

MOST_BLOCK_SIZE: Final = 1 << 16
"""No engine has larger blocks: a worker that claims more is not followed."""

SizeSource = Literal["given", "default", "workers"]


class BlockSizes:
    """The block size in force, and the workers of which no block can match it.

    `given` holds whatever workers say. Without it most of the workers decide, those that publish
    events before all others; of equally many the ones with the first worker by name. So replicas
    that know the same workers agree without a word. Without any worker that tells, the last size
    stays. `size` is in tokens, `odd` has the sizes of workers that publish events of another.
    """

    def __init__(self, given: int | None = None) -> None:
        self.size = given or DEFAULT_BLOCK_SIZE
        self.source: SizeSource = "given" if given else "default"
        self.odd: dict[WorkerId, int] = {}
        self._reported: dict[WorkerId, tuple[bool, int]] = {}

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
        before = self.size
        if self.source != "given":
            elected = self._elect()
            if elected:
                self.size, self.source = elected, "workers"
        known = self._reported.items()
        self.odd = {one: size for one, (events, size) in known if events and size != self.size}
        return self.size != before

    def _elect(self) -> int:
        """Return the size of most workers; 0 when none tells a possible one."""
        votes: dict[int, list[WorkerId]] = {}
        possible = [
            (events, size, worker)
            for worker, (events, size) in self._reported.items()
            if size <= MOST_BLOCK_SIZE
        ]
        publish = any(events for events, _, _ in possible)
        for events, size, worker in possible:
            if events == publish:
                votes.setdefault(size, []).append(worker)
        ranked = [(-len(workers), min(workers), size) for size, workers in votes.items()]
        return min(ranked)[2] if ranked else 0
