"""Which LoRA adapters engines hold ready, and what it costs where one must be loaded first."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import median
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.worker_info import AdapterReport

DEFAULT_LOAD_MS: Final = 100.0
"""What loading an adapter is taken to cost before any load was seen."""

MOST_LOAD_MS: Final = 60_000.0
MOST_SLOTS: Final = 1024
"""Adapters of one engine that are remembered."""

_SAMPLES: Final = 33
_PRIOR_SAMPLES: Final = 3
_MOST_LOADING: Final = 4096


class AdapterSlots:
    """Remembers the adapters used last at each engine: as many as it has slots, as engines do.

    An engine that does not tell its slots is unknown: nothing is added there. `load_ms` is the
    price until loads were seen at workers with nothing else to prefill; then it is the median of
    the latest, so that one for which another replica had loaded counts little.
    """

    def __init__(self, load_ms: float = DEFAULT_LOAD_MS) -> None:
        self._slots: dict[WorkerId, int] = {}
        self._held: dict[WorkerId, dict[str, None]] = {}
        self._loading: dict[str, float | None] = {}
        self._samples: deque[float] = deque([load_ms] * _PRIOR_SAMPLES, _SAMPLES)
        self.load_ms = load_ms

    def receive(self, worker: WorkerId, report: AdapterReport) -> None:
        """Note what an engine tells: those in use are held ready."""
        if not report.slots:
            return
        self._slots[worker] = slots = min(report.slots, MOST_SLOTS)
        for name in islice(report.names, slots):
            self.use(worker, name)

    def use(self, worker: WorkerId, adapter: str) -> None:
        """Note that a request uses `adapter` there: it is held in place of the one unused longest.

        Nothing is noted of a worker whose slots are not known.
        """
        slots = self._slots.get(worker)
        if slots is None:
            return
        held = self._held.setdefault(worker, {})
        held.pop(adapter, None)
        held[adapter] = None
        while len(held) > slots:
            del held[next(iter(held))]

    def cold(self, adapter: str, workers: Iterable[WorkerId]) -> dict[WorkerId, float]:
        """Return what loading `adapter` costs, ms, at those of `workers` that do not hold it."""
        slots, held, none = self._slots, self._held, dict[str, None]()
        cost = self.load_ms
        return {one: cost for one in workers if one in slots and adapter not in held.get(one, none)}

    def load(self, request_id: str, usual_ms: float | None) -> None:
        """Note that a request waits for a load; its prefill takes `usual_ms` without one, None if
        others are prefilled there first: then its time tells nothing.
        """
        if len(self._loading) >= _MOST_LOADING:
            del self._loading[next(iter(self._loading))]
        self._loading[request_id] = usual_ms

    def loaded(self, request_id: str, took_ms: float) -> bool:
        """Learn from a request's first token, `took_ms` after its prefill began; return whether it
        waited for a load, so that its time tells nothing of the worker's speed.
        """
        if request_id not in self._loading:
            return False
        usual_ms = self._loading.pop(request_id)
        if usual_ms is not None:
            self._samples.append(min(max(0.0, took_ms - usual_ms), MOST_LOAD_MS))
            self.load_ms = median(self._samples)
        return True

    def ended(self, request_id: str) -> None:
        """Forget a request that ended without a first token."""
        self._loading.pop(request_id, None)

    def restart(self, worker: WorkerId) -> None:
        """Note that an engine began anew: it holds no adapter."""
        self._held.pop(worker, None)

    def remove(self, worker: WorkerId) -> None:
        """Forget an engine."""
        self._held.pop(worker, None)
        self._slots.pop(worker, None)

    def held(self, worker: WorkerId) -> Sequence[str]:
        """Return the adapters held ready there as far as is known, the one unused longest first."""
        return tuple(self._held.get(worker, ()))
