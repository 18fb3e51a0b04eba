"""Caches of other engines, open to a simulated request: what is there, and how long it takes."""

from collections.abc import Sequence
from typing import Final

from kvmesh_lab.simulator.fleet.engine import FleetEngine
from kvmesh_lab.simulator.fleet.options import PeerOptions

ACCESS_LABEL: Final = "kvmesh/fetch/lmcache/fleet"
"""What engines of a fleet with peers tell their routers: each takes what any other holds."""


class FleetPeer:
    """The cache of engine `source` as a request at engine `target` sees it.

    One transfer at a time leaves an engine, and one at a time comes to it.
    """

    def __init__(self, source: FleetEngine, target: FleetEngine, options: PeerOptions) -> None:
        self._source = source
        self._target = target
        self._options = options

    def held(self, hashes: Sequence[int]) -> int:
        """Return how many of `hashes`, from the first one on, the source holds now."""
        model = self._source.model
        count = len(model.pool.find_cached(hashes, len(hashes)))
        while count < len(hashes) and model.lower.tiers.holds(hashes[count]):
            count += 1
        return count

    def bring(self, blocks: int, now: float) -> float:
        """Return when so many blocks of it will be here, in seconds."""
        options, coming, going = self._options, self._target.coming, self._source.going
        begins_s = max(now, coming.free_s, going.free_s)
        busy_s = blocks * options.block_ms / 1000.0
        coming.take(begins_s, busy_s)
        return going.take(begins_s, busy_s) + options.latency_ms / 1000.0
