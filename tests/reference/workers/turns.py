"""The naive model of kvmesh/native/loads/turns.c."""

from collections.abc import Sequence
from typing import Final

import xxhash

from kvmesh.core.blocks.events import WorkerId

MOST_BEHIND: Final = 4
"""Turns that a worker which was away may have at once."""


class WorkerTurns:
    """Counts turns by worker: those of this replica and, as they are heard of, of its peers.

    With one replica that is strict rotation. Several that hear of each other's turns share one
    rotation; no worker is ahead of another by more than the turns not heard of yet, and one.
    """

    def __init__(self, taken: dict[WorkerId, int] | None = None) -> None:
        self._taken = {} if taken is None else taken

    def take(self, worker: WorkerId) -> None:
        """Count a turn."""
        self._taken[worker] = self._taken.get(worker, 0) + 1

    def next(self, names: Sequence[WorkerId], replica: str) -> WorkerId:
        """Return whose turn it is among `names`, at least one.

        Equal ones come in an order of `replica`'s own, so that two replicas which choose at the
        same time choose two; without a name in that of `names`.
        """
        taken = self._taken
        counts = [taken[name] for name in names if name in taken]
        floor, joins = max(counts, default=0) - MOST_BEHIND, min(counts, default=1) - 1
        for name in names:
            taken[name] = max(taken.get(name, joins), floor)
        least = min(taken[name] for name in names)
        ties = [name for name in names if taken[name] == least]
        if not replica or len(ties) == 1:
            return ties[0]
        seed = xxhash.xxh3_64_intdigest(replica.encode())
        return max(ties, key=lambda name: (xxhash.xxh3_64_intdigest(name.encode(), seed), name))

    def remove(self, worker: WorkerId) -> None:
        """Forget a worker that left."""
        self._taken.pop(worker, None)
