"""What a decision needs to know of a request besides its prompt and its course: what its workers
have to do first, and which of them are in time.

The compiled core asks for each where it needs it, by an attribute that is None where a request has
no such input (kvmesh/native/decide/decide.c).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvmesh._native import ActiveSequences, Record, Speeds
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES, Hashes
from kvmesh.core.overlap.overlaps import OverlapView
from kvmesh.core.routing.choice.made import Maker, Terms
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.fetching import FetchPlanner
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.core.routing.slo.judge import in_time
from kvmesh.core.routing.slo.tracker import SloTracker

Prepared = tuple[int, int, int, int, float, float]
"""What a worker has to do first: blocks of the prompt that it has in any memory (-1: as found),
tokens from another worker, what bringing them is worth in tokens, blocks in slower memory, ms of
bringing, ms of loading an adapter.
"""

_AS_FOUND: Prepared = (-1, 0, 0, 0, 0.0, 0.0)


class Known(NamedTuple):
    """What is known of the workers."""

    workers: WorkerRegistry
    overlaps: OverlapView
    sequences: ActiveSequences
    speeds: Speeds
    planner: FetchPlanner
    slo: SloTracker

    def has_tiers(self) -> bool:
        """Return whether some worker keeps blocks in slower memory than its device's."""
        index = self.overlaps.index
        return index is not None and len(index.tiers) > 1


class Inputs:
    """The inputs of one request.

    `course_of` takes its hashes (None: it has none) and returns what it is decided by; `prepare`
    takes them and returns what each worker has to do first, and the most blocks that any has;
    `allow` takes cost and terms of all and returns the places of those to choose among. Each is
    None where there is nothing to ask. `maker` makes its `Decision`.
    """

    __slots__ = ("course_of", "known", "made", "now", "request")

    def __init__(self, known: Known, request: RouteRequest, made: Maker, now: float) -> None:
        self.known = known
        self.request = request
        self.now = now
        self.made = made
        self.course_of: Callable[[Hashes | None], object] | None = None

    @property
    def maker(self) -> Callable[[Record], Decision]:
        """Return what makes its decision of a record."""
        return self.made.make

    @property
    def prepare(self) -> Callable[[Hashes | None], tuple[dict[WorkerId, Prepared], int]] | None:
        """Return what tells what workers have to do first, None where that is nothing."""
        known = self.known
        brings = known.workers.fetchers or known.has_tiers()
        return self._prepare if self.adapter or brings else None

    @property
    def allow(self) -> Callable[[Sequence[tuple[float, Terms]]], list[int]] | None:
        """Return what tells among whom to choose, None where that is all."""
        return None if self.request.targets is None else self._in_time

    @property
    def adapter(self) -> str:
        """Return the request's LoRA adapter, "" for none."""
        return self.request.adapter

    def _prepare(self, hashes: Hashes | None) -> tuple[dict[WorkerId, Prepared], int]:
        known, reach = self.known, 0
        prepared: dict[WorkerId, Prepared] = {}
        if known.workers.fetchers or (hashes is not None and known.has_tiers()):
            size = known.sequences.block_size
            found = known.overlaps.find(hashes or NO_HASHES, self.now)
            if found.slower:
                reach = max(found.overlaps.values())
            if found.slower or known.workers.fetchers:
                self.made.brought = known.planner.plan(found, self.request, size, self.now)
            for worker, one in self.made.brought.items():
                blocks = found.overlaps.get(worker, 0)
                slower = one.own_tokens() // size
                fetched, worth = one.fetched_tokens, one.worth_tokens
                prepared[worker] = (blocks, fetched, worth, slower, one.ms, 0.0)
        if self.adapter:
            workers = known.workers
            for worker, ms in workers.adapters.cold(self.adapter, workers.known).items():
                blocks, fetched, worth, slower, fetch_ms, _ = prepared.get(worker, _AS_FOUND)
                prepared[worker] = (blocks, fetched, worth, slower, fetch_ms, ms)
        return prepared, reach

    def _in_time(self, weighed: Sequence[tuple[float, Terms]]) -> list[int]:
        known, request = self.known, self.request
        candidates = self.made.candidates([terms for _, terms in weighed])
        tpot_ms = known.speeds.ms_per_output_token
        self.made.forecasts = known.slo.foretell(request, candidates, tpot_ms, self.now)
        return in_time(self.made.forecasts, request.priority)
