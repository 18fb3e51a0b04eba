"""Workers in the order of their load, so that the least loaded are found without a full loop."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from sortedcontainers import SortedList

from kvmesh.core.events import WorkerId
from kvmesh.core.worker_registry import WorkerState

Entry = tuple[float, WorkerId, WorkerState]
"""(load key, worker, its state); no two have the same worker."""


class LoadOrder:
    """The workers of one fleet, least loaded first. A changed load costs O(log workers)."""

    def __init__(self, key: Callable[[WorkerState], float]) -> None:
        self._key = key
        self._entries: dict[WorkerId, Entry] = {}
        self._sorted: SortedList = SortedList()
        self._requests: dict[WorkerId, int] = {}
        self._counts: Counter[int] = Counter()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._sorted)

    @property
    def most_requests(self) -> int:
        """Return the number of requests of the worker that has the most."""
        return max(self._counts, default=0)

    def state(self, worker: WorkerId) -> WorkerState | None:
        """Return the state of a worker of this fleet."""
        entry = self._entries.get(worker)
        return entry[2] if entry else None

    def rebuild(self, fleet: Iterable[WorkerState]) -> None:
        """Start over with the workers of `fleet`. O(workers log workers)."""
        states = list(fleet)
        self._entries = {one.worker: (self._key(one), one.worker, one) for one in states}
        self._sorted = SortedList(self._entries.values())
        self._requests = {one.worker: one.loads.active_requests for one in states}
        self._counts = Counter(self._requests.values())

    def update(self, changed: Iterable[WorkerId]) -> None:
        """Move the workers whose loads changed; those of no concern here are ignored."""
        for worker in changed:
            entry = self._entries.get(worker)
            if entry is not None:
                self._move(entry)

    def _move(self, entry: Entry) -> None:
        old, worker, state = entry
        key = self._key(state)
        if key != old:
            self._sorted.remove(entry)
            moved = self._entries[worker] = (key, worker, state)
            self._sorted.add(moved)
        requests, before = state.loads.active_requests, self._requests[worker]
        if requests != before:
            self._requests[worker] = requests
            self._counts[requests] += 1
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
