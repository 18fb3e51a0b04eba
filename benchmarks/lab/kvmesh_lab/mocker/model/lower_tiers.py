"""Memory below an engine's device: blocks are copied there when they fill, and brought back.

As vLLM's offloading connector does by default: every full block is copied to the first tier at
once, each tier is an LRU, what it loses sinks to the next. Blocks come back over one link a tier,
one request after the other, while the engine computes for others.
Source: vLLM `v1/kv_offload`, `OffloadingConnector` (0.32).
"""

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby

import msgspec

from kvmesh.core.blocks.events import ROOT
from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.request import (
    BlocksRemoved,
    BlocksStored,
    BlocksSunk,
    EngineEvent,
    EngineRequest,
)


class TierOptions(msgspec.Struct, frozen=True):
    """A tier of so many `blocks`: bringing some back takes `latency_ms`, and `block_ms` for each.

    Raises `ConfigError` for a tier without blocks, or a negative time.
    """

    blocks: int
    block_ms: float
    latency_ms: float = 0.0

    def __post_init__(self) -> None:
        """Check the options together."""
        if self.blocks < 1 or min(self.block_ms, self.latency_ms) < 0.0:
            raise ConfigError(
                f"a tier of {self.blocks} blocks, {self.block_ms} ms a block after "
                f"{self.latency_ms} ms: it needs a block or more, and no negative time"
            )


class Link:
    """A way that brings one thing after the other. Times in seconds."""

    def __init__(self) -> None:
        self.free_s = 0.0

    def take(self, now: float, busy_s: float) -> float:
        """Return when something that takes `busy_s` is through."""
        self.free_s = max(now, self.free_s) + busy_s
        return self.free_s


class Moves(msgspec.Struct, frozen=True):
    """What a store changed: hashes new in the first tier, those that sank from tier to tier (from
    the first on), and those that a tier holds no longer without having sunk.
    """

    stored: list[int]
    sunk: list[list[int]]
    gone: list[list[int]]


class LowerTiers:
    """Which hashes each tier below the device holds: tier 1 is the first. A hash is in one."""

    def __init__(self, tiers: Sequence[TierOptions]) -> None:
        self._options = tuple(tiers)
        self._held: list[OrderedDict[int, None]] = [OrderedDict() for _ in tiers]
        self._links = [Link() for _ in tiers]

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self._options)

    def store(self, hashes: Sequence[int]) -> Moves:
        """Copy blocks to the first tier; those that are there count as used now."""
        stored: list[int] = []
        gone: list[list[int]] = [[] for _ in self._held]
        first = self._held[0]
        for one in hashes:
            if one in first:
                first.move_to_end(one)
                continue
            for place, tier in enumerate(self._held[1:], 1):
                if one in tier:
                    del tier[one]
                    gone[place].append(one)
            first[one] = None
            stored.append(one)
        sunk: list[list[int]] = []
        falling: list[int] = []
        for place, tier in enumerate(self._held):
            tier.update(dict.fromkeys(falling))
            excess = max(0, len(tier) - self._options[place].blocks)
            falling = [tier.popitem(last=False)[0] for _ in range(excess)]
            if place < len(self._held) - 1:
                sunk.append(falling)
            else:
                gone[place] += falling
        return Moves(stored, sunk, gone)

    def find(self, hashes: Sequence[int]) -> list[int]:
        """Return how many of the longest prefix of `hashes` that is held lie in each tier."""
        counts = [0] * len(self._held)
        for one in hashes:
            place = next((place for place, tier in enumerate(self._held) if one in tier), None)
            if place is None:
                break
            counts[place] += 1
        return counts

    def bring(self, counts: Sequence[int], now: float) -> float:
        """Return when so many blocks of each tier will be on the device, in seconds."""
        ready = now
        for count, option, link in zip(counts, self._options, self._links, strict=True):
            if count:
                through = link.take(now, count * option.block_ms / 1000.0)
                ready = max(ready, through + option.latency_ms / 1000.0)
        return ready

    def holds(self, sequence_hash: int) -> bool:
        """Return whether any tier holds a block."""
        return any(sequence_hash in tier for tier in self._held)

    def clear(self) -> None:
        """Forget everything."""
        for tier in self._held:
            tier.clear()


class LowerMemory:
    """The tiers below an engine's device, and the requests whose blocks are on their way from
    there, or from the caches of other engines; who needs the same blocks waits for them.
    """

    def __init__(self, tiers: Sequence[TierOptions]) -> None:
        self.tiers = LowerTiers(tiers)
        self._arriving: list[tuple[float, int, EngineRequest]] = []
        self._coming: dict[int, float] = {}
        self._brought = 0

    def __len__(self) -> int:
        """Return how many requests wait for blocks."""
        return len(self._arriving)

    def arrives_s(self) -> float | None:
        """Return when the next request's blocks will have been brought; None for none."""
        return self._arriving[0][0] if self._arriving else None

    def bring(self, request: EngineRequest, hashes: Sequence[int], now: float) -> int:
        """Have blocks of `hashes` brought, from the tiers and behind those from the peer's cache;
        return how many, 0 for none.
        """
        counts = self.tiers.find(hashes)
        blocks = sum(counts)
        ready = self.tiers.bring(counts, now)
        if request.peer is not None and (more := request.peer.held(hashes[blocks:])):
            ready = max(ready, request.peer.bring(more, now))
            blocks += more
        if blocks:
            self._push(request, ready)
            self._coming |= dict.fromkeys(hashes[:blocks], ready)
        return blocks

    def wait(self, request: EngineRequest, lacking: Sequence[int]) -> bool:
        """Have a request wait if the first block that it lacks is on its way; return whether it
        does.
        """
        ready = self._coming.get(lacking[0]) if self._coming and lacking else None
        if ready is not None:
            self._push(request, ready)
        return ready is not None

    def _push(self, request: EngineRequest, ready: float) -> None:
        self._brought += 1
        heappush(self._arriving, (ready, self._brought, request))

    def arrived(self, now: float) -> list[EngineRequest]:
        """Return the requests whose blocks are there, and let go of them."""
        requests: list[EngineRequest] = []
        while self._arriving and self._arriving[0][0] <= now:
            requests.append(heappop(self._arriving)[2])
        if requests:
            self._coming = {one: ready for one, ready in self._coming.items() if ready > now}
        return requests

    def drop(self, request: EngineRequest) -> bool:
        """Let go of a request; return whether it waited here."""
        left = [one for one in self._arriving if one[2] is not request]
        found = len(left) < len(self._arriving)
        heapify(left)
        self._arriving = left
        for one in request.hashes if found and request.computed_tokens else ():
            self._coming.pop(one, None)
        return found

    def copy(self, request: EngineRequest, first: int, full: int) -> list[EngineEvent]:
        """Copy the request's blocks from `first` on, before `full`, to the first tier."""
        if not self.tiers:
            return []
        hashes = request.hashes
        moves = self.tiers.store(hashes[first:full])
        new = set(moves.stored)
        events: list[EngineEvent] = []
        for stored, run in groupby(range(first, full), lambda at: hashes[at] in new):
            if stored:
                places = list(run)
                parent = hashes[places[0] - 1] if places[0] else ROOT
                blocks = [hashes[at] for at in places]
                events.append(BlocksStored(request, places[0], parent, blocks, 1))
        events += [BlocksSunk(sunk, tier) for tier, sunk in enumerate(moves.sunk, 2) if sunk]
        return events + [
            BlocksRemoved(gone, tier) for tier, gone in enumerate(moves.gone, 1) if gone
        ]
