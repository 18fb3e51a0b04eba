"""Where requests go while nobody can be asked: the workers last heard of, by load."""

from collections.abc import Collection, Sequence

import msgspec

from kvmesh.core.blocks.events import WorkerId


class KnownWorker(msgspec.Struct, frozen=True):
    """One worker as its router last told. No `models`: it serves any."""

    worker: WorkerId
    url: str
    models: tuple[str, ...]
    active_requests: int
    usable: bool
    dp_rank: int | None = None
    adapters: tuple[str, ...] = ()


class LastKnownFleet:
    """Chooses the least loaded of the workers last told of.

    Their load is what was told plus what was chosen here and not released since.
    """

    def __init__(self) -> None:
        self.adapters: set[str] = set()
        self._workers: tuple[KnownWorker, ...] = ()
        self._own: dict[WorkerId, int] = {}
        self._turn = 0

    @property
    def usable(self) -> bool:
        """Return whether any worker may be given work."""
        return any(one.usable for one in self._workers)

    def update(self, workers: Sequence[KnownWorker]) -> None:
        """Take the newest word of the router."""
        self._workers = tuple(workers)
        self.adapters.clear()
        self.adapters.update(*(one.adapters for one in workers))

    def choose(
        self, model: str, pinned: WorkerId | None, excluded: Collection[WorkerId]
    ) -> KnownWorker | None:
        """Return the worker for a request and count it there; None when none may take it.

        Equal workers take turns.
        """
        self._turn += 1
        best: KnownWorker | None = None
        least = (0, 0)
        for number, one in enumerate(self._workers):
            if not _may_take(one, model, pinned) or one.worker in excluded:
                continue
            load = one.active_requests + self._own.get(one.worker, 0)
            key = (load, (number - self._turn) % len(self._workers))
            if best is None or key < least:
                best, least = one, key
        if best is not None:
            self._own[best.worker] = self._own.get(best.worker, 0) + 1
        return best

    def release(self, worker: WorkerId) -> None:
        """Count a request no longer that `choose` counted."""
        left = self._own.pop(worker, 0) - 1
        if left > 0:
            self._own[worker] = left


def _may_take(one: KnownWorker, model: str, pinned: WorkerId | None) -> bool:
    if pinned is not None and one.worker != pinned:
        return False
    return one.usable and (not model or not one.models or model in one.models)
