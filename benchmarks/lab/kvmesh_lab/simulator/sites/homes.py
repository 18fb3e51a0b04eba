"""A trace's requests as conversations of clients near several sites."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec
import xxhash

from kvmesh.core.buckets.beginnings import MOST_ENDS
from kvmesh.core.sites.sites import SiteRequest
from kvmesh_lab.simulator.fleet.request import FleetRequest
from kvmesh_lab.simulator.sites.workload import Conversation, Turn, beginning, site_request
from kvmesh_lab.traces.trace import prefix_families

_DRAWS: Final = 2.0**64


class TraceHomes:
    """Gives each session of a trace, and where there are none each family of prompts, the site that
    its client is near: at random by `seed`, by `shares`.
    """

    def __init__(self, shares: Sequence[float], seed: int, block_size: int) -> None:
        self._bounds = [one / sum(shares) for one in accumulate(shares)]
        self._seed = seed % 2**64
        self._block_size = block_size
        self._ended: set[int] = set()

    def conversations(self, requests: Sequence[FleetRequest], speedup: float) -> list[Conversation]:
        """Return a conversation for each session whose turns wait for each other, and for each
        other request one of its own, `speedup` times as fast as recorded. O(blocks).
        """
        families = prefix_families([one.trace for one in requests])
        begun: dict[str, list[Turn]] = {}
        found: list[Conversation] = []
        for request, family in zip(requests, families, strict=True):
            trace, alone = request.trace, msgspec.structs.replace(request, following=())
            home = self._home(trace.session or str(family))
            turn = Turn(alone, home, (trace.delay_ms or 0.0) / 1000.0, self._asked(request))
            if trace.delay_ms is not None and trace.session in begun:
                begun[trace.session].append(turn)
                continue
            turns = begun[trace.session] = [turn]
            found.append(Conversation(trace.timestamp_ms / 1000.0 / speedup, turns))
        return found

    def _home(self, key: str) -> int:
        drawn = xxhash.xxh3_64_intdigest(key.encode(), self._seed) / _DRAWS
        return next(n for n, bound in enumerate(self._bounds) if drawn <= bound or bound >= 1.0)

    def _asked(self, request: FleetRequest) -> SiteRequest:
        """Return what a meta-router sees: prompts that this one goes on from are earlier turns."""
        hashes = request.hashes
        own = hashes[-1] if hashes else request.trace.index
        places = [n for n, key in enumerate(hashes[:-1], start=1) if key in self._ended]
        ends = [own, *(hashes[n - 1] for n in reversed(places[-MOST_ENDS + 1 :]))]
        self._ended.add(own)
        root = places[0] if places else len(hashes)
        marks = [beginning(hashes, root, self._block_size)] if hashes else []
        return site_request(request, self._block_size, marks, ends)
